#!/usr/bin/env bash
# Installs what a fresh Debian or Ubuntu system lacks: system packages, a running container engine, the images. A user
# other than root is only told what is missing. With --or-jail no engine is needed if there is bubblewrap.
# Usage: setup.sh [--or-jail] [base] [science]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

fail() {
    echo "error: $1" >&2
    [ -z "${2:-}" ] || echo "hint: $2" >&2
    exit 1
}

or_jail=no
if [ "${1:-}" = --or-jail ]; then
    or_jail=yes
    shift
fi

# rustup puts cargo where a shell without a login does not look.
export PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin

engine_answers() {
    if command -v docker >/dev/null; then
        docker version >/dev/null 2>&1
    else
        [[ ${DOCKER_HOST:=unix:///var/run/docker.sock} = unix://* ]] &&
            curl --silent --fail --unix-socket "${DOCKER_HOST#unix://}" http://engine/_ping >/dev/null
    fi
}

missing=()
command -v cc >/dev/null || missing+=(build-essential)
command -v curl >/dev/null || missing+=(curl ca-certificates)
command -v python3 >/dev/null || missing+=(python3)
command -v bwrap >/dev/null || missing+=(bubblewrap)
if [ $or_jail = no ]; then
    # For tests of terminals.
    command -v tmux >/dev/null || missing+=(tmux)
    command -v less >/dev/null || missing+=(less)
    command -v vi >/dev/null || missing+=(vim-tiny)
fi
if [ "${BELLJAR_TEST_NO_DOCKER:-}" != 1 ] && [ $or_jail = no ] && ! engine_answers; then
    # An engine that is stopped, or that this user may not use, is reported by the message below.
    command -v docker >/dev/null || [ -x /usr/sbin/dockerd ] || [ -n "${DOCKER_HOST:-}" ] || missing+=(docker.io)
fi

if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        fail "missing on this machine: ${missing[*]}" "run \`apt-get install ${missing[*]}\` as root"
    fi
    echo "installing: ${missing[*]}" >&2
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update -q && apt-get install -qy --no-install-recommends "${missing[@]}"; } >&2 </dev/null
fi

command -v cargo >/dev/null ||
    fail "cargo is not installed" "get Rust 1.88 or newer with rustup; Debian 13 and Ubuntu 24.04 have it: \`apt-get install rustup && rustup default stable\`"

if [ "${BELLJAR_TEST_NO_DOCKER:-}" = 1 ]; then
    echo "warning: BELLJAR_TEST_NO_DOCKER=1: no engine and no images; NOTHING THAT NEEDS A CONTAINER IS TESTED" >&2
    exit
fi

if ! engine_answers && [ "$(id -u)" = 0 ] && [ -z "${DOCKER_HOST:-}" ] && command -v service >/dev/null; then
    echo "starting the container engine" >&2
    service docker start >&2 || true
    for _ in {1..20}; do engine_answers || sleep 1; done
fi
if [ $or_jail = yes ] && ! engine_answers; then
    echo "no container engine answers: sessions run in jails that bubblewrap builds" >&2
    exit
fi
engine_answers ||
    fail "no container engine answers at ${DOCKER_HOST:-unix:///var/run/docker.sock}" \
        "start it with \`systemctl start docker\` or \`service docker start\`; a user other than root has to be in the \`docker\` group"

for image; do
    "$here/build.sh" --if-missing "$image" >/dev/null
done
