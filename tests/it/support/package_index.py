"""A package index on loopback with a certificate of its own and tiny packages.

usage: package_index.py FOLDER UV [MANY]     prints its port; ends with its stdin

`ca.pem` in FOLDER is the authority to trust; `requests` there has a line for every request. UV is a folder with a wheel
of `uv`, `fake` for one that looks around in its sandbox instead of installing anything, and is in FOLDER as `spy`, too, or
`none`. While FOLDER has a file
`slow`, files are not sent to their end. While it has a file `password`, only requests with what it says (`user:password`)
are answered. While it has a file `changed`, `bell-dep` has other content under the same version. MANY packages of 300
modules each, `bell-many-0` and so on, are there for benchmarks. While it has a file `elsewhere`, the pages lead to files on
another host. While it has a file `trickle`, files come slowly. While it has a file `first`, the pages lead to the first version
of each package only.
"""

import base64
import hashlib
import http.server
import io
import os
import pathlib
import platform
import ssl
import subprocess
import sys
import tarfile
import threading
import time
import zipfile

LOOKS_AROUND = """#!/usr/bin/env python3
import glob, os, socket, stat, sys
if sys.argv[1:] == ["--version"]:
    print("uv 9.9.9")
    sys.exit()
said = []
for path in ("/workspace", "/belljar/bridge", "/belljar/packages", "/run/docker.sock", "/var/run/docker.sock"):
    said.append("%s=%s" % (path, os.path.exists(path) and (not os.path.isdir(path) or bool(os.listdir(path)))))
said.append("belljar=%s" % ",".join(sorted(os.listdir("/belljar"))))
# Sets of a cache, and sockets but for its own, wherever they may be: /usr is the system's, and in a jail the host's, however large.
found, left, folders = [], 500000, ["/"]
while folders and left > 0:
    folder = folders.pop()
    try:
        entries = list(os.scandir(folder))
    except OSError:
        continue
    left -= len(entries)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            folders += [entry.path] if entry.path not in ("/proc", "/sys", "/usr") else []
        elif entry.name == "set.json" and os.path.isdir(os.path.join(folder, "site")):
            found.append(entry.path)
        elif not entry.is_file(follow_symlinks=False) and stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
            found += [entry.path] if entry.path != "/belljar/relay/relay.sock" else []
said.append("found=%s of %s" % (",".join(sorted(found)) or "nothing", "all" if left > 0 else "a part"))
said.append("secrets=%s" % (b"BELLJAR_TEST_SECRET" in open("/proc/1/environ", "rb").read()))
rows = open("/proc/net/dev").read().splitlines()[2:]
said.append("interfaces=%s" % ",".join(sorted(row.split(":")[0].strip() for row in rows)))
port = int(os.environ["HTTPS_PROXY"].rpartition(":")[2])
for request in (b"CONNECT example.org:443", b"CONNECT 127.0.0.1:22", b"GET http://127.0.0.1:22/", b"CONNECT localhost:1"):
    with socket.create_connection(("127.0.0.1", port)) as relay:
        relay.sendall(request + b" HTTP/1.1\\r\\n\\r\\n")
        said.append(relay.recv(100).decode().split("\\r")[0].split(" ", 1)[1])
for path in ("/belljar/task/x", "/belljar/kernel/x", "/belljar/relay/x", "/x"):
    try:
        open(path, "w")
        said.append("wrote " + path)
    except OSError:
        pass
print("; ".join(said), file=sys.stderr)
sys.exit(1)
"""


BUILD_SYSTEM = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
# Builds a wheel without any help, and notes in it what it sees where it runs.
BUILDS_ITSELF = """
import os, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    rows = open("/proc/net/dev").read().splitlines()[2:]
    saw = [",".join(sorted(os.listdir("/belljar"))), os.path.isdir("/workspace") and os.listdir("/workspace"), sorted(row.split(":")[0].strip() for row in rows)]
    info = "bell_built-1.0.dist-info/"
    content = {"bell_built.py": "SAW = %r\\n" % (saw,), info + "METADATA": "Metadata-Version: 2.1\\nName: bell-built\\nVersion: 1.0\\n",
               info + "WHEEL": "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"}
    import base64, hashlib
    rows = ["%s,sha256=%s,%d" % (path, base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode(), len(text))
            for path, text in content.items()]
    content[info + "RECORD"] = "\\n".join([*rows, info + "RECORD,,", ""])
    name = "bell_built-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as archive:
        for path, text in content.items():
            archive.writestr(path, text)
    return name
"""
# Puts a package in the place of a module of another one, before that is installed, and builds a wheel that fits nothing.
SETS_A_TRAP = """
import os
os.makedirs("/belljar/output/site/bell_dep/inner", exist_ok=True)
with open("/belljar/output/site/bell_dep/inner/__init__.py", "w") as file:
    file.write("DEEP = 666\\n")
"""
FITS_NOTHING = BUILDS_ITSELF.replace("bell_built", "bell_trap").replace("bell-built", "bell-trap").replace("-1.0", "-2.0")
SETS_A_TRAP += FITS_NOTHING.replace('Version: 1.0\\n"', 'Version: 2.0\\nRequires-Dist: bell-nowhere\\n"')
# An extension module for the stable interface, which needs no headers of a Python.
EXTENSION = """
#include <stddef.h>
typedef struct _object Object;
typedef Object *(*Call)(Object *, Object *);
typedef struct { const char *name; Call call; int flags; const char *doc; } Method;
typedef struct { ptrdiff_t references; void *type; Object *(*init)(void); ptrdiff_t index; Object *copy; } Base;
typedef struct { Base base; const char *name, *doc; ptrdiff_t size; Method *methods; void *slots, *traverse, *clear, *free; } Module;
extern Object *PyModule_Create2(Module *, int);
extern Object *PyLong_FromLong(long);
static Object *answer(Object *self, Object *none) { return PyLong_FromLong(42); }
static Method methods[] = {{"answer", answer, 4, 0}, {0, 0, 0, 0}};
static Module module = {{1, 0, 0, 0, 0}, "bell_native", 0, -1, methods, 0, 0, 0, 0};
Object *PyInit_bell_native(void) { return PyModule_Create2(&module, 3); }
"""


