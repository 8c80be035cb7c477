#!/bin/sh
# Builds the Debian package: both programs as of build.sh, man pages, completions and units.
#
#   sh node/packaging/deb.sh        # prints the name of the package, target/debian/muster_VERSION_ARCHITECTURE.deb
#
# Installs cargo-deb into target/tools where it is missing. Two packages of one commit, made by one toolchain, are equal.
set -eu
cd "$(dirname "$0")/../.."
PATH=$PWD/target/tools/bin:$PATH
if ! command -v cargo-deb >/dev/null; then
    cargo install --quiet --locked --root target/tools cargo-deb --version 3.7.0 >&2
fi
sh node/packaging/build.sh >&2

# Where node/Cargo.toml expects what follows from the command line.
pages=target/package
rm -rf $pages
mkdir -p $pages/completions/bash $pages/completions/zsh $pages/completions/fish
for program in muster muster-verifier; do
    target/dist/$program man --out $pages/man >&2
    target/dist/$program completions bash >$pages/completions/bash/$program
    target/dist/$program completions zsh >$pages/completions/zsh/_$program
    target/dist/$program completions fish >$pages/completions/fish/$program.fish
done

SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
cargo deb --quiet --no-build --profile dist --package muster-node
