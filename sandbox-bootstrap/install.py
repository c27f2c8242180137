"""Installs packages in a throw-away sandbox, which has no workspace, no bridge and no network.

`python3 -I <this file> TASK OUTPUT RELAY`: TASK cannot be written and has `task.json`, perhaps `ca.pem` and `uv`;
what is made goes to OUTPUT: `site` is the folder for `sys.path`, `report.json` says what is in it, and `tools/uv` is
there if `uv` had to be fetched. RELAY is a socket of the daemon, which connects to the hosts of the package index and
to no others. Only wheels are installed, so no code of a package runs here, unless the task allows sources: what their
code does, it does in this sandbox. While packages are fetched, `progress.json` says which. The daemon believes nothing
of it: it reads names and files with its own bounds and copies them.
"""

import base64
import hashlib
import html.parser
import importlib.util
import io
import json
import os
import platform
import re
import socket
import ssl
import stat
import subprocess
import sys
import sysconfig
import threading
import time
import urllib.parse
import urllib.request
import zipfile
from importlib import metadata

ANSWER_BYTES = 16 * 1024
SIDE_BYTES = 64 * 1024
INDEX_PAGE_BYTES = 32 * 1024 * 1024
UV_BYTES = 128 * 1024 * 1024
INSTALLED_AS = "/belljar/packages/site"
PINNED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)")
# A version as indexes write it. Others can be named by no requirement, or `uv` spells them in another way, as `2023.07`.
VERSION = re.compile(
    r"([0-9]+!)?(0|[1-9][0-9]*)(\.(0|[1-9][0-9]*))*((a|b|rc)[0-9]+)?(\.post[0-9]+)?(\.dev[0-9]+)?(\+[a-z0-9]+(\.[a-z0-9]+)*)?"
)
STAND_IN = """Metadata-Version: 2.1
Name: {}
Version: {}
{}
"""
# What `uv` says of large downloads: `Downloading polars (35.2MiB)`, and ` Downloaded polars` at their end; and pip, which
# fetches one after the other: `Downloading https://…/polars-1.0-py3-none-any.whl (35.2 MB)`.
FETCHING = re.compile(r"\s*Downloading (\S+) \(([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([kMG]?B|[KMG]iB)\)|\s*Downloaded (\S+)")
UNITS = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "kB": 1000, "MB": 1000**2, "GB": 1000**3}
EXTRA = re.compile(r";.*\bextra\b")
NAME = re.compile(r"[A-Za-z0-9._-]*")
WORKERS = "2"
# Where images have their `uv`: first that of Belljar's images, which is not on the PATH. The PATH itself is not asked: it
# begins with a `uv` for code in cells, which asks for what this file does.
IMAGE_UVS = ("/usr/libexec/belljar/uv", "/usr/local/bin/uv", "/usr/bin/uv")
# The first version that knows all options that are used here.
OLDEST_UV = (0, 4, 23)
UV_START_S = 30
# Time between two looks at what a program says.
LOOK_S = 0.05


class Failure(Exception):
    """What went wrong, as a kind for programs and a text for people."""

    def __init__(self, kind, text):
        super().__init__(text)
        self.kind = kind


def main(task_folder, output, relay):
    with open(os.path.join(task_folder, "task.json"), encoding="utf-8") as file:
        task = json.load(file)
    report = {"python": "{}.{}.{}".format(*sys.version_info), "platform": sysconfig.get_platform()}
    try:
        report.update(Installation(task, task_folder, output, relay).run())
    except Failure as failure:
        report["failure"] = {"kind": failure.kind, "text": hidden(str(failure), task["index"])[-ANSWER_BYTES:]}
    draft = os.path.join(output, "report.draft")
    with open(draft, "w", encoding="utf-8") as file:
        json.dump(report, file)
    os.rename(draft, os.path.join(output, "report.json"))


