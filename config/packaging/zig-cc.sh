#!/usr/bin/env bash
# A C compiler and linker that makes programs for glibc 2.28 (Debian 10, RHEL 8, Ubuntu 18.10 and all that is newer), whatever
# the machine has that compiles: zig brings along what it needs of that library. Cargo calls it for the C in the crates, and
# to link. What is static needs no baseline, and zig links no static glibc: the machine's own compiler does that.
#
#   BELLJAR_ZIG=…/python zig-cc.sh ARGUMENT…      (a Python that has the package `ziglang`)
set -euo pipefail
readonly BASELINE=2.28

arguments=()
for argument; do
    case $argument in
        -static | -static-pie) exec cc "$@" ;;
        # Rust's name of the target is not zig's, which is given below.
        --target=*) ;;
        # zig has no libgcc; its libunwind has the same functions, linked in.
        -lgcc_s) arguments+=(-lunwind) ;;
        -lgcc_eh) ;;
        # A library may do what the standard leaves open; zig's checks of that need a runtime that nobody links.
        -c) arguments+=(-c -fno-sanitize=all) ;;
        *) arguments+=("$argument") ;;
    esac
done
exec "$BELLJAR_ZIG" -m ziglang cc -target "$(uname -m)-linux-gnu.$BASELINE" "${arguments[@]}"
