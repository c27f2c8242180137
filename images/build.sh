#!/usr/bin/env bash
# Builds belljar/base or belljar/science in the container engine, from python:3.12 where a registry answers, else from
# Debian packages. Progress goes to stderr; the last line on stdout is the image's id.
set -euo pipefail
shopt -s inherit_errexit

usage() {
    cat >&2 <<'USAGE'
usage: build.sh [--if-missing | --rootfs DIR] base|science

  --if-missing   do nothing if the image is there already
  --rootfs DIR   make a folder for jails instead, from Debian packages and without an engine

  BELLJAR_IMAGE_SOURCE    registry, debian or auto (the default: debian if no registry answers)
  BELLJAR_PYTHON_IMAGE    image to start from instead of python:3.12-slim
  BELLJAR_DEBIAN_MIRROR   mirror to use instead of Debian's own
  DOCKER_HOST             the engine, as for the docker command
USAGE
    exit 64
}

# fail MESSAGE [HINT]
fail() {
    echo "error: $1" >&2
    [ -z "${2:-}" ] || echo "hint: $2" >&2
    exit 1
}

step() { echo "step $1: $2" >&2; }

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if_missing=no kind='' rootfs=
while [ $# -gt 0 ]; do
    case $1 in
        --if-missing) if_missing=yes ;;
        --rootfs) rootfs=${2:?} && shift ;;
        base | science) kind=$1 ;;
        *) usage ;;
    esac
    shift
done
[ -n "$kind" ] || usage

tag=belljar/$kind:latest
source=${BELLJAR_IMAGE_SOURCE:-auto}
python_image=${BELLJAR_PYTHON_IMAGE:-python:3.12-slim}
debian_suite=trixie
# /tmp is in memory on many hosts, and a whole root file system passes through here.
export TMPDIR=${TMPDIR:-/var/tmp}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# --- The engine (not for a folder): through the docker command, or by its API with curl where there is no such command. ---------------

if [ -n "$rootfs" ]; then
    :
elif command -v docker >/dev/null; then
    engine_answers() { docker version >/dev/null 2>"$scratch/error"; }
    image_id() { docker image inspect --format '{{.Id}}' "$1" 2>/dev/null; }
    tag_image() { docker tag "$1" "$tag"; }
    # A registry that does not answer must not cost minutes.
    registry_answers() { timeout 20 docker manifest inspect "$python_image" >/dev/null 2>&1; }

    # import_root CHANGE...: reads a tar of a root file system, prints the id
    import_root() {
        local change args=()
        for change; do args+=(--change "$change"); done
        docker import "${args[@]}" -
    }

    # build_context DIR: prints the id
    build_context() {
        local name args=()
        for name in http_proxy https_proxy no_proxy PIP_INDEX_URL; do
            [ -z "${!name:-}" ] || args+=(--build-arg "$name")
        done
        DOCKER_BUILDKIT=0 docker build --force-rm --target "$kind" --build-arg "PYTHON_IMAGE=$python_image" "${args[@]}" \
            --iidfile "$scratch/id" "$1" >&2 &&
            cat "$scratch/id"
    }