class Installation:
    def __init__(self, task, task_folder, output, relay):
        self._task = task
        self._output = output
        self._site = os.path.join(output, "site")
        authorities = os.path.join(task_folder, "ca.pem")
        self._authorities = authorities if os.path.exists(authorities) else None
        self._given_uv = os.path.join(task_folder, "uv")
        self._proxy = "http://127.0.0.1:{}".format(start_relay(relay))

    def run(self):
        os.mkdir(self._site)
        tool = self._find_tool()
        image = image_packages()
        session = {package["name"]: package["version"] for package in self._task["pinned"]}
        wanted, replaced = self._resolve(tool, image, session)
        if replaced and not self._task["replace"]:
            return {"replaced": replaced}
        missing = {name: found for name, found in wanted.items() if image.get(name) != found[0]}
        if missing:
            self._install(tool, missing)
            self._compile_bytecode()
        named = [{"name": name, "version": version} for name, (version, _) in sorted(missing.items())]
        present = [{"name": name, "version": found[0]} for name, found in sorted(wanted.items()) if name not in missing]
        return {"packages": named, "present": present, "replaced": replaced}

    def _resolve(self, tool, image, session):
        """What is wanted by name, and what of the session or the image it replaces."""
        there = {**image, **session}
        try:
            return self._compile(tool, there, self._stand_ins(image, "image", EXTRA.search)), []
        except Failure as failure:
            if failure.kind != "not_found":
                raise
        # Without what is there, and without older requirements of the same names, it may work: the versions that are in
        # the way are named then.
        try:
            wanted = self._compile(tool, {}, without=self._task["superseded"])
        except Failure as failure:
            # What only the image has is on no index. It may stay beside others, with all that it needs of the image.
            whole = self._stand_ins(image, "whole", lambda need: normal(NAME.match(need)[0]) in image)
            try:
                wanted = self._compile(tool, {}, whole, self._task["superseded"])
            except Failure:
                raise failure from None
        replaced = [
            {"name": name, "has": there[name], "wants": version}
            for name, (version, _) in sorted(wanted.items())
            if there.get(name, version) != version
        ]
        return wanted, replaced

    def _compile(self, tool, constraints, stand_ins=None, without=()):
        lines = (line for line in self._task["requirements"] if line not in without)
        requirements = self._write("requirements.txt", lines)
        limits = self._write("constraints.txt", ["{}=={}".format(*item) for item in sorted(constraints.items())])
        options = ["--constraint", limits] if constraints else []
        return tool.resolve(options + (["--find-links", stand_ins] if stand_ins else []), requirements)

    def _stand_ins(self, image, folder, is_told):
        """A folder of wheels without content for what the image has.

        The index may have no such version, as those of Linux distributions have names of their own, or no wheel of it
        for this Python. What the image has fits together: beside all of it, a stand-in needs nothing but for its extras.
        """
        folder = os.path.join(self._output, folder)
        os.mkdir(folder)
        for distribution in metadata.distributions():
            name, version = normal(distribution.metadata["Name"] or ""), distribution.version
            if name in image and image[name] == version:
                extras = ["Provides-Extra: " + extra for extra in distribution.metadata.get_all("Provides-Extra") or ()]
                extras += ["Requires-Dist: " + need for need in distribution.requires or () if is_told(need)]
                write_stand_in(folder, name, version, extras)
        return folder

    def _install(self, tool, packages):
        lines = (" --hash=".join((name + "==" + found[0], *found[1])) for name, found in sorted(packages.items()))
        pinned = self._write("pinned.txt", lines)
        tool.install(["--no-deps", "--require-hashes", "--target", self._site, "--requirement", pinned])

    def _compile_bytecode(self):
        """Compile what can be compiled, in a process without threads; tracebacks show the path that a session has it at."""
        options = ["-q", "-j", WORKERS, "--invalidation-mode", "unchecked-hash"]
        words = [sys.executable, "-I", "-m", "compileall", *options, "-s", self._site, "-p", INSTALLED_AS, self._site]
        subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)

    def _write(self, name, lines):
        path = os.path.join(self._output, name)
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)
        return path

    def _find_tool(self):
        """The `uv` of the image, else the one that the daemon has, else one from the index, else the `pip` of the image."""
        of_image = next(filter(is_usable_uv, IMAGE_UVS), None)
        cache = os.path.join(self._output, "cache")
        os.mkdir(cache)
        settings = Settings(self._task, self._authorities, self._proxy, cache, Progress(self._output))
        if of_image or os.path.exists(self._given_uv):
            return Uv(of_image or self._given_uv, settings)
        try:
            return Uv(self._fetch_uv(), settings)
        except Failure:
            if importlib.util.find_spec("pip") is None:
                raise
            return Pip(settings)

    def _fetch_uv(self):
        """`uv` from its own wheel on the index: one file that runs without being installed."""
        tag = "musllinux" if "musl" in (sysconfig.get_config_var("HOST_GNU_TYPE") or "") else "manylinux"
        machine = platform.machine()
        try:
            page = self._get(urllib.parse.urljoin(self._task["index"].rstrip("/") + "/", "uv/"), INDEX_PAGE_BYTES)
            links = Links(page.decode("utf-8", "replace"))
            fitting = [link for link in links.found if tag in link.name and link.name.endswith(machine + ".whl")]
            if not fitting:
                raise Failure("no_installer", "the index has no `uv` for {} {}".format(tag, machine))
            newest = max(fitting, key=lambda link: link.version)
            url = urllib.parse.urljoin(self._task["index"].rstrip("/") + "/uv/", newest.url)
            content = self._get(url.partition("#")[0], UV_BYTES)
            if newest.sha256 != hashlib.sha256(content).hexdigest():
                raise Failure("no_installer", "the `uv` of the index does not have the hash that the index names")
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                inside = next(name for name in archive.namelist() if name.endswith(".data/scripts/uv"))
                program = archive.read(inside)
        except (OSError, StopIteration, zipfile.BadZipFile) as error:
            raise Failure("no_installer", "`uv` cannot be fetched from the index: {}".format(error)) from None
        os.mkdir(os.path.join(self._output, "tools"))
        path = os.path.join(self._output, "tools", "uv")
        with open(path, "wb") as file:
            file.write(program)
        os.chmod(path, 0o755)
        return path

    def _get(self, url, most):
        context = ssl.create_default_context(cafile=self._authorities)
        # The authorities of a company are often not as strict as Python 3.13 wants them; `uv` takes them, too.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        proxies = urllib.request.ProxyHandler({"https": self._proxy, "http": self._proxy})
        opener = urllib.request.build_opener(proxies, urllib.request.HTTPSHandler(context=context))
        with opener.open(self._request(url), timeout=self._task["idle_s"]) as answer:
            content = answer.read(most + 1)
        if len(content) > most:
            raise Failure("no_installer", "an answer of the index is larger than {} bytes".format(most))
        return content

    def _request(self, url):
        """A request with user and password of the index, for the index alone, and not in the address."""
        parts, index = urllib.parse.urlsplit(url), urllib.parse.urlsplit(self._task["index"])
        place = parts.netloc.rpartition("@")[2]
        request = urllib.request.Request(parts._replace(netloc=place).geturl())
        who, _, index_place = index.netloc.rpartition("@")
        if who and place == index_place:
            words = base64.b64encode(urllib.parse.unquote(who).encode()).decode()
            # Not sent on to where the index redirects.
            request.add_unredirected_header("Authorization", "Basic " + words)
        return request


