#!/usr/bin/env python3
"""Packs a compiled binary: a wheel with the Python package, a tarball, a Debian package, and the checksums of all three.

    pack.py BINARY FOLDER [--maturin PATH]      (`make dist` calls it)

The same binary and commit give the same bytes. All times are that of the commit, or `SOURCE_DATE_EPOCH`. What a package says
it needs of the C library is read from the binary, never assumed.
"""

import argparse
import gzip
import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import tomllib
from email.utils import formatdate
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SDK = ROOT / "sdk/python"
#: The names that Debian and others have for the machines which a binary can be for, by their numbers in ELF headers.
MACHINES = {62: ("amd64", "x86_64"), 183: ("arm64", "aarch64")}
#: Who answers for a Debian package, unless `DEB_MAINTAINER` names another.
MAINTAINER = "The Belljar authors <belljar@localhost>"
#: The names of what is made, in the folder that it goes to.
MADE = ("belljar-*.whl", "belljar-*.tar.gz", "belljar_*.deb", "SHA256SUMS")
#: The baseline that `zig-cc.sh` links for; a binary that needs more was linked otherwise.
PORTABLE = (2, 28)


class Refused(Exception):
    """The binary cannot be packed; the text says why, and what to do."""


def run(*command: object, env: dict[str, str] | None = None, cwd: Path = ROOT) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=env, text=True, stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise Refused(f"`{' '.join(words)}` failed with exit code {done.returncode}")
    return done.stdout


def epoch() -> int:
    said = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        return int(said or run("git", "log", "-1", "--format=%ct"))
    except Refused as why:
        raise Refused(f"{why}: outside of a checkout, `SOURCE_DATE_EPOCH` has to say when this was written") from None


class Binary:
    """The stripped copy that all packages get, and what can be read from it."""

    def __init__(self, given: Path, folder: Path) -> None:
        self.path = folder / "belljar"
        run("strip", "--strip-unneeded", "-o", self.path, given)
        head = self.path.read_bytes()[:20]
        number = struct.unpack("<H", head[18:20])[0]
        if number not in MACHINES:
            raise Refused(f"`{given}` is for the machine {number} of ELF, which no package is made for")
        self.debian, self.machine = MACHINES[number]
        self.version = run(self.path, "--version").split()[1]
        headers = run("objdump", "-T", "-p", self.path)
        # `GLIBC_PRIVATE` and `GLIBC_ABI_…` have no number here, and neither stands in a program of Rust.
        self.glibc = max(
            (tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_(\d+\.\d+)", headers)), default=(0, 0)
        )
        self.libraries = re.findall(r"NEEDED\s+(\S+)", headers)
        self._check_versions()

    def _check_versions(self) -> None:
        for manifest, table in ((ROOT / "Cargo.toml", "package"), (SDK / "pyproject.toml", "project")):
            said = tomllib.loads(manifest.read_text(encoding="utf-8"))[table]["version"]
            if said != self.version:
                raise Refused(f"the binary is version {self.version}, and `{manifest}` says {said}: set both alike, and compile")


def wheel(binary: Binary, maturin: str, out: Path) -> Path:
    env = {
        **os.environ,
        "CARGO": str(HERE / "compiled_already.py"),
        "BELLJAR_BINARY": str(binary.path),
        "SOURCE_DATE_EPOCH": str(epoch()),
    }
    # `linux` as a tag would say nothing of the C library, so a wheel has to fit one of the `manylinux` policies.
    run(maturin, "build", "--quiet", "--auditwheel", "check", "--out", out, env=env, cwd=SDK)
    (made,) = out.glob("belljar-*.whl")
    policies = [tuple(map(int, found)) for found in re.findall(r"manylinux_(\d+)_(\d+)_", made.name)]
    if not policies or min(policies) < binary.glibc:
        raise Refused(f"the wheel `{made.name}` promises another C library than the binary needs: glibc {dotted(binary.glibc)}")
    return made


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def staged(binary: Binary, folder: Path, prefix: str, *variables: str) -> Path:
    """What `make install` puts in place, below a folder."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    made = folder / prefix.strip("/").replace("/", "-")
    run("make", "--silent", "install", f"BINARY={binary.path}", f"DESTDIR={made}", f"PREFIX={prefix}",
        "SYSCONFDIR=/etc", *variables, env=env)  # fmt: skip
    return made


def archive(source: Path, name: str, to: Path) -> None:
    """A tar that depends on nothing but names, modes and contents."""
    tar = subprocess.run(
        ["tar", "--create", "--sort=name", f"--mtime=@{epoch()}", "--owner=0", "--group=0", "--numeric-owner",
         "--format=gnu", f"--directory={source}", name],
        stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    to.write_bytes(gzip.compress(tar.stdout, 9, mtime=0))


def tarball(binary: Binary, work: Path, out: Path) -> Path:
    name = f"belljar-{binary.version}-{binary.machine}-linux-gnu"
    stage = staged(binary, work, "/usr/local")
    top = work / "tarball" / name
    shutil.copytree(stage / "usr/local", top)
    (top / "share/belljar").mkdir()
    shutil.copy(stage / "etc/belljar/config.toml", top / "share/belljar/config.toml")
    documents = top / "share/doc/belljar"
    documents.mkdir(parents=True)
    for licence in sorted(ROOT.glob("LICENSE-*")):
        shutil.copy(licence, documents)
    text = (HERE / "INSTALL.txt").read_text(encoding="utf-8")
    text = text.replace("@GLIBC@", dotted(binary.glibc)).replace("@NAME@", name)
    (documents / "INSTALL.txt").write_text(text, encoding="utf-8")
    plain_modes(top)
    made = out / f"{name}.tar.gz"
    archive(top.parent, name, made)
    return made


def plain_modes(top: Path) -> None:
    """Modes without what the checkout's own happen to be: files are copied with theirs."""
    for path in (top, *top.rglob("*")):
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)