def compiled(folder):
    """A wheel with an extension module, made by the compiler of this machine."""
    source, library = folder / "native.c", folder / "native.so"
    source.write_text(EXTENSION)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    tag = "cp38-abi3-linux_" + platform.machine()
    return wheel("bell-native", "1.0", {"bell_native.abi3.so": library.read_bytes()}, tag=tag)


def wheel(name, version, files, requires=(), scripts=None, modes=None, unlisted=None, tag="py3-none-any"):
    """A wheel with these modules; `unlisted` is the content of some that its list has with another one."""
    plain = name.replace("-", "_")
    info = "{}-{}.dist-info".format(plain, version)
    lines = ["Metadata-Version: 2.1", "Name: " + name, "Version: " + version]
    lines += ["Requires-Dist: " + requirement for requirement in requires]
    content = dict(files)
    content[info + "/METADATA"] = "\n".join(lines) + "\n"
    content[info + "/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: " + tag + "\n"
    if scripts:
        entries = "".join("{} = {}\n".format(*item) for item in scripts.items())
        content[info + "/entry_points.txt"] = "[console_scripts]\n" + entries
    record = ""
    for path, text in content.items():
        packed = text if isinstance(text, bytes) else text.encode()
        digest = base64.urlsafe_b64encode(hashlib.sha256(packed).digest()).rstrip(b"=").decode()
        record += "{},sha256={},{}\n".format(path, digest, len(packed))
    content[info + "/RECORD"] = record + info + "/RECORD,,\n"
    content.update(unlisted or {})
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path, text in content.items():
            member = zipfile.ZipInfo(path)
            member.external_attr = (modes or {}).get(path, 0o100644) << 16
            archive.writestr(member, text)
    return "{}-{}-{}.whl".format(plain, version, tag), packed.getvalue()


def source(name, version, files):
    plain = "{}-{}".format(name.replace("-", "_"), version)
    packed = io.BytesIO()
    files = {"PKG-INFO": "Metadata-Version: 2.1\nName: {}\nVersion: {}\n".format(name, version), **files}
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(plain + "/" + path)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return plain + ".tar.gz", packed.getvalue()


def large(number):
    """A package of many modules, and one that imports them all."""
    name = "bell_many_{}".format(number)
    body = "".join("def f{0}(x):\n    return x + {0}\n".format(place) for place in range(100))
    files = {"{}/m{}.py".format(name, module): body for module in range(300)}
    files[name + "/all.py"] = "".join("from . import m{}\n".format(module) for module in range(300))
    return wheel(name.replace("_", "-"), "1.0", {name + "/__init__.py": "", **files})


def packages(uv, folder, many=0):
    hello = "VERSION = {!r}\ndef main():\n    print('hello', VERSION)\n"
    found = {
        "bell-hello": [
            wheel("bell-hello", version, {"bell_hello.py": hello.format(version)}, ["bell-dep>=1"],
                  {"bell-hello": "bell_hello:main"})
            for version in ("1.0", "2.0")
        ],
        "bell-dep": [wheel("bell-dep", "1.0", {"bell_dep/__init__.py": "", "bell_dep/inner.py": "DEEP = 7\n"})],
        "bell-old": [wheel("bell-old", "1.0", {"bell_old.py": ""}, ["bell-hello<2"])],
        "bell-science": [wheel("bell-science", "1.0", {"bell_science.py": ""}, ["pandas>=2", "scikit-learn"])],
        "bell-denied": [wheel("bell-denied", "1.0", {"bell_denied.py": ""})],
        "bell-needs-denied": [wheel("bell-needs-denied", "1.0", {"bell_needs.py": ""}, ["bell-denied"])],
        "bell-source": [source("bell-source", "1.0", {"setup.py": "open('/tmp/ran', 'w')\n"})],
        "bell-built": [source("bell-built", "1.0", {"backend.py": BUILDS_ITSELF, "pyproject.toml": BUILD_SYSTEM})],
        "bell-trap": [
            wheel("bell-trap", "1.0", {"bell_trap.py": ""}, ["bell-dep"]),
            source("bell-trap", "2.0", {"backend.py": SETS_A_TRAP, "pyproject.toml": BUILD_SYSTEM}),
        ],
        "bell-native": [compiled(folder)],
        "bell-shadow": [
            wheel("bell-shadow", "1.0", {name + ".py": "SHADOW = True\n" for name in ("bell_shadow", "json", "colorsys")})
        ],
        "bell-set-id": [
            wheel("bell-set-id", "1.0", {"bell_set_id/run.sh": "#!/bin/sh\n"}, modes={"bell_set_id/run.sh": 0o106755})
        ],
        "bell-many": [
            wheel("bell-many", "1.0", {"bell_many/m{}.py".format(n): "N = {}\n".format(n) for n in range(3000)})
        ],
        "bell-unlisted": [wheel("bell-unlisted", "1.0", {"bell_unlisted.py": ""}, unlisted={"bell_unlisted.py": "1"})],
        "bell-large": [wheel("bell-large", "1.0", {"bell_large.py": "'''" + "x" * 40_000_000 + "'''"})],
    }
    found.update({"bell-many-{}".format(number): [large(number)] for number in range(many)})
    if uv == "fake":
        name = "uv-9.9.9-py3-none-manylinux_2_17_{0}.manylinux2014_{0}.whl".format(platform.machine())
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("uv-9.9.9.data/scripts/uv", LOOKS_AROUND)
        found["uv"] = [(name, packed.getvalue())]
    elif uv != "none":
        found["uv"] = [(path.name, path.read_bytes()) for path in pathlib.Path(uv).glob("uv-*.whl")]
    return found


def certify(folder):
    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    (folder / "leaf.ext").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
    new = ("req", "-newkey", "rsa:2048", "-nodes")
    openssl(*new, "-x509", "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=test authority")
    openssl(*new, "-keyout", "leaf.key", "-out", "leaf.csr", "-subj", "/CN=localhost")
    openssl("x509", "-req", "-in", "leaf.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out", "leaf.pem",
            "-days", "2", "-extfile", "leaf.ext")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "leaf.pem", folder / "leaf.key")
    return context


