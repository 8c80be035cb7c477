#!/bin/sh
# Builds the Debian package and installs it where nothing else is: does everything in it work?
#
#   sh tests/install.sh              # builds it by node/packaging/deb.sh
#   sh tests/install.sh FILE.deb     # or takes this one
#
# The clean root is a minimal Debian by debootstrap, which is fetched where it is missing and not installed. Without a mirror
# (MIRROR names one) it is an overlay of this machine's own root, which shows less: its packages are there, too. Where
# qemu-system-x86_64 and mke2fs are installed, that Debian is started as a virtual machine as well, for the units
# (tests/units.sh). Prints one line for each check. Exits with 1 where one failed, and with 3 where the machine permits neither
# root.
set -u
here=$(cd "$(dirname "$0")/.." && pwd)
missing() { echo "install: skipped: $1" >&2; exit 3; }

[ "$(id -u)" = 0 ] || missing "a clean root needs root"
for program in unshare chroot dpkg-deb apt-get; do
    command -v $program >/dev/null || missing "there is no \`$program\`"
done

# Once more in namespaces of its own: mounts and processes end with it.
if [ -z "${MUSTER_INSTALL-}" ]; then
    package=${1-}
    [ -n "$package" ] || package=$(sh "$here/node/packaging/deb.sh" | tail -n 1) || exit 1
    package=$(realpath "$package")
    MUSTER_INSTALL=$(mktemp -d) || exit 1
    trap 'rm -rf --one-file-system "$MUSTER_INSTALL"' EXIT
    export MUSTER_INSTALL
    unshare --mount --pid --fork --kill-child sh "$here/tests/install.sh" "$package"
    exit
fi
package=$1 work=$MUSTER_INSTALL root=$MUSTER_INSTALL/root failed=0
mount --make-rprivate / || missing "no mount namespace may be made"
mkdir "$root"

# What the checks need beside the package: units are checked by systemd, pages by man and mandoc.
include=bash-completion,man-db,mandoc,systemd
virtual=
if [ "$(uname -m)" = x86_64 ] && command -v qemu-system-x86_64 >/dev/null && command -v mke2fs >/dev/null; then
    virtual=yes include=$include,initramfs-tools,linux-image-cloud-amd64,procps,systemd-sysv
fi

bootstrap() {
    suite=$(. /etc/os-release && echo "${VERSION_CODENAME-}")
    mirror=${MIRROR:-$(apt-get indextargets --format '$(SITE)' 'Origin: Debian' 'Identifier: Packages' | head -n 1)}
    debootstrap=$(command -v debootstrap)
    if [ -z "$debootstrap" ]; then
        (cd "$work" && apt-get download debootstrap && dpkg-deb -x debootstrap_*.deb debootstrap) || return 1
        debootstrap=$work/debootstrap/usr/sbin/debootstrap
        export DEBOOTSTRAP_DIR="$work/debootstrap/usr/share/debootstrap"
    fi
    sh "$debootstrap" --variant=minbase --include=$include "$suite" "$root" "$mirror"
}

overlay() {
    mkdir -p "$work/upper" "$work/scratch"
    mount -t tmpfs tmpfs "$work/upper" && mkdir "$work/upper/files" "$work/upper/work" &&
        mount -t overlay -o "lowerdir=/,upperdir=$work/upper/files,workdir=$work/upper/work" overlay "$root"
}

if bootstrap >"$work/bootstrap" 2>&1; then
    echo "root  a minimal Debian by debootstrap"
elif virtual='' && rm -rf --one-file-system "$root" && mkdir "$root" && overlay 2>"$work/overlay"; then
    echo "root  an overlay of this machine's own root: no Debian could be fetched ($(tail -n 1 "$work/bootstrap"))"
else
    missing "no Debian could be fetched ($(tail -n 1 "$work/bootstrap")), and no overlay made ($(tail -n 1 "$work/overlay"))"
fi
mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" || missing "/proc and /dev cannot be mounted"
cp "$package" "$root/muster.deb"

in_root() { chroot "$root" env -i HOME=/root LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }

check() {
    name=$1
    shift
    if "$@" >"$work/said" 2>&1; then
        echo "ok    $name"
    else
        failed=$((failed + 1))
        echo "FAIL  $name"
        tail -n 20 "$work/said" | sed 's/^/      /'
    fi
}

# check_script NAME: the script on standard input, in the root.
check_script() {
    cat >"$root/check.sh"
    check "$1" in_root bash -eu -o pipefail /check.sh
}

check "dpkg installs it, and every dependency is there" in_root dpkg --install /muster.deb
check "no package is half installed" test -z "$(in_root dpkg --audit)"
version=$(dpkg-deb --field "$package" Version)
for program in muster muster-verifier; do
    check_script "$program says its version, ${version%-*}" <<END
[ "\$($program --version)" = "$program ${version%-*}" ]
END
    check "$program has help" in_root $program --help
done
check_script "it has no rehearsals" <<'END'
! muster demo
END
check "muster doctor finds nothing that needs care" in_root muster doctor --data-dir /root/member --listen 127.0.0.1:0
check_script "the presets make runs" <<'END'
mkdir /root/try; cd /root/try
muster data pack --text /usr/share/common-licenses/GPL-3 /usr/share/common-licenses/GPL-2 --out corpus
for preset in tiny small base; do
    muster run new --preset $preset --config $preset.toml --data corpus --out $preset --elsewhere