class Settings:
    """How a tool reaches the index, and where it may write."""

    def __init__(self, task, authorities, proxy, cache, progress):
        self.index, self.idle_s = task["index"], task["idle_s"]
        self.kinds = [] if task["sources"] else ["--only-binary", ":all:"]
        self.authorities, self.proxy, self.cache, self._progress = authorities, proxy, cache, progress

    def run(self, words, variables, not_found):
        """What a program prints; a failure if it does not succeed, of a kind that is known by these words."""
        environment = {
            **{"PATH": os.environ.get("PATH", ""), "HOME": "/tmp", "TMPDIR": self.cache},
            **dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY"), self.proxy),
            **{name: value for name, value in variables.items() if value},
        }
        # Files, because what a build left running may hold pipes open for ever.
        paths = [os.path.join(self.cache, name) for name in ("said", "complaints")]
        with open(paths[0], "wb") as said, open(paths[1], "wb") as complaints:
            program = subprocess.Popen(words, env=environment, stdout=said, stderr=complaints)
        said, complaints = (open(path, encoding="utf-8", errors="replace") for path in paths)
        with said, complaints:
            is_running = True
            while is_running:
                time.sleep(LOOK_S)
                is_running = program.poll() is None
                for line in [*iter(complaints.readline, ""), *iter(said.readline, "")]:
                    self._progress.hear(line)
            complaints.seek(0)
            said.seek(0)
            text = said.read() if program.returncode == 0 else complaints.read().strip()
        if program.returncode == 0:
            return text
        raise Failure("not_found" if any(word in text for word in not_found) else "failed", text)


