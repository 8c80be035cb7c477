#!/bin/sh
# Runs whole runs between hosts behind home routers, and says in how many rounds each of them counted.
#
#   sh tests/nat.sh [SCENARIO…] [--rounds N] [--programs DIR]      # all scenarios, 20 rounds, target/release
#
#   public      two hosts that anybody can dial
#   mixed       one of these, one behind a router
#   port        two, each behind a port-restricted router of its own
#   symmetric   two, each behind a symmetric router of its own
#   deep        two, each behind two routers, one behind the other
#   home        two behind the same router
#   firewall    two with IPv6 addresses, behind firewalls that let nothing in
#   relays      two, each behind a symmetric router of its own, and one that anybody can dial, at which they meet; it is killed after a
#               third of the rounds, and the others go on over the steward's relay; four times as many rounds, since looking for a
#               relay takes seconds
#   hangs       the same, but the one that anybody can dial hangs: its connections stay, and carry nothing any more
#   restart     as port, and the steward, whose relay they meet at, is killed and started again after a third of the rounds
#
# Each has a verifier, behind a router as well. Exits with 1 where somebody counts in fewer than 95 % of the rounds, is called away,
# where more than a tenth of the bytes goes through the relay though the routers could be punched,
# where less than half of what is relayed goes past the steward while there is a node that can be dialled (relays, hangs),
# or where a round takes more than 1.5 times as long as between public hosts; with 2 on arguments it does not
# know; with 3 where the machine does not allow it. Namespaces need root, routers need nft. Addresses are those of documentation:
# nothing leaves the machine.

set -u
here=$(cd "$(dirname "$0")" && pwd)

for program in ip nft python3; do
    command -v $program >/dev/null || { echo "nat: skipped: there is no \`$program\`" >&2; exit 3; }
done
ip netns add nat-$$-try 2>/dev/null || { echo "nat: skipped: no network namespace may be made" >&2; exit 3; }
ip netns exec nat-$$-try nft add table ip try 2>/dev/null
routes=$?
ip netns delete nat-$$-try
[ $routes -eq 0 ] || { echo "nat: skipped: no router may be made (nft)" >&2; exit 3; }
exec python3 "$here/nat.py" "$@"
