#!/usr/bin/env python3
"""Training a mixture of experts: runs of Muster beside hivemind's server of experts, in turn, in one run.

    python3 tests/bench/dmoe.py             # both delays, three turns: half an hour
    python3 tests/bench/dmoe.py --quick     # one turn of little: whether all works

The model is the same on both sides: width, layers, heads, a shared expert and a row of experts of which each token (or,
with hivemind's routing by sequence, each sequence) passes the best. All processes of a side share this machine. Tokens a
second are those of forward, backward and update:

- *Muster*: a run as users start it, `muster host` and ten times `muster join`, with one thread each. A round's time is all
  of it: leaves with their grid, commitments, the exchange of parts through the robust rule, checks, the update that each
  of the eleven processes computes for itself, and the steward's. Only tokens that were committed count. Rounds before the
  second one are left out, for members find each other then. Audits are off: hivemind has none (`bench-price` has their
  price).
- *hivemind* 1.1.12: `dmoe_peer.py`, one server with the experts and one trainer with the trunk. *rows* sends every token
  to its experts by itself, as its mixture does with inputs of two dimensions; *sequences* sends whole sequences, chosen by
  their mean. A step's time is all of it.

With a delay, each of hivemind's calls takes that much longer and one of ten fails; looking up experts is not delayed. On
Muster's side every byte between its processes goes through `delay.py`, half of the delay each way, so that all round trips
of a round are in its time as they come, those of a new connection, too. In every round another one of the ten members is
killed while it computes, and started again when the round is over; its leaves are lost, and the round waits the three
seconds for which a broken channel counts as open.

Then, for the leaf alone: `protocol/compute/examples/mixture.rs`, the speed of a mixture's leaf beside a dense one's.

Each goal has a line `verdict: …`; exits with 1 where one is missed.
"""

import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import environment

environment.enter("numpy", "torch", "hivemind")

BENCH = environment.BENCH
MODEL = dict(vocabulary=256, width=128, layers=2, heads=4, key_value_heads=4, hidden=112, sequence=128, rope_base=10000.0,
             norm_epsilon=1e-5, initial_scale=0.06)
EXPERTS = dict(columns=16, active=2, shared_hidden=64, balance=0.01)
MEMBERS = 10
FAILING = 0.1
# Windows of a leaf, of 2,048 tokens.
LEAF = 16
# Rounds that are left out.
WARM = 2
# How many times as fast Muster is to be, by routing and delay.
GOALS = {("rows", 0.0): 20.0, ("sequences", 0.0): 2.0, ("rows", 0.1): 2.0, ("sequences", 0.1): 2.0}
PATIENCE = 900


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one turn of little, without judging")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--delay", type=float, default=0.1, help="seconds of a round trip, in the second half")
    parser.add_argument("--leaves", type=int, default=8, help="of 2,048 tokens, of a member in a round")
    parser.add_argument("--rounds", type=int, default=5, help="of each of Muster's turns, with those that are left out")
    parser.add_argument("--rows", type=int, default=1, help="sequences of a step that is routed by rows")
    parser.add_argument("--sequences", type=int, default=32, help="of a step that is routed by sequences")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of hivemind's trainer, and of its server")
    parser.add_argument("--program", help="muster, where it is built already")
    parser.add_argument("--no-leaf", action="store_true", help="leaves the comparison with dense leaves out")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.turns, arguments.leaves, arguments.rounds = 1, 1, 4
    return arguments


