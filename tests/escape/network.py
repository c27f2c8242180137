"""Sockets, interfaces, and services of the host or of the engine that answer."""

import errno
import os
import socket

from probing import REFUSED, X86, Escaped, must_be_refused, probe, probes


def no_socket(family, kind, protocol=0):
    number = 41 if X86 else 198
    return must_be_refused(number, family, kind, protocol, allowed=REFUSED | {errno.EAFNOSUPPORT})


for name, arguments in {
    "alg": (38, 5),
    "alg_with_high_bits": (38 | 1 << 32, 5),
    "vsock": (40, 1),
    "packet": (17, 3),
    "netlink": (16, 3),
    "bluetooth": (31, 3),
    "raw_ipv4": (2, 3, 1),
    "raw_ipv4_with_flags": (2, 3 | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, 255),
    "raw_ipv6": (10, 3, 58),
    "ping": (2, 2, 1),
    "sctp": (2, 1, 132),
    "mptcp": (2, 1, 262),
}.items():
    probes[f"socket_{name}"] = lambda arguments=arguments: no_socket(*arguments)


@probe
def socket_of_any_other_family():
    families = [family for family in range(64) if family not in (1, 2, 10)]
    for family in families:
        for kind in (1, 2, 3, 5):
            try:
                no_socket(family, kind)
            except Escaped as escaped:
                raise Escaped(f"family {family}, kind {kind}: {escaped}") from None
    return f"{len(families)} families refused"


@probe
def socketpair_only_unix():
    return must_be_refused(53 if X86 else 199, 2, 1, 0, 0)


@probe
def interfaces():
    with open("/proc/net/dev") as file:
        names = [line.split(":")[0].strip() for line in file if ":" in line]
    if names not in ([], ["lo"]):
        raise Escaped(f"interfaces: {names}")
    return "only lo"


@probe
def routes():
    with open("/proc/net/route") as file:
        found = [line.split()[0] for line in file.readlines()[1:]]
    try:
        with open("/proc/net/ipv6_route") as file:
            found += [line.split()[-1] for line in file if line.split()[-1] != "lo"]
    except FileNotFoundError:
        pass
    if found:
        raise Escaped(f"routes by {found}")
    return "none"


@probe
def services_of_the_host():
    for port in (22, 80, 443, 2375, 2376, 5000, 8000, 8080):
        with socket.socket() as client:
            client.settimeout(1)
            if client.connect_ex(("127.0.0.1", port)) == 0:
                raise Escaped(f"127.0.0.1:{port} answers")
    return "none answers on 127.0.0.1"


@probe
def abstract_sockets_of_the_host():
    with open("/proc/net/unix") as file:
        names = [line.split()[-1] for line in file if line.split()[-1].startswith("@")]
    names = [name for name in names if name != "@belljar-requests"]  # the guardian's own, for `pip` and `uv`
    if names:
        raise Escaped(", ".join(names))
    return "none"


@probe
def sockets_of_the_engine():
    found = [
        path
        for folder in ("/run", "/var/run", "/tmp", "/workspace", "/belljar")
        for parent, _, files in os.walk(folder)
        for path in (os.path.join(parent, file) for file in files)
        if any(word in path for word in ("docker", "containerd", "podman", "crio"))
    ]
    if found:
        raise Escaped(", ".join(found))
    return "none"
