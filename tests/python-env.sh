#!/usr/bin/env bash
# Makes a Python environment with packages that tests need beside the standard library.
# Usage: python-env.sh FOLDER REQUIREMENTS
set -euo pipefail
folder=$1
requirements=$2

# What is installed for the same requirements is good.
cmp --silent "$requirements" "$folder/requirements.txt" && exit

if ! python3 -c 'import ensurepip' 2>/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing: python3-venv" >&2
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update -q && apt-get install -qy --no-install-recommends python3-venv; } >&2 </dev/null
fi
python3 -m venv --clear "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: -r "$requirements"
cp "$requirements" "$folder/requirements.txt"
