"""A package index on loopback with a certificate of its own and tiny packages.

usage: package_index.py FOLDER UV [MANY]     prints its port; ends with its stdin

`ca.pem` in FOLDER is the authority to trust; `requests` there has a line for every request. UV is a folder with a wheel
of `uv`, `fake` for one that looks around in its sandbox instead of installing anything, and is in FOLDER as `spy`, too, or
`none`. While FOLDER has a file
`slow`, files are not sent to their end. While it has a file `password`, only requests with what it says (`user:password`)
are answered. While it has a file `changed`, `bell-dep` has other content under the same version. MANY packages of 300
modules each, `bell-many-0` and so on, are there for benchmarks.
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
import glob, os, socket, sys
if sys.argv[1:] == ["--version"]:
    print("uv 9.9.9")
    sys.exit()
said = []
for path in ("/workspace", "/belljar/bridge", "/belljar/packages", "/run/docker.sock", "/var/run/docker.sock"):
    said.append("%s=%s" % (path, os.path.exists(path) and (not os.path.isdir(path) or bool(os.listdir(path)))))
said.append("belljar=%s" % ",".join(sorted(os.listdir("/belljar"))))
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


def wheel(name, version, files, requires=(), scripts=None, modes=None, unlisted=None):
    """A wheel with these modules; `unlisted` is the content of some that its list has with another one."""
    plain = name.replace("-", "_")
    info = "{}-{}.dist-info".format(plain, version)
    lines = ["Metadata-Version: 2.1", "Name: " + name, "Version: " + version]
    lines += ["Requires-Dist: " + requirement for requirement in requires]
    content = dict(files)
    content[info + "/METADATA"] = "\n".join(lines) + "\n"
    content[info + "/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    if scripts:
        entries = "".join("{} = {}\n".format(*item) for item in scripts.items())
        content[info + "/entry_points.txt"] = "[console_scripts]\n" + entries
    record = ""
    for path, text in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += "{},sha256={},{}\n".format(path, digest, len(text.encode()))
    content[info + "/RECORD"] = record + info + "/RECORD,,\n"
    content.update(unlisted or {})
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path, text in content.items():
            member = zipfile.ZipInfo(path)
            member.external_attr = (modes or {}).get(path, 0o100644) << 16
            archive.writestr(member, text)
    return "{}-{}-py3-none-any.whl".format(plain, version), packed.getvalue()


def source(name, version):
    plain = "{}-{}".format(name.replace("-", "_"), version)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path, text in (("PKG-INFO", "Metadata-Version: 2.1\nName: {}\nVersion: {}\n".format(name, version)),
                           ("setup.py", "open('/tmp/ran', 'w')\n")):
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


def packages(uv, many=0):
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
        "bell-source": [source("bell-source", "1.0")],
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

    (folder / "leaf.ext").write_text("subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\n")
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
    original = packages(uv, int(many))
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
                links = "".join(
                    '<a href="../../files/{0}#sha256={1}">{0}</a>\n'.format(name, hashlib.sha256(content).hexdigest())
                    for name, content in found[parts[1]]
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
            self.wfile.write(content)

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = certify(folder).wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for path in folder.iterdir():
        path.chmod(0o644)
    print(server.server_address[1], flush=True)
    sys.stdin.read()
    os._exit(0)


main(*sys.argv[1:4])
