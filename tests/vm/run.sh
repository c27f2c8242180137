#!/usr/bin/env bash
# What the host's own kernel may not offer: cgroup v2, systemd's units and user managers, a rootless
# engine, project quotas. A virtual machine without a network and without Rust boots, runs probe.sh and is thrown away. Belljar
# is installed there from its Debian package; one user has the wheel instead.
#
#   tests/vm/run.sh BELLJAR [PART]   (root, for mmdebstrap; minutes with KVM, half an hour without; MATURIN packs)
set -euo pipefail

belljar=$(realpath "${1:?usage: tests/vm/run.sh BELLJAR [PART]}")
part=${2:-all}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# Emulated processors are some thirty times slower.
readonly LIMIT_S=3600
readonly PACKAGES=linux-image-cloud-amd64,systemd-sysv,dbus-user-session,libpam-systemd,docker.io,docker-cli,apparmor,iproute2,iptables,bubblewrap,e2fsprogs,python3,python3-venv,ca-certificates,uidmap,slirp4netns,rootlesskit,procps,login,udev

missing=()
for tool in qemu-system-x86_64:qemu-system-x86 mmdebstrap:mmdebstrap mke2fs:e2fsprogs mkfs.xfs:xfsprogs strip:binutils; do
    command -v "${tool%%:*}" >/dev/null || missing+=("${tool##*:}")
done
if [ ${#missing[@]} -gt 0 ]; then
    [ "$(id -u)" = 0 ] || { echo "error: missing: ${missing[*]}; run \`apt-get install ${missing[*]}\` as root" >&2; exit 1; }
    apt-get install -qy --no-install-recommends "${missing[@]}" >/dev/null </dev/null
fi

work=$(mktemp -d)
qemu=
trap '[ -z "$qemu" ] || kill "$qemu" 2>/dev/null || true; rm -rf "$work"' EXIT
root=$work/root

echo "==> the machine's disk"
mmdebstrap --quiet --variant=minbase --include="$PACKAGES" trixie "$root"
cp -L "$root"/boot/vmlinuz-* "$work/vmlinuz"
cp -L "$root"/boot/initrd.img-* "$work/initrd"
"$here/../../config/packaging/pack.py" "$belljar" "$work/packages" --maturin "${MATURIN:-maturin}"
mkdir "$root/root/packages"
cp "$work"/packages/*.{deb,whl} "$here/../../sdk/python/examples/tutorial.py" "$root/root/packages/"
chroot "$root" sh -c 'dpkg --install /root/packages/*.deb'
docker save belljar/base -o "$root/root/base.tar"
install -m 755 "$here/probe.sh" "$here/rootless.sh" "$root/usr/local/bin/"
chroot "$root" useradd -m -s /bin/bash -G belljar ann
chroot "$root" useradd -m -s /bin/bash -G belljar bob
chroot "$root" useradd -m -s /bin/bash eve
printf '%s\n' '/dev/vda / ext4 defaults 0 1' '/dev/vdb /var/lib/belljar ext4 prjquota 0 2' > "$root/etc/fstab"
mkdir -p "$root/var/lib/belljar" "$root/etc/belljar"
printf '[sandbox]\nworkspace = "64MiB"\n[pool]\nsize = 0\n' > "$root/etc/belljar/config.toml"
cat > "$root/etc/systemd/system/probe.service" <<'UNIT'
[Unit]
After=multi-user.target docker.service
[Service]
Type=oneshot
ExecStart=/usr/local/bin/probe.sh
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
ExecStopPost=/usr/bin/systemctl poweroff --no-block
UNIT
mkdir -p "$root/etc/systemd/system/default.target.wants"
ln -s ../probe.service "$root/etc/systemd/system/default.target.wants/probe.service"
truncate -s 4G "$work/disk"
mke2fs -q -t ext4 -d "$root" "$work/disk"
truncate -s 6G "$work/quota"
mke2fs -q -t ext4 -O quota,project -E quotatype=prjquota "$work/quota"
truncate -s 6G "$work/quota-xfs"
mkfs.xfs -q "$work/quota-xfs"

echo "==> the machine"
accel=tcg,thread=multi
grep -q -E 'vmx|svm' /proc/cpuinfo && [ -w /dev/kvm ] && accel=kvm
timeout "$LIMIT_S" qemu-system-x86_64 -accel "$accel" -cpu max -smp 2 -m 4096 -nic none -display none -no-reboot \
    -kernel "$work/vmlinuz" -initrd "$work/initrd" -append 'root=/dev/vda rw console=ttyS0 quiet belljar.part='"$part" \
    -drive "file=$work/disk,if=virtio,format=raw,cache=unsafe" \
    -drive "file=$work/quota,if=virtio,format=raw,cache=unsafe" \
    -drive "file=$work/quota-xfs,if=virtio,format=raw,cache=unsafe" -serial "file:$work/console" &
qemu=$!
tail -q --pid="$qemu" -F "$work/console" 2>/dev/null | stdbuf -oL tr -d '\r' | grep --line-buffered -a -E '^(ok|FAILED|==>|     |all of)' || true
wait "$qemu" || true
grep -a -q '^all of it holds' "$work/console" || { echo "error: a probe failed" >&2; cp "$work/console" /tmp/belljar-vm-console; echo "hint: the console is /tmp/belljar-vm-console" >&2; exit 1; }
