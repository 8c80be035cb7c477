#!/bin/sh
# Tests what computes on devices by OpenCL, where there may be no graphics processor: pocl, an OpenCL for processors, stands
# in for one. The crate's own tests, leaves of drawn shapes beside the processor's, and a run of real processes.
#
#     sh tests/opencl.sh [ARGUMENT OF CARGO ...]
#     sh tests/opencl.sh --install                # only that: for tests that are run by other ways
#
# Installs Debian's pocl-opencl-icd and ocl-icd-libopencl1 where it may (root, apt-get); else they must be there.
set -eu
cd "$(dirname "$0")/.."

# Where users have no path to it.
PATH=$PATH:/usr/sbin:/sbin

is_known() {
    ldconfig -p | grep -qF "$1"
}

# A loader, and a driver whose library is there: a package that was removed leaves its entry.
has_device() {
    is_known libOpenCL.so.1 || return 1
    for entry in /etc/OpenCL/vendors/*.icd; do
        [ -e "$entry" ] || continue
        read -r driver <"$entry" || [ -n "$driver" ] || continue
        # The loader's list has it by another number.
        { [ -e "$driver" ] || is_known "${driver%%.so*}.so"; } && return 0
    done
    return 1
}

if ! has_device; then
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        # Nobody waits long where the archive cannot be reached.
        apt() { DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=1 -o Acquire::http::Timeout=20 "$@"; }
        apt update
        apt install --yes --no-install-recommends pocl-opencl-icd ocl-icd-libopencl1
    else
        echo "no OpenCL is found: install Debian's packages pocl-opencl-icd and ocl-icd-libopencl1" >&2
        exit 1
    fi
fi
has_device || { echo "pocl is installed, and is not found" >&2; exit 1; }
[ "${1:-}" != --install ] || exit 0

cargo test --release --locked "$@" --package muster-compute --lib -- devices gpu machine
PROPTEST_CASES=40 cargo test --release --locked "$@" --package muster-compute --test shapes
cargo test --release --locked "$@" --package e2e --test opencl