def main(folder, uv, many=0):
    folder = pathlib.Path(folder)
    if uv == "fake":
        (folder / "spy").write_text(LOOKS_AROUND)
    original = packages(uv, folder, int(many))
    changed = dict(original)
    changed["bell-dep"] = [wheel("bell-dep", "1.0", {"bell_dep/__init__.py": "", "bell_dep/inner.py": "DEEP = 8\n"})]
    original_files, changed_files = (
        {name: content for versions in found.values() for name, content in versions} for found in (original, changed)
    )

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            with open(folder / "requests", "a") as log:
                log.write(self.path + "\n")
            password = folder / "password"
            if password.exists():
                wanted = "Basic " + base64.b64encode(password.read_bytes()).decode()
                if self.headers.get("Authorization") != wanted:
                    return self.answer(401, b"", "text/plain")
            found, files = (changed, changed_files) if (folder / "changed").exists() else (original, original_files)
            parts = self.path.strip("/").split("/")
            if parts[0] == "simple" and len(parts) == 2 and parts[1] in found:
                base = "https://127.0.0.1:{}".format(port) if (folder / "elsewhere").exists() else "../.."
                links = "".join(
                    '<a href="{2}/files/{0}#sha256={1}">{0}</a>\n'.format(name, hashlib.sha256(content).hexdigest(), base)
                    for name, content in found[parts[1]][: 1 if (folder / "first").exists() else None]
                )
                return self.answer(200, ("<!DOCTYPE html><html><body>" + links + "</body></html>").encode(), "text/html")
            if parts[0] == "files" and parts[-1] in files:
                return self.answer(200, files[parts[-1]], "application/octet-stream")
            return self.answer(404, b"", "text/plain")

        do_HEAD = do_GET

        def answer(self, status, content, kind):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command == "HEAD":
                return
            while kind == "application/octet-stream" and (folder / "slow").exists() and "uv-" not in self.path:
                time.sleep(0.05)
            for at in range(0, len(content), 1 << 20):
                self.wfile.write(content[at : at + (1 << 20)])
                if (folder / "trickle").exists():
                    time.sleep(0.1)

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    # The thread of a connection shakes hands, so that one which says nothing keeps no other waiting.
    server.socket = certify(folder).wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for path in folder.iterdir():
        path.chmod(0o644)
    print(port, flush=True)
    sys.stdin.read()
    os._exit(0)


main(*sys.argv[1:4])
