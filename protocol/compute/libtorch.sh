#!/usr/bin/env bash
# Fetches libtorch 2.11.0 for builds with `--features tch`: 543 MB from the Python registry, 1.2 GB under `.libtorch`.
#
#     protocol/compute/libtorch.sh
#
# Needs Linux on x86-64 and a Python with pip; the wheel is the same whatever that Python is. It has the kernels of CUDA
# 13, too, but none of NVIDIA's other libraries: a machine that shall compute on its graphics processor has a whole
# PyTorch 2.11.0, and builds with LIBTORCH=$(python3 -c 'import torch; print(torch.__path__[0])') instead of this.
set -euo pipefail
cd "$(dirname "$0")/../.."

version=2.11.0
if [[ "$(cat .libtorch/torch/build-version 2>/dev/null)" == "$version" ]]; then
    echo "libtorch $version is in $PWD/.libtorch"
    exit
fi
rm -rf .libtorch .libtorch.part
# By hash: a registry or a mirror that serves other bytes under these names is noticed, and nothing of them is unpacked.
# libtorch_cpu.so of this wheel needs two libraries of CUDA, which the two small wheels bring and its rpath finds.
python3 -m pip install --quiet --disable-pip-version-check --no-deps --target .libtorch.part --only-binary=:all: \
    --python-version 3.12 --platform manylinux_2_28_x86_64 --platform manylinux_2_25_x86_64 \
    --platform manylinux2014_x86_64 --require-hashes --requirement /dev/stdin <<WHEELS
torch==$version --hash=sha256:0f68f4ac6d95d12e896c3b7a912b5871619542ec54d3649cf48cc1edd4dd2756
nvidia-cuda-runtime==13.0.96 --hash=sha256:7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548
nvidia-cuda-cupti==13.0.85 --hash=sha256:4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8
WHEELS
# torch-sys refuses to build with another version than its own.
echo "$version" > .libtorch.part/torch/build-version
mv .libtorch.part .libtorch
echo "libtorch $version is in $PWD/.libtorch; now: cargo test --release --features tch"
