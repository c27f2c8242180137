#!/usr/bin/env python3
"""Runs the blocks of the documentation as a reader would type them.

    run.py BINARY [--jails] [PAGE…]      all pages, or those whose path contains one of the words

With `--jails` the reader has no container engine, and follows the guide only: the README names an image.

The blocks of a page run in order, in one shell, as an ordinary user with a home of its own: the daemon that the first
command starts is private to the page and gone afterwards. Where `tests/docs/given` has a folder of the page's name, its
files are in that home from the start. See `blocks.py` for what is run and how answers are compared.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from blocks import RUN, BadPage, blocks_of, matches

ROOT = Path(__file__).resolve().parents[2]
GIVEN = Path(__file__).resolve().parent / "given"
#: Pages that run at the same time.
AT_ONCE = 2
#: The longest that one command may take: some make a first sandbox of an image, or fetch a package.
SECONDS = 180
#: What root becomes, so that everything is tried as an ordinary user: an id that no account has.
READER = 61_009
ENGINE = Path("/var/run/docker.sock")
NO_ENGINE = "unix:///nonexistent/docker.sock"
#: Variables that a reader has; those of the package index are the machine's own.
PASSED = ("LANG", "DOCKER_HOST", "SSL_CERT_FILE", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "no_proxy")


def pages(jails):
    guide = sorted((ROOT / "docs/guide").glob("*.md"))
    return guide if jails else [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


class Wrong(Exception):
    """A block does not do what the page says."""


class Reader:
    """A shell in a home of its own."""

    def __init__(self, page, binary, jails=False):
        # Below /tmp, because the path of a socket has to be short.
        self.folder = Path(tempfile.mkdtemp(prefix="bjdoc", dir="/tmp"))
        self.home = self.folder / "home"
        given = GIVEN / page.stem
        if given.exists():
            shutil.copytree(given, self.home)
        self.home.mkdir(exist_ok=True)
        programs = self.folder / "bin"
        programs.mkdir()
        (programs / "belljar").symlink_to(binary)
        self.step, self.out, self.err, self.status = (self.folder / name for name in ("step", "out", "err", "status"))
        os.mkfifo(self.status)
        self.step.touch()
        who = self._become_reader() if os.geteuid() == 0 else {}
        passed = {name: value for name, value in os.environ.items() if name in PASSED or name.startswith("PIP_")}
        if jails:
            passed["DOCKER_HOST"] = NO_ENGINE
        environment = {**passed, "HOME": str(self.home), "PATH": f"{programs}:{os.environ['PATH']}", "TERM": "dumb"}
        self.shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile"], stdin=subprocess.PIPE, text=True, cwd=self.home, env=environment,
            start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **who,
        )  # fmt: skip
        self.code = 0

    def _become_reader(self):
        for path in (self.folder, *self.folder.rglob("*")):
            os.chown(path, READER, READER, follow_symlinks=False)
        groups = [ENGINE.stat().st_gid] if ENGINE.exists() else []
        return {"user": READER, "group": READER, "extra_groups": groups}

    def run(self, text):
        """Runs a command. Gives its exit code, what it printed, and what it printed to stderr."""
        self.step.write_text(text, encoding="utf-8")
        # `$?` is the exit code of the command before, as at a prompt.
        line = f"(exit {self.code}); . {self.step} >{self.out} 2>{self.err} </dev/null; echo $? >{self.status}\n"
        self.shell.stdin.write(line)
        self.shell.stdin.flush()
        with ThreadPoolExecutor(1) as waiting:
            answer = waiting.submit(self.status.read_text)
            try:
                self.code = int(answer.result(SECONDS))
            except TimeoutError:
                self._kill()
                self.status.write_text("1\n")
                raise Wrong(f"it did not end within {SECONDS} s") from None
        read = (path.read_text(encoding="utf-8", errors="replace") for path in (self.out, self.err))
        return self.code, *read

    def write(self, path, text):
        target = self.home / path.removeprefix("~/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        if os.geteuid() == 0:
            for made in (target, *target.relative_to(self.home).parents):
                os.chown(self.home / made, READER, READER)

    def _kill(self):
        os.killpg(self.shell.pid, signal.SIGKILL)
        self.shell.wait()

    def close(self):
        if self.shell.poll() is None:
            try:
                self.run("belljar daemon stop --remove\n")
            except Wrong:
                pass
            if self.shell.poll() is None:
                self._kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def follow(page, binary, jails):
    """Runs one page. Gives how many commands ran."""
    blocks = blocks_of(page)
    if not any(block.is_run for block in blocks):
        return 0
    reader = Reader(page, binary, jails)
    ran = 0
    try:
        for block in blocks:
            if block.file is not None:
                reader.write(block.file, block.text)
            if block.is_configuration:
                accept(reader, block)
            commands = block.commands() if block.is_run else []
            for number, command in enumerate(commands):
                ran += 1
                asks_for_code = number + 1 < len(commands) and commands[number + 1].text.strip() == "echo $?"
                try:
                    check(command, *reader.run(command.text), asks_for_code)
                except Wrong as wrong:
                    raise Wrong(f"line {command.line}: {command.text.rstrip()}\n{wrong}") from None
    finally:
        reader.close()
    return ran


def accept(reader, block):
    """Whether a configuration is one, which is shown without the name of a file."""
    reader.write("shown.toml", block.text)
    code, _, err = reader.run("belljar --config ~/shown.toml config show --file\n")
    if code != 0:
        raise Wrong(f"line {block.line}: no configuration:\n{err}")


def check(command, code, out, err, asks_for_code):
    said = f"stdout:\n{out}\nstderr:\n{err}"
    if code != 0 and not asks_for_code:
        raise Wrong(f"it exits with {code}\n{said}")
    # A terminal shows both streams; which of them has what is not said in the page.
    seen = (out, err, out + err, err + out)
    if command.expected is not None and not any(matches(command.expected, text) for text in seen):
        raise Wrong(f"expected:\n{command.expected}\n{said}")


def main(binary, words, jails=False):
    wanted = [page for page in pages(jails) if not words or any(word in str(page.relative_to(ROOT)) for word in words)]
    folder = Path(tempfile.mkdtemp(prefix="bjdoc", dir="/tmp"))
    folder.chmod(0o755)
    # A copy, because the reader may not be allowed to look at where it was built.
    program = Path(shutil.copy(binary, folder / "belljar"))

    def one(page):
        began = time.monotonic()
        try:
            ran, trouble = follow(page, program, jails), None
        except (Wrong, BadPage) as wrong:
            ran, trouble = 0, wrong
        return page.relative_to(ROOT), ran, trouble, time.monotonic() - began

    failed = commands = 0
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for page, ran, trouble, seconds in pool.map(one, wanted):
                commands += ran
                if trouble:
                    failed += 1
                    print(f"WRONG {page} {seconds:.1f} s: {trouble}", flush=True)
                elif ran:
                    print(f"ok    {page} {seconds:.1f} s: {ran} commands", flush=True)
    finally:
        shutil.rmtree(folder)
    blocks = [(page, block) for page in wanted for block in blocks_of(page) if block.language in RUN]
    left_out = [(page, block) for page, block in blocks if block.not_run]
    for page, block in left_out:
        print(f"not run: {page.relative_to(ROOT)}:{block.line}: {block.not_run}")
    print(f"{commands} commands ran, {len(left_out)} blocks are not run, {failed} pages are wrong")
    return 1 if failed or not (commands or jails) else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    words = [word for word in sys.argv[2:] if word != "--jails"]
    sys.exit(main(Path(sys.argv[1]).resolve(), words, "--jails" in sys.argv))
