#!/bin/bash
# The units of the package under a running systemd: what tests/install.sh runs in a virtual machine, as root, with the package
# installed and a packed corpus in /root/try. Nothing else should run it: it cuts the machine's power.
#
# Prints a line for each check on the second serial line. The machine starts twice: the first time, a run is hosted, joined and
# audited by units until the power fails; the second time, systemd goes on with it, until it is over.
set -u
if [ "$0" != /units.sh ] || ! systemd-detect-virt --quiet --vm; then
    echo "units.sh: this is for the virtual machine that tests/install.sh starts" >&2
    exit 2
fi
exec >/dev/ttyS1 2>&1
cd /root/try || exit 1
stage=/root/stage
units="muster@run muster-join@one muster-join@two muster-verifier@audit"

check() {
    local name=$1 said
    shift
    if said=$("$@" 2>&1); then
        echo "ok    $name"
    else
        echo "FAIL  $name"
        tail -n 20 <<<"$said" | sed 's/^/      /'
    fi
}

# within SECONDS COMMAND…: it succeeds by then.
within() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $end ] || { journalctl --no-pager --lines 20; return 1; }
        sleep 0.2
    done
}
active() { for unit; do systemctl --quiet is-active "$unit" || return 1; done; }
over() { for unit; do [ "$(systemctl show --property ActiveState --value "$unit")" = inactive ] || return 1; done; }
succeeded() { for unit; do [ "$(systemctl show --property Result --value "$unit")" = success ] || return 1; done; }
process() { systemctl show --property MainPID --value "$1"; }
# The steward has sealed round N at least.
round() { [ "$(journalctl --unit muster@run --output cat | sed -n 's/.* round \([0-9]*\)\/.*/\1/p' | tail -n 1)" -ge "$1" ] 2>/dev/null; }
invite() { muster invite /var/lib/muster/run --role "$1" | install -D -m 600 /dev/stdin "/etc/muster/$2.invitation"; }

# The preset "tiny", smaller: the machine's processor is emulated.
smaller() {
    sed -e 's/^width = 64 /width = 16 /' -e 's/^layers = 2$/layers = 1/' -e 's/^heads = 4 /heads = 2 /' \
        -e 's/^key_value_heads = 4 /key_value_heads = 2 /' -e 's/^hidden = 172 /hidden = 32 /' \
        -e 's/^sequence = 128 /sequence = 32 /' -e 's/^leaves = 16 /leaves = 4 /' -e 's/^leaf_windows = 2 /leaf_windows = 1 /' \
        -e 's/^rounds = 150 /rounds = 60 /' -e "s/^name = .*/name = \"$1\"/" tiny.toml
}
hosted() {
    smaller run >run.toml && muster run new --config run.toml --data corpus --out /var/lib/muster/run &&
        mkdir -p /etc/muster && echo 'MUSTER_OPTIONS=--exit-when-done --listen 127.0.0.1:7777' >/etc/muster/host-run.conf &&
        systemctl enable --now muster@run && within 20 active muster@run && within 20 test -s /var/lib/muster/run/address
}
joined() {
    within 20 invite node one && invite node two && invite verifier audit &&
        systemctl enable --now muster-join@one muster-join@two muster-verifier@audit
}
# Each unit has a user of its own, who is not root, and whom no other unit shares.
users() {
    local unit
    for unit in $units; do ps --no-headers -o user:32 --pid "$(process "$unit")"; done | tee /dev/stderr |
        awk '$1 == "root" || seen[$1]++ {bad = 1} END {exit bad || NR != 4}'
}
# Another user of the machine finds neither keys nor the line of the invitation, and a unit not those of another unit: as its
# own user, and where the unit runs, it reads its own key and no other.
secret() {
    local word one user
    one=$(process muster-join@one) user=$(ps --no-headers -o uid --pid "$(process muster-join@one)")
    inside() { nsenter --target "$one" --mount setpriv --reuid=$user --regid=$user --clear-groups "$@"; }
    inside cat /var/lib/muster-join/one/identity.key >/dev/null && ! inside cat /var/lib/muster-join/two/identity.key &&
        ! inside cat /var/lib/muster/run/organiser.key || return 1
    word=$(cut -c 1-40 /etc/muster/one.invitation)
    ! setpriv --reuid=nobody --regid=nogroup --clear-groups ls /var/lib/muster-join/one/ &&
        ! setpriv --reuid=nobody --regid=nogroup --clear-groups cat /etc/muster/one.invitation &&
        ! ps -eww -o args | grep -v grep | grep --fixed-strings -- "$word" &&
        ! grep --quiet --fixed-strings -- "$word" <(journalctl)
}
stopped() { systemctl stop muster-join@two && over muster-join@two && succeeded muster-join@two && systemctl start muster-join@two; }
# Killed without warning, the steward is started again, and goes on with its round.
killed() {
    local before
    before=$(process muster@run)
    systemctl kill --signal KILL muster@run
    another() { active muster@run && [ "$(process muster@run)" != "$before" ]; }
    within 60 another
}
upgraded() {
    local before
    before=$(for unit in $units; do process "$unit"; done)
    dpkg --install /muster.deb && [ "$before" = "$(for unit in $units; do process "$unit"; done)" ]
}
replayed() { muster-verifier replay /var/lib/muster/run; }
# Removing the package stops what it runs, and keeps what it made.
removed() {
    smaller other >other.toml
    muster run new --config other.toml --data corpus --out /var/lib/muster/other && systemctl start muster@other &&
        within 20 active muster@other && dpkg --purge muster && ! active muster@other &&
        test -s /var/lib/muster/other/identity.key && test -s /var/lib/muster-join/one/identity.key
}

if [ ! -e $stage ]; then
    check "a run is hosted by its unit" hosted
    check "two nodes and a verifier join it by theirs" joined
    check "rounds are sealed" within 120 round 5
    check "every unit has a user of its own" users
    check "other users of the machine see no key and no invitation" secret
    check "a stopped node finishes its round, and is started again" stopped
    check "rounds go on with it" within 120 round 10
    check "a killed steward is started again" killed
    check "rounds go on with it" within 120 round 20
    touch $stage
    sync
    echo "      the power fails in round $(journalctl --unit muster@run --output cat | sed -n 's/.* round \([0-9]*\/[0-9]*\):.*/\1/p' | tail -n 1)"
    echo b >/proc/sysrq-trigger
fi
# shellcheck disable=SC2086  # a list of names
check "after a power cut, systemd starts them again" within 60 active $units
check "an upgrade leaves them alone" upgraded
check "the run goes on, and ends" within 300 over muster@run muster-join@one muster-join@two
check "its verifier ends, too" within 60 over muster-verifier@audit
# shellcheck disable=SC2086  # a list of names
check "none of them failed" succeeded $units
check "the run replays" replayed
check "removing the package stops what it runs, and keeps what it made" removed
echo "end"
systemctl poweroff >/dev/null 2>&1