def settings(arguments):
    """The run as `muster run new` takes it."""
    tables = {
        "model": {"family": '"mixture"', **MODEL},
        "experts": EXPERTS,
        "training": {"rounds": arguments.rounds, "leaves": MEMBERS * arguments.leaves, "leaf_windows": LEAF},
        "audit": {"share": 0.0, "final_rounds": 0},
        "admission": {"start_nodes": MEMBERS, "start_verifiers": 0},
        "timers": {"commit": 300.0, "part": 120.0, "result": 120.0},
        "retention": {"contributions": 4, "states": 4},
    }
    lines = ([f"[{name}]"] + [f"{key} = {value}" for key, value in table.items()] for name, table in tables.items())
    return "\n".join(line for table in lines for line in table) + "\n"


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Run:
    """A run of Muster, all its processes on this machine, with a delay between them."""

    def __init__(self, program, home, arguments, delay):
        self.program, self.home, self.delay = program, pathlib.Path(home), delay
        self.children = {}
        ports = free_ports(2 * (MEMBERS + 1))
        self.listen, self.advertise = ports[: MEMBERS + 1], ports[MEMBERS + 1 :]
        text = " ".join(str(n * 2654435761 % (1 << 32) >> 8) for n in range(200_000))
        (self.home / "text").write_text(text)
        (self.home / "run.toml").write_text(settings(arguments))
        self.good("data", "pack", "--text", "text", "--out", "corpus")
        self.good("run", "new", "--config", "run.toml", "--data", "corpus", "--out", "run")

    def good(self, *words):
        return environment.good(self.program, self.home, *words)

    def start(self, name, *words):
        place = self.listen.index(self.port(name))
        addresses = ["--listen", f"127.0.0.1:{self.listen[place]}"]
        if self.delay:
            addresses += ["--advertise", f"127.0.0.1:{self.advertise[place]}"]
        with open(self.home / f"{name}.txt", "a") as said:
            self.children[name] = subprocess.Popen([self.program, *words, *addresses, "--no-gossip"], cwd=self.home,
                                                   stdin=subprocess.DEVNULL, stdout=said, stderr=said)

    def port(self, name):
        return self.listen[0 if name == "steward" else 1 + int(name)]

    def __enter__(self):
        if self.delay:
            pairs = [f"{outer}:{inner}" for outer, inner in zip(self.advertise, self.listen)]
            command = [sys.executable, BENCH / "delay.py", str(self.delay / 2), *pairs]
            self.relay = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.relay.stdout.readline()
        self.start("steward", "host", "run", "--exit-when-done")
        wait(lambda: (self.home / "run" / "address").exists(), "the steward to listen")
        self.invitation = self.good("invite", "run", "--role", "node", "--uses", str(MEMBERS))
        for member in range(MEMBERS):
            self.join(str(member))
        return self

    def join(self, name):
        self.start(name, "join", self.invitation, "--data-dir", f"node{name}", "--threads", "1")

    def __exit__(self, *_):
        for child in self.children.values():
            child.kill()
            child.wait()
        if self.delay:
            self.relay.stdin.close()
            self.relay.wait()

    def rounds(self):
        """The steward's events of rounds that are over."""
        log = self.home / "run" / "log.jsonl"
        lines = log.read_text().splitlines() if log.exists() else []
        events = (json.loads(line) for line in lines if line.endswith("}"))
        return [event for event in events if event["event"] == "round"]

    def measure(self, rounds, failing):
        """Tokens a second of the rounds that count, and what was said of them."""
        lost = None
        for done in range(rounds):
            wait(lambda: len(self.rounds()) >= done, f"round {done}")
            if lost:
                self.join(lost)
            if failing and done >= WARM - 1:
                lost = str(done % MEMBERS)
                # Early in the round, while it computes.
                time.sleep(0.5)
                self.children[lost].kill()
                self.children[lost].wait()
        wait(lambda: len(self.rounds()) >= rounds, "the last round")
        counted = self.rounds()[WARM:]
        seconds, tokens = (sum(event[name] for event in counted) for name in ("seconds", "tokens"))
        return tokens / seconds, f"{seconds / len(counted):.2f} s a round, {tokens // len(counted)} tokens"


def wait(done, what):
    begun = time.monotonic()
    while not done():
        if time.monotonic() - begun > PATIENCE:
            raise SystemExit(f"waited in vain for {what}")
        time.sleep(0.05)


def muster(program, arguments, delay):
    with tempfile.TemporaryDirectory() as home, Run(program, home, arguments, delay) as run:
        return run.measure(arguments.rounds, delay > 0)


