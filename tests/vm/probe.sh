#!/usr/bin/env bash
# Runs inside of the virtual machine, as root. Each check is a line: ok or FAILED.
set -uo pipefail
export NO_COLOR=1 HOME=/root
failed=0

# check WHAT PATTERN COMMAND…: its output has to match.
check() {
    local what=$1 pattern=$2 said
    shift 2
    said=$("$@" 2>&1)
    if grep -q -E -- "$pattern" <<<"$said"; then
        echo "ok     $what"
    else
        echo "FAILED $what"
        sed 's/^/     /' <<<"$said"
        failed=1
    fi
}

# works WHAT COMMAND…: it has to exit with 0.
works() {
    local what=$1 said
    shift
    if said=$("$@" 2>&1); then
        echo "ok     $what"
    else
        echo "FAILED $what"
        sed 's/^/     /' <<<"$said"
        failed=1
    fi
}

# What every kind of sandbox has to do; the user's command line is before it.
cells() {
    local kind=$1 name=$2
    shift 2
    local bomb='b = [bytearray(10**7) for _ in range(1000)]'
    works "$kind: a session" "$@" new "$name" --memory 256M --backend "$backend"
    works "$kind: a variable is set" "$@" exec -s "$name" 'x = 41'
    check "$kind: and is there in the next cell" '^42$' "$@" exec -s "$name" 'x + 1'
    check "$kind: the group is of version 2" 'cgroup +(version 2|none of its own)' "$@" receipt "$name"
    check "$kind: a memory bomb is told" 'more memory than the session has' "$@" exec -s "$name" --timeout 300 "$bomb"
    check "$kind: an endless loop is told" 'ran longer than' "$@" exec -s "$name" --timeout 5 'while True: pass'
    check "$kind: the state came back" '^42$' "$@" exec -s "$name" 'x + 1'
    works "$kind: it can be frozen" "$@" freeze "$name"
    works "$kind: and thawed" "$@" thaw "$name"
    check "$kind: and goes on" '^42$' "$@" exec -s "$name" 'x + 1'
}

as_bob=(runuser -u bob -- env NO_COLOR=1 HOME=/home/bob BELLJAR_SOCKET=/run/belljar/belljar.sock belljar)

# The workspace may hold 64 MiB; the kernel says so before any watch does.
quotas() {
    local system=$1 backends=$2
    echo "==> project quotas on $system"
    local half='f = open("a", "wb"); f.write(bytes(40 << 20)); f.flush()'
    local hidden='import os; os.unlink("a"); g = open("b", "wb"); g.write(bytes(40 << 20))'
    # Two files, as one of more than 64 MiB is refused for its own size.
    local much='for name in "ab": open("/data/" + name, "wb").write(bytes(40 << 20))'
    # All that the daemon makes is in a project of the administrator's at first.
    works "an administrator bounds the daemon's home" chattr -p 7 +P /var/lib/belljar
    systemctl enable -q --now belljar.socket
    check "the doctor knows of them" 'the kernel bounds workspaces' env BELLJAR_HOME=/var/lib/belljar belljar doctor
    for backend in $backends; do
        works "$backend: a session" "${as_bob[@]}" new q --backend "$backend"
        works "$backend: what fits is written" "${as_bob[@]}" exec -s q "$half"
        check "$backend: what does not is refused, also beside what is deleted and open" \
            'Disk quota exceeded|No space left on device' "${as_bob[@]}" exec -s q "$hidden"
        check "$backend: the session goes on" '^2$' "${as_bob[@]}" exec -s q '1 + 1'
        works "$backend: it is removed" "${as_bob[@]}" rm q
        works "$backend: a volume" "${as_bob[@]}" volume create v
        works "$backend: a session has it" "${as_bob[@]}" new q --backend "$backend" --volume v:/data
        check "$backend: the kernel bounds it" 'Disk quota exceeded|No space left on device' \
            "${as_bob[@]}" exec -s q "$much"
        works "$backend: the session is removed" "${as_bob[@]}" rm q
        works "$backend: and the volume" "${as_bob[@]}" volume rm v
    done
    systemctl stop belljar.socket belljar.service
}

all_quotas() {
    quotas ext4 "$1"
    umount /var/lib/belljar && mount -t xfs -o pquota /dev/vdc /var/lib/belljar
    quotas xfs "$1"
}

