"""A registry on loopback with one image: just enough of the distribution API for a pull.

usage: registry.py SAVED_IMAGE_TAR NAME     prints its port; ends with its stdin
"""

import hashlib
import http.server
import json
import os
import sys
import tarfile
import threading

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def main(saved, name):
    blobs = {}

    def add(data, kind):
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": kind, "size": len(data), "digest": digest}

    with tarfile.open(saved) as archive:
        read = lambda path: archive.extractfile(path).read()
        entry = json.loads(read("manifest.json"))[0]
        config = add(read(entry["Config"]), "application/vnd.docker.container.image.v1+json")
        tar = "application/vnd.docker.image.rootfs.diff.tar"
        layers = [add(read(layer), tar) for layer in entry["Layers"]]
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers}
    manifest = json.dumps(manifest).encode()
    manifest_digest = "sha256:" + hashlib.sha256(manifest).hexdigest()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            parts = self.path.strip("/").split("/")
            if parts == ["v2"]:
                self.answer(b"{}", "application/json")
            elif parts[:3] == ["v2", name, "manifests"]:
                self.answer(manifest, MANIFEST)
            elif parts[:3] == ["v2", name, "blobs"] and parts[3] in blobs:
                self.answer(blobs[parts[3]], "application/octet-stream")
            else:
                self.send_error(404)

        do_HEAD = do_GET

        def answer(self, data, kind):
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Docker-Content-Digest", manifest_digest)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()
    os._exit(0)


main(*sys.argv[1:])