def hivemind(peer, windows, delay, steps):
    """Tokens a second of some steps."""
    failing = FAILING if delay else 0.0
    seconds = [peer.ask(f"step {windows} {delay} {failing}")["seconds"] for _ in range(steps)]
    return windows * MODEL["sequence"] / statistics.median(seconds), f"{statistics.median(seconds):.2f} s a step"


def peers(arguments):
    shape = environment.words({**MODEL, **EXPERTS, "tied": 1})
    command = [sys.executable, BENCH / "dmoe_peer.py"]
    return {routing: environment.Child(*command, routing, arguments.threads, *shape) for routing in ("rows", "sequences")}


def compare(program, arguments):
    """Measures by turns; returns the tokens a second of each side at each delay."""
    found = {}

    def add(side, delay, measured):
        speed, told = measured
        found.setdefault((side, delay), []).append(speed)
        print(f"  {side:10} {1e3 * delay:4.0f} ms  {speed:9.1f} tokens/s  ({told})", flush=True)

    windows = {"rows": arguments.rows, "sequences": arguments.sequences}
    steps = 1 if arguments.quick else 3
    children = peers(arguments)
    try:
        for routing, child in children.items():
            hivemind(child, windows[routing], 0.0, 1)  # and buffers are there
        for _ in range(arguments.turns):
            for delay in (0.0, arguments.delay):
                add("muster", delay, muster(program, arguments, delay))
                for routing, child in children.items():
                    add(routing, delay, hivemind(child, windows[routing], delay, steps))
    finally:
        for child in children.values():
            child.__exit__()
    return found


def report(found, arguments):
    """Prints medians and ratios; returns whether a goal is missed."""
    middle = {key: statistics.median(speeds) for key, speeds in found.items()}
    print(f"\n{'tokens a second':20} {'muster':>9} {'rows':>9} {'sequences':>9}   muster/rows  muster/sequences")
    missed = []
    for delay in (0.0, arguments.delay):
        own, rows, sequences = (middle[side, delay] for side in ("muster", "rows", "sequences"))
        name = f"{1e3 * delay:.0f} ms, " + ("one of ten fails" if delay else "none fails")
        print(f"  {name:18} {own:9.0f} {rows:9.1f} {sequences:9.0f} {own / rows:13.0f} {own / sequences:17.1f}")
    for (routing, delay), goal in GOALS.items():
        delay = arguments.delay if delay else 0.0
        ratio = middle["muster", delay] / middle[routing, delay]
        name = f"Muster beside hivemind routed by {routing}, {1e3 * delay:.0f} ms"
        missed.append(environment.verdict(name, f"{ratio:.1f}", f"at least {goal}", ratio >= goal, not arguments.quick))
    return any(missed)


def leaf():
    """Runs the comparison of leaves; returns whether its goal is missed."""
    print("\nthe leaf alone, in GFLOP/s: a mixture's beside a dense one's", flush=True)
    command = ["cargo", "run", "--release", "--quiet", "--locked", "-p", "muster-compute", "--example", "mixture", "--"]
    command += ["width=128", f"sequence={MODEL['sequence']}", f"vocabulary={MODEL['vocabulary']}"]
    return any([subprocess.run([*command, f"threads={threads}"], cwd=environment.ROOT).returncode != 0
                for threads in (1, 2)])


def main():
    arguments = parse()
    program = pathlib.Path(arguments.program or environment.build("muster")).resolve()
    load = os.getloadavg()[0]
    print(f"{MEMBERS} members of {arguments.leaves} leaves of {LEAF * MODEL['sequence']} tokens; steps of {arguments.rows} and "
          f"{arguments.sequences} sequences of {MODEL['sequence']}; {os.cpu_count()} processors, load before {load:.1f}")
    missed = report(compare(program, arguments), arguments)
    if not arguments.no_leaf:
        missed |= leaf()
    sys.exit(missed)


if __name__ == "__main__":
    main()