class Progress:
    """Which packages are being fetched, in a file for the daemon."""

    def __init__(self, output):
        self._path = os.path.join(output, "progress.json")
        self._fetching = {}

    def hear(self, line):
        found = FETCHING.match(line)
        if found is None:
            return
        name, size, unit, ended = found.groups()
        self._fetching.pop(ended, None)
        if unit in ("kB", "MB", "GB"):
            self._fetching, name = {}, name.rpartition("/")[2].partition("-")[0]
        if name:
            self._fetching[name] = int(float(size) * UNITS[unit])
        with open(self._path + ".draft", "w", encoding="utf-8") as file:
            json.dump([{"name": name, "bytes": size} for name, size in self._fetching.items()], file)
        os.rename(self._path + ".draft", self._path)


class Uv:
    def __init__(self, program, settings):
        self._program, self._settings = program, settings

    def resolve(self, limits, requirements):
        """Versions and hashes of all that is needed, by name."""
        options = ["--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url", *limits]
        text = self._run(["pip", "compile", *self._settings.kinds, *options, requirements])
        found, name = {}, None
        for line in text.splitlines():
            pinned = PINNED.match(line)
            if pinned:
                name = normal(pinned[1])
                found[name] = (pinned[2], [])
            hashed = re.search(r"--hash=(sha256:[0-9a-f]{64})", line)
            if hashed and name:
                found[name][1].append(hashed[1])
        return found

    def install(self, arguments):
        self._run(["pip", "install", *self._settings.kinds, *arguments])

    def _run(self, arguments):
        settings = self._settings
        variables = {
            "UV_CACHE_DIR": settings.cache,
            "UV_PYTHON": sys.executable,
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_NO_CONFIG": "1",
            "UV_NO_PROGRESS": "1",
            "UV_HTTP_TIMEOUT": str(settings.idle_s),
            "UV_DEFAULT_INDEX": settings.index,
            "SSL_CERT_FILE": settings.authorities,
        }
        return settings.run([self._program, *arguments], variables, ["No solution found"])


class Pip:
    def __init__(self, settings):
        self._settings = settings

    def resolve(self, limits, requirements):
        """The same as of `uv`; the image's own packages are limits, too, so that pip need not look at them."""
        report = os.path.join(self._settings.cache, "report.json")
        options = ["--dry-run", "--ignore-installed", "--report", report, *limits]
        self._run([*options, "--requirement", requirements])
        found = {}
        with open(report, encoding="utf-8") as file:
            for one in json.load(file)["install"]:
                sha256 = one["download_info"]["archive_info"]["hashes"]["sha256"]
                found[normal(one["metadata"]["name"])] = (one["metadata"]["version"], ["sha256:" + sha256])
        return found

    def install(self, arguments):
        self._run(["--no-compile", *arguments])

    def _run(self, arguments):
        settings = self._settings
        variables = {
            "PIP_CONFIG_FILE": os.devnull,
            **dict.fromkeys(("PIP_NO_CACHE_DIR", "PIP_NO_INPUT", "PIP_DISABLE_PIP_VERSION_CHECK"), "1"),
            "PIP_DEFAULT_TIMEOUT": str(settings.idle_s),
            "PIP_INDEX_URL": settings.index,
            "PIP_CERT": settings.authorities,
        }
        words = [sys.executable, "-I", "-m", "pip", "install", "--progress-bar", "off", *settings.kinds, *arguments]
        return settings.run(words, variables, ["No matching distribution found", "ResolutionImpossible"])


