#!/bin/sh
# Tests the arithmetic on processors that this machine is not, under qemu's user mode: x86-64 without FMA and AVX, with
# AVX2, with all that qemu has, and 64-bit ARM where its linker is installed. Every kernel is compared with its
# definition, and the golden hashes must hold.
#
#     sh tests/emulated.sh                  # all processors, about a minute each once built
#     sh tests/emulated.sh Westmere Haswell # only these (names of `qemu-x86_64 -cpu help`, or `aarch64`)
#
# Needs Debian's qemu-user, and for ARM `rustup target add aarch64-unknown-linux-gnu` and gcc-aarch64-linux-gnu.
set -eu
cd "$(dirname "$0")/.."

if ! command -v qemu-x86_64 >/dev/null; then
    echo "qemu-x86_64 is missing: install Debian's package qemu-user" >&2
    exit 1
fi

messages=$(mktemp)
trap 'rm -f "$messages"' EXIT

# build TARGET: fills $binaries with the test programs.
build() {
    binaries=$(cargo test --release --locked --package muster-compute --lib --tests --no-run \
        --target "$1" --target-dir target/emulated --message-format=json-render-diagnostics |
        sed -n 's/.*"profile":{[^}]*"test":true.*"executable":"\([^"]*\)".*/\1/p')
    if [ -z "$binaries" ]; then
        echo "no test program was built for $1" >&2
        exit 1
    fi
}

# run LABEL EMULATOR...: runs every test program; the emulator's warnings are shown only where one fails.
run() {
    label=$1
    shift
    for binary in $binaries; do
        # Learning and numerical gradients say nothing about a processor and take long.
        case $(basename "$binary") in exact-*) only='agreement families' ;; *) only= ;; esac
        echo "$label: $(basename "$binary") $only"
        if ! "$@" "$binary" --quiet $only 2>"$messages"; then
            cat "$messages" >&2
            exit 1
        fi
    done
}

processors=${*:-Westmere SandyBridge Haswell EPYC max aarch64}
built=
for processor in $processors; do
    if [ "$processor" = aarch64 ]; then
        if ! command -v aarch64-linux-gnu-gcc >/dev/null; then
            echo "aarch64: not run, it needs Debian's packages gcc-aarch64-linux-gnu and libc6-dev-arm64-cross" >&2
            [ $# -eq 0 ] && continue
            exit 1
        fi
        export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
        build aarch64-unknown-linux-gnu
        built=
        run aarch64 qemu-aarch64 -L /usr/aarch64-linux-gnu
    else
        # Baseline x86-64: no flag of the caller may promise more.
        [ -n "$built" ] || RUSTFLAGS='-C target-cpu=x86-64' build x86_64-unknown-linux-gnu
        built=yes
        run "$processor" qemu-x86_64 -cpu "$processor"
    fi
done
echo "all golden hashes hold"
