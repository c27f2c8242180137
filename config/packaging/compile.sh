#!/usr/bin/env bash
# Compiles the binary that is handed out, target/dist/belljar: for glibc 2.28 if the Python that is named has the package
# `ziglang`, else for the C library of this machine.
#
#   compile.sh PYTHON
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${1:?usage: compile.sh PYTHON}
cd "$here/../.."

if "$python" -m ziglang version >/dev/null 2>&1; then
    host=$(rustc -vV | sed -n 's/^host: //p')
    name=${host//-/_}
    export BELLJAR_ZIG=$python
    export "CC_$name=$here/zig-cc.sh" "CARGO_TARGET_${name^^}_LINKER=$here/zig-cc.sh"
else
    echo "note: \`$python\` has no package \`ziglang\`, so the binary needs the glibc of this machine, or a newer one" >&2
fi
exec cargo build --profile dist --locked