engine_and_jails() {
    echo "==> cgroup v2 with an engine, as root"
    check "the machine has cgroup v2" cgroup2fs stat -fc %T /sys/fs/cgroup
    check "the image is loaded" belljar/base docker load -i /root/base.tar
    systemctl enable -q --now belljar.socket
    backend=docker cells "container" c belljar

    echo "==> jails of the system daemon, for a user"
    backend=bubblewrap cells "jail" j "${as_bob[@]}"
    check "others do not see it" 'no sessions' runuser -u ann -- env NO_COLOR=1 HOME=/home/ann BELLJAR_SOCKET=/run/belljar/belljar.sock belljar ps
    systemctl kill -s KILL belljar.service
    sleep 5
    check "a killed service finds the jail again" '^42$' "${as_bob[@]}" exec -s j 'x + 1'
    systemctl restart belljar.service
    check "and a restarted one the container" '^42$' belljar exec -s c 'x + 1'
    check "sessions are removed" j "${as_bob[@]}" rm j
    works "all stops" belljar daemon stop --remove
    systemctl stop belljar.socket belljar.service
    check "no control group is left" '^0$' sh -c 'find /sys/fs/cgroup/belljar -mindepth 1 -type d 2>/dev/null | wc -l'
}

ordinary_user() {
    echo "==> an ordinary user with a manager of systemd"
    loginctl enable-linger ann
    as_ann=(runuser -u ann -- env NO_COLOR=1 HOME=/home/ann XDG_RUNTIME_DIR="/run/user/$(id -u ann)" DOCKER_HOST="unix:///run/user/$(id -u ann)/docker.sock")
    until [ -S "/run/user/$(id -u ann)/bus" ]; do sleep 1; done
    backend=bubblewrap cells "own jail" j "${as_ann[@]}" belljar
    install -m 644 /root/base.tar /home/ann/base.tar
    works "a rootless engine starts" "${as_ann[@]}" rootless.sh
    backend=docker cells "rootless container" r "${as_ann[@]}" belljar
    check "its files are the user's" ann "${as_ann[@]}" sh -c 'stat -c %U ~/.local/state/belljar/w/*'
    works "all of the user's stops" "${as_ann[@]}" belljar daemon stop --remove
}

# What was not compiled here: the Debian package, by which all of the above is installed, and the wheel.
packages() {
    echo "==> packages, on a machine without Rust"
    works "there is no Rust" sh -c '! command -v cargo && ! command -v rustc'
    check "the command is the package's" '^belljar: /usr/bin/belljar$' dpkg -S /usr/bin/belljar
    check "the package made its group" '^belljar:' getent group belljar
    works "its files are as they were packed, but for settings" sh -c '! dpkg --verify belljar | grep -v " c /"'
    loginctl enable-linger eve
    until [ -S "/run/user/$(id -u eve)/bus" ]; do sleep 1; done
    install -d -o eve /home/eve/packages
    install -o eve -m 644 /root/packages/* /home/eve/packages/
    # She is in no group that may use the daemon of the machine, and has no engine.
    as_eve=(runuser -u eve -- env -C /home/eve NO_COLOR=1 HOME=/home/eve XDG_RUNTIME_DIR="/run/user/$(id -u eve)" DOCKER_HOST=unix:///nonexistent PATH=/home/eve/env/bin:/bin)
    works "the package's command finds the machine well" "${as_eve[@]}" /usr/bin/belljar doctor
    works "and runs code in a jail of hers" "${as_eve[@]}" /usr/bin/belljar run - <<<'print(6 * 7)'
    works "its daemon stops" "${as_eve[@]}" /usr/bin/belljar daemon stop --remove
    works "an environment" "${as_eve[@]}" python3 -m venv env
    works "pip installs the wheel" "${as_eve[@]}" sh -c 'pip install --disable-pip-version-check packages/*.whl'
    check "the command is the wheel's" '^/home/eve/env/bin/belljar$' "${as_eve[@]}" sh -c 'command -v belljar'
    check "the doctor finds it well" 'Belljar works here' "${as_eve[@]}" belljar doctor
    check "the tutorial runs" '^done$' "${as_eve[@]}" python packages/tutorial.py
    works "all of hers stops" "${as_eve[@]}" belljar daemon stop --remove
    works "an upgrade with the same package" dpkg --install /root/packages/*.deb
    works "a removal" dpkg --remove belljar
    check "it leaves no unit" '^not-found$' systemctl show -P LoadState belljar.service
    works "a purge" dpkg --purge belljar
    check "it leaves no state" '^0$' sh -c 'find /etc/belljar /var/lib/belljar -mindepth 1 2>/dev/null | wc -l'
}

case $(grep -o 'belljar.part=[a-z]*' /proc/cmdline) in
*=quotas) all_quotas bubblewrap ;;
*=packages) packages ;;
*)
    engine_and_jails
    all_quotas 'docker bubblewrap'
    ordinary_user
    packages
    ;;
esac

[ "$failed" = 0 ] && echo "all of it holds"