def debian_package(binary: Binary, work: Path, out: Path) -> Path:
    stage = staged(binary, work, "/usr", "UNITDIR=/usr/lib/systemd/system", "ZSH_DIR=/usr/share/zsh/vendor-completions")
    for page in sorted((stage / "usr/share/man/man1").iterdir()):
        page.with_name(page.name + ".gz").write_bytes(gzip.compress(page.read_bytes(), 9, mtime=0))
        page.unlink()
    maintainer = os.environ.get("DEB_MAINTAINER", MAINTAINER)
    documents = stage / "usr/share/doc/belljar"
    documents.mkdir(parents=True)
    licence = (ROOT / "LICENSE-MIT").read_text(encoding="utf-8").split("\n", 2)[2].strip()
    indented = "".join(f" {line or '.'}\n" for line in licence.splitlines())
    copyright_of_all = (HERE / "debian/copyright").read_text(encoding="utf-8") + indented
    copyright_of_all = copyright_of_all.replace("@YEAR@", formatdate(epoch()).split()[3])
    (documents / "copyright").write_text(copyright_of_all, encoding="utf-8")
    changes = f"belljar ({binary.version}) unstable; urgency=medium\n\n  * Version {binary.version}.\n\n -- {maintainer}  {formatdate(epoch())}\n"
    (documents / "changelog.gz").write_bytes(gzip.compress(changes.encode(), 9, mtime=0))
    plain_modes(stage)

    size = sum(path.stat().st_size for path in stage.rglob("*") if path.is_file())
    depends = [f"libc6 (>= {dotted(binary.glibc)})"]
    if "libgcc_s.so.1" in binary.libraries:
        depends.append("libgcc-s1")
    values = {
        "VERSION": binary.version,
        "ARCHITECTURE": binary.debian,
        "MAINTAINER": maintainer,
        "INSTALLED_SIZE": str(-(-size // 1024)),
        "DEPENDS": ", ".join(depends),
    }
    control = stage / "DEBIAN"
    control.mkdir()
    text = (HERE / "debian/control").read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    (control / "control").write_text(text, encoding="utf-8")
    (control / "conffiles").write_text("/etc/belljar/config.toml\n", encoding="utf-8")
    sums = "".join(
        f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(stage)}\n"
        for path in sorted((stage / "usr").rglob("*"))
        if path.is_file()
    )
    (control / "md5sums").write_text(sums, encoding="utf-8")
    for script in ("postinst", "prerm", "postrm"):
        shutil.copy(HERE / "debian" / script, control / script)
        (control / script).chmod(0o755)
    made = out / f"belljar_{binary.version}_{binary.debian}.deb"
    # xz packs on one processor, so that the bytes do not depend on their number.
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch())}
    run("dpkg-deb", "--build", "--root-owner-group", "-Zxz", "--threads-max=1", stage, made, env=env)
    return made


def checksums(files: list[Path], out: Path) -> None:
    lines = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(files))
    (out / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def pack(given: Path, out: Path, maturin: str) -> None:
    if not given.is_file():
        raise Refused(f"there is no binary `{given}`: `make build` compiles one")
    # What is made here gets the modes that packages are to have, whatever this user's files have otherwise.
    os.umask(0o022)
    out.mkdir(parents=True, exist_ok=True)
    # An earlier version beside this one would be handed out with it.
    for earlier in (path for pattern in MADE for path in out.glob(pattern)):
        earlier.unlink()
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        binary = Binary(given, work)
        made = [wheel(binary, maturin, out), tarball(binary, work, out), debian_package(binary, work, out)]
        checksums(made, out)
    for path in made:
        print(f"{path.stat().st_size / 1e6:8.1f} MB  {path}")
    print(f"they need glibc {dotted(binary.glibc)} or newer")
    if binary.glibc > PORTABLE:
        print(f"note: the binary was not linked for glibc {dotted(PORTABLE)}, so older systems cannot run it", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--maturin", default="maturin")
    said = parser.parse_args()
    try:
        pack(said.binary.resolve(), said.folder.resolve(), said.maturin)
    except Refused as why:
        sys.exit(f"error: {why}")


if __name__ == "__main__":
    main()
