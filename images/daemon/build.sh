#!/usr/bin/env bash
# Builds belljar-daemon, an image for the daemon itself, from belljar/base and a binary.
#
#   build.sh BINARY [TAG]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
binary=${1:?usage: build.sh BINARY [TAG]}
tag=${2:-belljar-daemon}

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
cp "$here/Dockerfile" "$here/start.py" "$context/"
strip -o "$context/belljar" "$binary"
chmod 755 "$context/belljar" "$context/start.py"
DOCKER_BUILDKIT=0 docker build --quiet --force-rm --tag "$tag" "$context"
