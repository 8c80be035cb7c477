#!/usr/bin/env python3
"""A round without its gradient beside plain averages: Muster, hivemind and gloo, in turn, on the same processors.

    python3 tests/bench/exchange.py                   # 4 and 8 nodes on loopback
    python3 tests/bench/exchange.py --links           # each on a host of its own: 100 Mbit/s, 25 ms (tests/links.sh)
    python3 tests/bench/exchange.py --quick           # four nodes, one turn: whether all works

10⁷ values. *Muster* is a run as users start it, `muster host` and `muster join`, whose leaves are one window of 16 tokens
(`bench-exchange`): grid, commitments, signatures, parts with their proofs over encrypted channels, the robust rule, checks, the step of
every process and the steward's, from the opening of a round to its outcome. What the gradient takes is subtracted. *hivemind*
1.1.12 averages f32 without any check; its group is found before the clock starts. *gloo* is `torch.distributed.all_reduce` in f32.
For both, the time is that until the last member has the average.

Each goal has a line `verdict: …`; exits with 1 where one is missed, with 3 where the machine allows no such links.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import environment

environment.enter("numpy", "torch", "hivemind")

BENCH = environment.BENCH
# How many times as fast as hivemind on loopback, at least, by nodes; what share of gloo's time over links, at most.
LOOPBACK, LINKS = {4: 1.2, 8: 1.5}, 0.5
RATE, DELAY = "100mbit", "25ms"
# How often a group may fall apart before hivemind's turn is given up.
TRIES = 4


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="four nodes and one turn, without judging")
    parser.add_argument("--nodes", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8, help="of each of Muster's turns, with the three that are left out")
    parser.add_argument("--threads", type=int, default=1, help="of each of Muster's nodes")
    parser.add_argument("--links", action="store_true", help="over slow links between network namespaces")
    parser.add_argument("--rate", default=RATE, help="of a link")
    parser.add_argument("--delay", default=DELAY, help="of one way")
    parser.add_argument("--program", help="bench-exchange, where it is built already")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.nodes, arguments.turns, arguments.rounds = [4], 1, 5
    return arguments


class Peers:
    """Members of one library, on hosts or on loopback."""

    def __init__(self, library, count, parameters, hosts):
        self.library = library
        self.children = []
        for rank in range(count):
            name, address = hosts[rank] if hosts else (None, "127.0.0.1")
            inside = ["ip", "netns", "exec", name] if name else []
            self.children.append(environment.Child(
                *inside, sys.executable, BENCH / "exchange_peer.py", library, rank, count, parameters, address))
        place = [child.process.stdout.readline() for child in self.children][0].strip()
        self.all(place)

    def all(self, task):
        """Gives a task to all, then hears all."""
        for child in self.children:
            child.tell(task)
        return [child.hear() for child in self.children]

    def average(self):
        """Seconds until the last one has the average."""
        right = (len(self.children) - 1) / 2
        for _ in range(TRIES):
            if not all(self.all("prepare")) and self.library == "gloo":
                break
            begun = time.perf_counter()
            values = self.all("go")
            seconds = time.perf_counter() - begun
            if all(value is not None and abs(value - right) < 1e-3 for value in values):
                return seconds
        sys.exit(f"{self.library}: no group of {len(self.children)} was found")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for child in self.children:
            child.__exit__()


def muster(program, count, arguments):
    words = [str(count), str(arguments.rounds), str(arguments.threads)]
    done = subprocess.run([program, *words], stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads(done)


def compare(program, count, arguments, hosts):
    """Medians of seconds by side."""
    found = {"muster": [], "hivemind": [], "gloo": []}
    print(f"\n{count} nodes, " + (f"links of {arguments.rate}, {arguments.delay} one way" if hosts else "loopback"), flush=True)
    for _ in range(arguments.turns):
        run = muster(program, count, arguments)
        found["muster"].append(run["seconds"])
        print(f"  muster    {run['seconds']:7.3f} s ({run['round']:.3f} s with the gradient; {run['sent'] / 1e6:.1f} MB sent a node)")
        for library in ("hivemind", "gloo"):
            # The first host is the steward's.
            with Peers(library, count, run["parameters"], hosts and hosts[1:]) as peers:
                peers.average()  # and connections are there
                seconds = [peers.average() for _ in range(1 if arguments.quick else 3)]
            found[library].append(statistics.median(seconds))
            print(f"  {library:9} {found[library][-1]:7.3f} s ({min(seconds):.3f} to {max(seconds):.3f})", flush=True)
    return {side: statistics.median(seconds) for side, seconds in found.items()}


def judge(count, middle, arguments, hosts):
    """Says whether the goal is met; returns whether it is missed."""
    where = "over links" if hosts else "on loopback"
    print(f"  {count} nodes: hivemind/muster {middle['hivemind'] / middle['muster']:.2f}, "
          f"muster/gloo {middle['muster'] / middle['gloo']:.2f}")
    if hosts:
        share = middle["muster"] / middle["gloo"]
        return environment.verdict(f"a round of {count} nodes {where}, as a share of gloo's time", f"{share:.2f}",
                                   f"at most {LINKS}", share <= LINKS, not arguments.quick)
    times, least = middle["hivemind"] / middle["muster"], LOOPBACK[min(LOOPBACK, key=lambda nodes: abs(nodes - count))]
    return environment.verdict(f"a round of {count} nodes {where}, times as fast as hivemind", f"{times:.2f}",
                               f"at least {least}", times >= least, not arguments.quick)


def within_links(program, count, arguments):
    """This script again, beside a host for the steward and one for each node; its exit status."""
    words = ["--nodes", count, "--turns", arguments.turns, "--rounds", arguments.rounds, "--threads", arguments.threads,
             "--links", "--rate", arguments.rate, "--delay", arguments.delay, "--program", program]
    words += ["--quick"] if arguments.quick else []
    links = ["sh", BENCH.parent / "links.sh", "--hosts", count + 1, "--rate", arguments.rate, "--delay", arguments.delay, "--"]
    return subprocess.run([*map(str, links), sys.executable, __file__, *map(str, words)]).returncode


def main():
    arguments = parse()
    program = pathlib.Path(arguments.program or environment.build("bench-exchange")).resolve()
    hosts = [tuple(line.split()) for line in os.environ.get("LINKS_HOSTS", "").splitlines()]
    if arguments.links and not hosts:
        sys.exit(max(within_links(program, count, arguments) for count in arguments.nodes))
    missed = [judge(count, compare(program, count, arguments, hosts), arguments, hosts) for count in arguments.nodes]
    sys.exit(any(missed))


if __name__ == "__main__":
    main()
