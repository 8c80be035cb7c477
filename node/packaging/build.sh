#!/bin/sh
# Builds a release: both programs, whose bytes follow from the source, Cargo.lock and the toolchain, and not from the folder,
# the user or the time.
#
#   sh node/packaging/build.sh [option of cargo build …]      # target/dist/muster and target/dist/muster-verifier
#
# They have neither rehearsals nor attacks. SOURCE_DATE_EPOCH is the time of the commit unless the environment has one;
# `muster doctor` judges clocks by it. tests/reproducible.sh builds twice and compares.
set -eu
cd "$(dirname "$0")/../.."
here=$(pwd -P)
home=${CARGO_HOME:-$HOME/.cargo}
target=${CARGO_TARGET_DIR:-$here/target}

if [ -z "${SOURCE_DATE_EPOCH-}" ]; then
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null) || SOURCE_DATE_EPOCH=
fi
if [ -n "$SOURCE_DATE_EPOCH" ]; then export SOURCE_DATE_EPOCH; else unset SOURCE_DATE_EPOCH; fi

# Flags are separated by spaces, and the two sides of a pair by "=".
case $here$home$target in *[\ =]*)
    echo "build: neither of these folders may have a space or a \"=\" in its name: $here, $home, $target" >&2
    exit 2 ;;
esac

# Panics name source files, and assertions of C code theirs. The last prefix that fits counts.
rust= c=
for pair in "$home=/cargo" "$here=/muster" "$target=/muster/target"; do
    rust="$rust --remap-path-prefix=$pair"
    c="$c -ffile-prefix-map=$pair"
done
# What else the environment says would end up in the programs.
export RUSTFLAGS="${rust# }" CFLAGS="${c# }" CXXFLAGS="${c# }" CARGO_INCREMENTAL=0
unset CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_RUSTFLAGS RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER CPPFLAGS LDFLAGS

exec cargo build --profile dist --locked --package muster-node --package muster-verifier --no-default-features "$@"