done
END
check_script "two nodes and a verifier finish a run, and it replays" <<'END'
cd /root/try
sed 's/^rounds = 150 /rounds = 6 /' tiny.toml >short.toml
muster run new --config short.toml --data corpus --out run
muster host run --exit-when-done --listen 127.0.0.1:0 >host.log 2>&1 &
host=$!
for second in $(seq 60); do [ -s run/address ] && break; sleep 1; done
muster invite run --role node --uses 2 >node.line
muster invite run --role verifier >verifier.line
muster doctor @node.line --data-dir one | grep 'steward  *good'
muster join @node.line --data-dir one >one.log 2>&1 &
muster join @node.line --data-dir two >two.log 2>&1 &
muster-verifier enroll @verifier.line --data-dir verifier
muster-verifier watch verifier >verifier.log 2>&1 &
timeout 240 tail --pid=$host -f /dev/null || { tail -n 5 *.log; exit 1; }
wait
muster-verifier replay run
muster generate run --prompt 'Everyone is permitted' --tokens 20
END
units="muster@x.service muster-join@x.service muster-verifier@x.service"
# shellcheck disable=SC2086  # a list of names
check "systemd verifies the units" in_root systemd-analyze verify $units
for unit in muster@ muster-join@ muster-verifier@; do
    check "systemd finds $unit.service little exposed (2.0 at most)" \
        in_root systemd-analyze security --offline=true --threshold=20 --no-pager /usr/lib/systemd/system/$unit.service
done
for program in muster muster-verifier; do
    word=$([ $program = muster ] && echo hos || echo repl)
    check_script "bash completes \`$program $word\`" <<END
set +eu
. /usr/share/bash-completion/bash_completion
_completion_loader $program
function=\$(complete -p $program | sed 's/.* -F \([^ ]*\) .*/\1/')
COMP_WORDS=($program $word) COMP_CWORD=1 COMPREPLY=()
\$function $program $word $program
printf '%s\n' "\${COMPREPLY[@]}" | grep -x -e host -e replay
END
done
check_script "zsh and fish have completions" <<'END'
for program in muster muster-verifier; do
    grep -q compdef /usr/share/zsh/vendor-completions/_$program
    grep -q "complete -c $program" /usr/share/fish/vendor_completions.d/$program.fish
done
END
check_script "every command has a page" <<'END'
for program in muster muster-verifier; do
    for command in $($program --help | sed -n '/^Commands:/,/^$/s/^  \([a-z][a-z-]*\) .*/\1/p'); do
        [ $command = help ] || man --where $program-$command
    done
done
END
check_script "man renders every page without a warning" <<'END'
for page in /usr/share/man/man1/muster*; do
    warned=$(man --warnings=all --local-file $page 2>&1 >/dev/null)
    [ -z "$warned" ] || { echo "$page: $warned"; exit 1; }
done
END
check_script "mandoc finds no error in any page" <<'END'
for page in /usr/share/man/man1/muster*; do zcat $page | mandoc -T lint -W error; done
END
# The machine has this root, without what is mounted in it, no network card, and two serial lines: a console, and what
# units.sh says. The processor is emulated, so that no kernel's KVM matters.
start_machine() {
    : >"$work/units"
    cp "$here/tests/units.sh" "$root/units.sh" || return 1
    cat >"$root/etc/systemd/system/units.service" <<'END'
[Unit]
After=multi-user.target
[Service]
ExecStart=/bin/bash /units.sh
[Install]
WantedBy=multi-user.target
END
    in_root systemctl enable units.service && mkdir "$work/bare" && mount --bind "$root" "$work/bare" &&
        truncate --size 3G "$work/disk" && mke2fs -q -t ext4 -d "$work/bare" "$work/disk" || return 1
    rm "$root/etc/systemd/system/multi-user.target.wants/units.service" "$root/etc/systemd/system/units.service"
    timeout 1200 qemu-system-x86_64 -machine accel=tcg -cpu max -smp 2 -m 2048 -display none -monitor none -nic none \
        -serial "file:$work/console" -serial "file:$work/units" -drive "file=$work/disk,format=raw,if=virtio,cache=unsafe" \
        -kernel "$root/vmlinuz" -initrd "$root/initrd.img" -append "root=/dev/vda rw console=ttyS0" ||
        { tail -n 20 "$work/console"; return 1; }
}
if [ -z "$virtual" ]; then
    echo "      the units were not started: that takes an x86-64 machine, a mirror of Debian, qemu-system-x86_64 and mke2fs"
else
    echo "      a virtual machine starts, with the units: some minutes"
    check "the machine starts, and stops of itself" start_machine
    tr -d '\r' <"$work/units" | grep -v '^end$'
    failed=$((failed + $(grep -c '^FAIL' "$work/units")))
    check "the units were checked to the end" grep -q '^end' "$work/units"
fi
check "dpkg removes it" in_root dpkg --purge muster
check "nothing of it stays" test -z "$(find "$root/usr" -name '*muster*' 2>/dev/null)"

[ $failed = 0 ] && echo "everything works" && exit 0
echo "$failed checks failed"
exit 1
