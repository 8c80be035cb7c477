#!/bin/sh
# Builds a release twice from the committed source, in two folders, with two homes of cargo, and compares the bytes.
#
#   sh tests/reproducible.sh                   # two builds, some minutes each
#   sh tests/reproducible.sh --against DIR     # one build, compared with the programs in DIR: those of a release, say
#
# Exits with 1 where a program differs, and shows where.
set -eu
cd "$(dirname "$0")/.."
against=
case ${1-} in
    '') ;;
    --against) against=${2:?a folder}; against=$(cd "$against" && pwd) ;;
    *) echo "reproducible: unknown argument $1; see the head of $0" >&2; exit 2 ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP
home=${CARGO_HOME:-$HOME/.cargo}
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
unset CARGO_TARGET_DIR

# build FOLDER HOME: the committed source there.
build() {
    mkdir -p "$1"
    git archive HEAD | tar -x -C "$1"
    (cd "$1" && CARGO_HOME=$2 sh node/packaging/build.sh)
}

# Names of different lengths; the crates that are there already, by another path.
mkdir -p "$work/home-of-cargo"
for part in registry git; do
    if [ -e "$home/$part" ]; then ln -s "$home/$part" "$work/home-of-cargo/$part"; fi
done
build "$work/another/folder" "$work/home-of-cargo"
second=$work/another/folder/target/dist
if [ -z "$against" ]; then
    build "$work/one" "$home"
    against=$work/one/target/dist
fi

status=0
for program in muster muster-verifier; do
    if cmp "$against/$program" "$second/$program"; then
        echo "$program: equal, $(wc -c <"$second/$program") bytes, SHA-256 $(sha256sum <"$second/$program" | cut -c 1-64)"
        continue
    fi
    status=1
    echo "$program: differs in $(cmp -l "$against/$program" "$second/$program" 2>/dev/null | wc -l) bytes; sections that do:"
    for side in "$against" "$second"; do
        readelf --section-headers --wide "$side/$program" | awk '$2 ~ /^[0-9]+\]$/ {print $3, $6, $7}' >"$work/sections"
        while read -r name offset size; do
            echo "$name $(dd if="$side/$program" bs=64k iflag=skip_bytes,count_bytes skip=$((0x$offset)) \
                count=$((0x$size)) status=none | sha256sum | cut -c 1-16)"
        done <"$work/sections" >"$work/$(basename "$(dirname "$side")")-$(echo "$side" | cksum | cut -d ' ' -f 1)"
    done
    sort "$work"/*-[0-9]* | uniq -u | cut -d ' ' -f 1 | sort -u | sed 's/^/  /'
    rm -f "$work"/*-[0-9]*
done
exit $status