else
    command -v curl >/dev/null || fail "neither docker nor curl is installed" "install one of them, e.g. \`apt-get install curl\`"
    case ${DOCKER_HOST:=unix:///var/run/docker.sock} in
        unix://*) address=(--unix-socket "${DOCKER_HOST#unix://}" http://engine) ;;
        tcp://*) address=("http://${DOCKER_HOST#tcp://}") ;;
        *) fail "cannot talk to \`$DOCKER_HOST\` without the docker command" "install it, or set DOCKER_HOST to unix://… or tcp://…" ;;
    esac

    # api PATH [CURL OPTION...]
    api() {
        local path=$1
        shift
        curl --silent --show-error --fail-with-body "$@" "${address[@]:0:${#address[@]}-1}" "${address[-1]}$path"
    }
    encode() {
        local LC_ALL=C text=$1 i char
        for ((i = 0; i < ${#text}; i++)); do
            char=${text:i:1}
            case $char in [a-zA-Z0-9._~-]) printf %s "$char" ;; *) printf '%%%02X' "'$char" ;; esac
        done
    }
    # The engine answers 200 before it starts to work, and reports failures in the stream.
    last_id() {
        tee "$scratch/answer" | sed -u 's/^{"stream":"\(.*\)"}\r*$/\1/; s/\\n$//; /^$/d' >&2
        ! grep -q '"error"' "$scratch/answer" || return 1
        grep -o 'sha256:[0-9a-f]\{64\}' "$scratch/answer" | tail -n 1
    }

    engine_answers() { api /_ping >/dev/null 2>"$scratch/error"; }
    image_id() { api "/images/$1/json" 2>/dev/null | grep -o 'sha256:[0-9a-f]\{64\}' | head -n 1; }
    tag_image() { api "/images/$1/tag?repo=${tag%:*}&tag=${tag#*:}" --request POST; }
    registry_answers() { api "/distribution/$python_image/json" --max-time 20 >/dev/null 2>&1; }

    import_root() {
        local change query=
        for change; do query+="&changes=$(encode "$change")"; done
        api "/images/create?fromSrc=-$query" --request POST --upload-file - --header 'Content-Type: application/x-tar' | last_id
    }

    build_context() {
        local name json="\"PYTHON_IMAGE\":\"$python_image\""
        for name in http_proxy https_proxy no_proxy PIP_INDEX_URL; do
            [ -z "${!name:-}" ] || json+=",\"$name\":\"${!name}\""
        done
        tar -C "$1" -c . | api "/build?forcerm=1&target=$kind&buildargs=$(encode "{$json}")" --request POST --upload-file - \
            --header 'Content-Type: application/x-tar' | last_id
    }
fi

# --- The two ways to an image ---------------------------------------------------------------------------------------

from_registry() {
    step 2/4 "gathering the files"
    mkdir "$scratch/context"
    cp "$here"/{Dockerfile,finish.sh,matplotlibrc,science-requirements.txt} "$scratch/context/"
    # Behind a proxy that re-signs traffic pip needs the host's certificates; only a stage that is thrown away sees them.
    local certificates=${PIP_CERT:-${SSL_CERT_FILE:-/dev/null}}
    cat "$certificates" >"$scratch/context/ca.pem"
    step 3/4 "building from $python_image"
    build_context "$scratch/context" ||
        fail "could not build $tag from $python_image" "BELLJAR_IMAGE_SOURCE=debian builds it without a registry"
}

need_mmdebstrap() {
    command -v mmdebstrap >/dev/null && [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] && return
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        { apt-get update -q && apt-get install -qy --no-install-recommends mmdebstrap debian-archive-keyring; } >&2 </dev/null && return
    fi
    fail "no registry answers, and \`mmdebstrap\`, which builds the image from Debian packages, is missing" \
        "run \`apt-get install mmdebstrap debian-archive-keyring\` as root, or make \`$python_image\` available with \`docker pull\`"
}

# Files of packages belong to several users, so a user other than root needs a range of further user ids.
need_user_ids() {
    local me
    me=$(id -un 2>/dev/null) || me=$(id -u)
    [ "$(id -u)" = 0 ] && return
    command -v newuidmap >/dev/null && grep -q "^$me:" /etc/subuid && grep -q "^$me:" /etc/subgid && return
    fail "only root, or a user with a range of further user ids, can unpack Debian's packages" \
        "run \`apt-get install uidmap\` and \`usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $me\` as root"
}

# fetch_uv: leaves a `uv` for the image in $scratch/uv, from where the host's pip gets its packages
fetch_uv() {
    local wheels=$scratch/wheels
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --platform "manylinux2014_$(uname -m)" --dest "$wheels" uv >&2 </dev/null || return 1
    python3 - "$wheels"/uv-*.whl "$scratch/uv" <<'PYTHON'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel, open(sys.argv[2], "wb") as program:
    program.write(wheel.read(next(name for name in wheel.namelist() if name.endswith(".data/scripts/uv"))))
PYTHON
    chmod 755 "$scratch/uv"
}

# unpack_debian: leaves a root file system in $scratch/root.tar
unpack_debian() {
    need_user_ids
    need_mmdebstrap
    # Wheels of packages in C++ take the library from the system, and the public image has it.
    local packages=python3,ca-certificates,libstdc++6
    [ "$kind" = base ] || packages+=,$(grep -v '^#' "$here/science-packages.txt" | paste -sd,)

    local uv=()
    if fetch_uv; then
        # shellcheck disable=SC2016
        uv=(--customize-hook='mkdir -p "$1/usr/libexec/belljar"' --customize-hook="copy-in '$scratch/uv' /usr/libexec/belljar")
    else
        echo "note: uv cannot be fetched with the host's pip, so the image has none; the daemon fetches one later" >&2
    fi

    step 2/4 "unpacking Debian's Python ($kind)"
    # The hooks get the new root as $1. Its resolv.conf and hostname are copies of the host's.
    # shellcheck disable=SC2016
    mmdebstrap --quiet --variant=essential --include="$packages" \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
        --customize-hook='mkdir -p "$1/usr/share/belljar/matplotlib"' \
        --customize-hook="copy-in '$here/matplotlibrc' /usr/share/belljar/matplotlib" \
        "${uv[@]}" \
        --customize-hook="copy-in '$here/finish.sh' /tmp" \
        --customize-hook="chroot \"\$1\" sh /tmp/finish.sh $kind" \
        --customize-hook='rm -f "$1/etc/resolv.conf" "$1/etc/hostname"' \
        --skip=cleanup/apt,cleanup/mmdebstrap \
        "$debian_suite" - ${BELLJAR_DEBIAN_MIRROR:+"$BELLJAR_DEBIAN_MIRROR"} >"$scratch/root.tar" ||
        fail "could not unpack Debian's packages" "what went wrong is said above; is a mirror reachable?"

}

from_debian() {
    unpack_debian
    step 3/4 "importing $(du -m "$scratch/root.tar" | cut -f 1) MB into the engine"
    import_root 'ENV PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8' 'WORKDIR /workspace' 'USER 65534:65534' \
            'CMD ["python3"]' "LABEL org.belljar.source=debian org.belljar.kind=$kind" <"$scratch/root.tar" ||
        fail "the engine could not import the image"
}

# --- ----------------------------------------------------------------------------------------------------------------

if [ -n "$rootfs" ]; then
    step 1/4 "taking the packages from Debian"
    unpack_debian
    step 3/4 "unpacking $(du -m "$scratch/root.tar" | cut -f 1) MB"
    mkdir -p "$(dirname "$rootfs")"
    draft=$rootfs.draft
    rm -rf "$draft"
    mkdir "$draft"
    # Devices are not needed, and only root could make them.
    tar -x -C "$draft" --exclude='./dev/*' --no-same-owner -f "$scratch/root.tar"
    chmod 755 "$draft"
    # The old folder is removed only now, so that a build that fails leaves it in place.
    step 4/4 "putting it in place"
    rm -rf "$rootfs"
    mv "$draft" "$rootfs"
    echo "$rootfs"
    exit
fi

engine_answers || fail "the container engine does not answer: $(tail -n 1 "$scratch/error")" \
    "start it (\`systemctl start docker\`), or set DOCKER_HOST, or join the \`docker\` group"

if [ $if_missing = yes ] && image_id "$tag"; then
    exit
fi

case $source in
    auto)
        step 1/4 "looking for $python_image"
        if image_id "$python_image" >/dev/null || registry_answers; then source=registry; else source=debian; fi
        ;;
    registry | debian) step 1/4 "taking the image from: $source" ;;
    *) fail "BELLJAR_IMAGE_SOURCE is \`$source\`" "use registry, debian or auto" ;;
esac

id=$("from_$source")
[ -n "$id" ] || fail "the engine gave no id for $tag"

# The tag moves only now, so that a build that fails leaves the old image in place.
step 4/4 "tagging $tag"
tag_image "$id"
echo "$id"