class Link:
    def __init__(self, url):
        self.url = url
        parts = urllib.parse.urlsplit(url)
        self.name = urllib.parse.unquote(parts.path.rpartition("/")[2])
        self.sha256 = urllib.parse.parse_qs(parts.fragment).get("sha256", [""])[0]
        numbers = self.name.split("-")[1] if self.name.count("-") >= 4 else ""
        is_release = re.fullmatch(r"[0-9]+(\.[0-9]+)*", numbers)
        self.version = tuple(int(part) for part in numbers.split(".")) if is_release else ()


class Links(html.parser.HTMLParser):
    """The links of an index page (PEP 503)."""

    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        url = dict(attributes).get("href")
        if tag == "a" and url:
            self.found.append(Link(url))


def hidden(text, index):
    """The text without the password of the index, as the daemon hides it: here, too, because the text is cut here."""
    who = urllib.parse.urlsplit(index or "").netloc.rpartition("@")[0]
    name, _, password = who.partition(":")
    secret = password or name
    if not secret:
        return text
    user = "{}:{}".format(urllib.parse.unquote(name), urllib.parse.unquote(password))
    spellings = {secret, urllib.parse.unquote(secret), base64.b64encode(user.encode()).decode()}
    for spelling in sorted(spellings, key=len, reverse=True):
        text = text.replace(spelling, "****")
    return text


def write_stand_in(folder, name, version, extras):
    stem = "{}-{}".format(name.replace("-", "_"), version)
    files = {
        "METADATA": STAND_IN.format(name, version, "\n".join(extras)),
        "WHEEL": "Wheel-Version: 1.0\nGenerator: belljar\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(os.path.join(folder, stem + "-py3-none-any.whl"), "w") as wheel:
        for file, text in files.items():
            wheel.writestr("{}.dist-info/{}".format(stem, file), text)


def is_usable_uv(path):
    """Whether a program of the image is a `uv` that only root can have put there, and new enough."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    is_roots = found.st_uid != os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not (stat.S_ISREG(found.st_mode) and is_roots and os.access(path, os.X_OK)):
        return False
    try:
        told = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=UV_START_S, env={}).stdout
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return False
    version = re.match(r"uv ([0-9]+)\.([0-9]+)\.([0-9]+)", told)
    return version is not None and tuple(map(int, version.groups())) >= OLDEST_UV


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def image_packages():
    """The versions of what the image has, by name."""
    found = {}
    for distribution in metadata.distributions():
        name, version = distribution.metadata["Name"], distribution.version
        if name and version and VERSION.fullmatch(version):
            found.setdefault(normal(name), version)
    return found


def start_relay(path):
    """The port on loopback whose connections are passed on to the daemon's socket."""
    threading.Thread(target=end_with, args=(path,), daemon=True).start()
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            client, _ = listener.accept()
            try:
                daemon = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                daemon.connect(path)
            except OSError:
                client.close()
                continue
            for pair in ((client, daemon), (daemon, client)):
                threading.Thread(target=pass_on, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return listener.getsockname()[1]


def end_with(path):
    """End this process, and with it the sandbox, when the daemon ends or gives up."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as daemon:
            daemon.connect(path)
            daemon.sendall(b"STAY\r\n\r\n")
            daemon.recv(1)
    finally:
        os._exit(1)


def pass_on(source, target):
    try:
        while True:
            data = source.recv(SIDE_BYTES)
            if not data:
                break
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for side in (source, target):
            side.close()


if __name__ == "__main__":
    main(*sys.argv[1:4])
