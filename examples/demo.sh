#!/usr/bin/env bash
# Shows what Belljar does, with a daemon and a home of its own that are gone afterwards.
set -euo pipefail

belljar=$(realpath "${1:-target/release/belljar}")
BELLJAR_HOME=$(mktemp -d)
export BELLJAR_HOME
unset BELLJAR_SOCKET BELLJAR_SESSION BELLJAR_CONFIG
trap '"$belljar" daemon stop --remove >/dev/null 2>&1 || true; rm -rf "$BELLJAR_HOME"' EXIT

say() { printf '\n# %s\n' "$*"; }
show() {
    printf '$ belljar'
    printf ' %q' "$@"
    printf '\n'
    "$belljar" "$@"
}

say 'A session: a sandbox of its own, with variables that live from cell to cell.'
show new demo
show exec -s demo 'readings = [12, 19, 23, 31, 8, 27]'
show exec -s demo 'import statistics; statistics.mean(readings)'

say 'Output streams while the code runs; C code and child processes are seen too.'
show exec -s demo 'import os, subprocess
print("from Python")
os.write(1, b"from the descriptor\n")
subprocess.run(["echo", "from a child"]);'

say 'An exception is a result; the state stays.'
show exec -s demo 'readings[99]' || printf '(exit code %s)\n' $?

say 'An endless loop ends at its deadline.'
show exec -s demo --timeout 1 'while True: pass' || printf '(exit code %s)\n' $?

say 'No network, no way to write but the workspace.'
show exec -s demo 'import socket
print([name for _, name in enumerate(open("/proc/net/dev").read().split()) if name.endswith(":")])
try:
    open("/etc/passwd", "a")
except OSError as error:
    print(error)
open("/workspace/result.txt", "w").write("kept");'
show cp demo:result.txt -
echo

say 'What the sandbox really is, read back from the running container.'
show receipt demo

say 'And away with it.'
show rm demo
