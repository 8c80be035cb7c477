#!/bin/sh
# Runs a command beside hosts that reach each other over slow links only: network namespaces, one uplink and one downlink each.
#
#   sh tests/links.sh --hosts N [--rate 100mbit] [--delay 25ms] -- COMMAND…
#   sh tests/links.sh --rates 1000,4/40,100 [--delay 25ms] -- COMMAND…        # hosts with links of their own, UP/DOWN in Mbit/s
#   sh tests/links.sh --check [--rate 100mbit] [--delay 25ms]      # what the links carry, beside what was asked
#
# COMMAND itself runs outside and finds in LINKS_HOSTS a line "NAME ADDRESS" for each host; it starts a process there by
# `ip netns exec NAME …`. --delay is that of one way, from any host to any other. A host has a loopback device and `wire`,
# without a default route. Hosts, and what still runs in them, are gone when COMMAND ends, fails or is interrupted; the
# exit status is COMMAND's. Their names have this process's number, so that several uses do not meet.
#
# A kernel with `netem` would do all this alone; many have none. Here `tbf` shapes the uplinks, and `links.py`, which carries
# packets between the hosts, the downlinks and the delay. Exits with 3 where the machine does not allow it, and with 2 on
# arguments it does not know.

set -u
hosts=2 rate=100mbit rates= delay=25ms check=
here=$(cd "$(dirname "$0")" && pwd)

usage() { echo "links: $1; see the head of $0" >&2; exit 2; }
missing() { echo "links: skipped: $1" >&2; exit 3; }

while [ $# -gt 0 ]; do
    case $1 in
        --hosts) hosts=${2-}; shift ;;
        --rate) rate=${2-}; shift ;;
        --rates) rates=${2-}; shift ;;
        --delay) delay=${2-}; shift ;;
        --check) check=1 ;;
        --) shift; break ;;
        *) usage "unknown argument $1" ;;
    esac
    shift || usage "the last argument wants a value"
done
case $rates in *[!0-9,/]* | ,* | *, | *,,*) usage "--rates must be like 1000,4/40,100" ;; esac
[ -z "$rates" ] || hosts=$(echo "$rates" | tr ',' '\n' | wc -l)
case $hosts in *[!0-9]* | '') usage "--hosts must be a number" ;; esac
[ "$hosts" -ge 1 ] && [ "$hosts" -le 100 ] || usage "--hosts must be 1 to 100"
case ${rate%mbit} in *[!0-9]* | "$rate" | '' | 0) usage "--rate must be like 100mbit" ;; esac
case ${delay%ms} in *[!0-9.]* | "$delay" | '') usage "--delay must be like 25ms" ;; esac
rate=${rate%mbit} delay=${delay%ms}
# One for each host, UP/DOWN or the same both ways.
[ "$rates" ] || rates=$(yes "$rate" | head -n "$hosts" | paste -sd ,)
if [ "$check" ]; then
    set -- python3 "$here/links.py" check "$rate" "$delay"
fi
[ $# -gt 0 ] || usage "no command"

for program in ip tc python3; do
    command -v $program >/dev/null || missing "there is no \`$program\` (iproute2 has ip and tc)"
done
[ -c /dev/net/tun ] || missing "there is no /dev/net/tun"

name=links-$$
relay= command= ready=$(mktemp -d)

# Ends what this script began, and only that.
clear() {
    status=$?
    trap '' INT TERM HUP
    [ -z "$command" ] || kill -TERM "$command" 2>/dev/null
    [ -z "$relay" ] || kill -TERM "$relay" 2>/dev/null
    wait
    i=1
    while [ $i -le "$hosts" ]; do
        inside=$(ip netns pids $name-$i 2>/dev/null)
        # shellcheck disable=SC2086  # a list of numbers
        [ -z "$inside" ] || kill -KILL $inside 2>/dev/null
        ip netns delete $name-$i 2>/dev/null
        i=$((i + 1))
    done
    rm -rf "$ready"
    exit $status
}
trap clear EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

LINKS_HOSTS= names= i=1
while [ $i -le "$hosts" ]; do
    ip netns add $name-$i 2>"$ready/why" || missing "no network namespace may be made: $(cat "$ready/why")"
    names="$names $name-$i"
    LINKS_HOSTS="$LINKS_HOSTS$name-$i 10.77.0.$i
"
    i=$((i + 1))
done

# At a higher priority than what is measured, where that is allowed: a line does not wait for a processor.
# shellcheck disable=SC2086  # a list of names
nice -n -15 python3 "$here/links.py" relay "$rates" "$delay" $names >"$ready/relay" 2>"$ready/why" &
relay=$!
until [ -s "$ready/relay" ]; do
    kill -0 $relay 2>/dev/null || missing "no TUN device may be made: $(tail -n 1 "$ready/why")"
    sleep 0.02
done

# Bytes that go at the full speed of the memory after a pause: of five milliseconds, and one packet at least.
i=1
while [ $i -le "$hosts" ]; do
    own="-n $name-$i"
    up=$(echo "$rates" | cut -d , -f $i)
    up=${up%/*}
    burst=$((up * 625))
    [ $burst -ge 16384 ] || burst=16384
    # shellcheck disable=SC2086  # two words
    { ip $own link set lo up &&
        ip $own address add 10.77.0.$i/24 dev wire &&
        ip $own link set wire up mtu 1500 &&
        tc $own qdisc add dev wire root tbf rate "${up}mbit" burst $burst latency 100ms; } 2>"$ready/why" ||
        missing "a device cannot be shaped: $(cat "$ready/why")"
    i=$((i + 1))
done

export LINKS_HOSTS LINKS_RELAY=$relay
# Not in the foreground: a shell looks at signals only between commands.
"$@" <&0 &
command=$!
wait $command
status=$?
command=
exit $status
