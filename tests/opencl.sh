#!/bin/sh
# Tests what computes on devices by OpenCL, where there may be no graphics processor: pocl, an OpenCL for processors, stands
# in for one. The crate's own tests, leaves of drawn shapes beside the processor's, and a run of real processes.
#
#     sh tests/opencl.sh [ARGUMENT OF CARGO ...]
#
# Installs Debian's pocl-opencl-icd and ocl-icd-libopencl1 where it may (root, apt-get); else they must be there.
set -eu
cd "$(dirname "$0")/.."

has_device() {
    [ -n "$(ls /etc/OpenCL/vendors 2>/dev/null)" ] && ldconfig -p | grep -q 'libOpenCL\.so\.1'
}

if ! has_device; then
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        apt-get update --quiet
        DEBIAN_FRONTEND=noninteractive apt-get install --quiet --yes --no-install-recommends pocl-opencl-icd ocl-icd-libopencl1
    else
        echo "no OpenCL is found: install Debian's packages pocl-opencl-icd and ocl-icd-libopencl1" >&2
        exit 1
    fi
fi
has_device || { echo "pocl is installed, and is not found" >&2; exit 1; }

cargo test --release --locked "$@" --package muster-compute --lib -- devices gpu machine
cargo run --release --locked "$@" --package muster-compute --example gpu -- check 20
cargo test --release --locked "$@" --package e2e --test opencl
