#!/usr/bin/env python3
"""Memory of a run by role: the largest resident size of steward, nodes and verifier, in bytes a parameter.

    python3 tests/bench/memory.py                     # 10, 50 and 100 M parameters, 2 nodes, and 8 nodes of 10 M
    python3 tests/bench/memory.py --sizes 10 --rounds 6

Runs as users start them: `muster host`, `muster join` on one thread, `muster-verifier watch`, with default retention, all with
`--device cpu`: what the driver of a device takes is its vendor's (56 MiB for PoCL). A leaf is one window of 64 tokens, so that
activations are small beside the model. There are as many rounds as states are kept, and four more. The
size is what Linux says in the end (VmHWM). The programs are looked for in target/release, or where CARGO_TARGET_DIR says.

Each goal has a line `verdict: …`; exits with 1 where one is missed. `said` is what `muster run new` says that each role takes.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Of `[model]`, by millions of parameters.
SHAPES = {10: dict(width=384, layers=6, heads=6, key_value_heads=6, hidden=1024),
          50: dict(width=768, layers=7, heads=12, key_value_heads=12, hidden=2048),
          100: dict(width=1024, layers=8, heads=16, key_value_heads=16, hidden=2816)}
# Bytes a parameter, at most.
GOALS = {"node": 16, "verifier": 10, "steward": 8}
# How far what is said may be from what is seen.
SAID = 0.15
# `retention.states` of the default settings, and some rounds more.
ROUNDS = 16 + 4
# No role takes memory for a driver.
PROCESSOR = ["--device", "cpu"]
# Seconds until the run is given up.
PATIENCE = 3600


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", choices=SHAPES, default=list(SHAPES), help="millions of parameters")
    parser.add_argument("--nodes", type=int, nargs="+", default=[2, 8], help="8 are tried with the smallest size alone")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--set", nargs="*", default=[], metavar="SECTION.KEY=VALUE", help="other settings of the run")
    return parser.parse_args()


def programs():
    folder = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
    if not ((folder / "muster").exists() and (folder / "muster-verifier").exists()):
        subprocess.run(["cargo", "build", "--release", "--locked", "-p", "muster-node", "-p", "muster-verifier"], cwd=ROOT, check=True)
    return folder / "muster", folder / "muster-verifier"


def settings(size, nodes, rounds, more):
    sections = {"model": dict(SHAPES[size], sequence=64),
                "training": dict(rounds=rounds, leaves=nodes, leaf_windows=1),
                "admission": dict(start_nodes=nodes, start_verifiers=1)}
    for setting in more:
        name, _, value = setting.partition("=")
        section, _, key = name.partition(".")
        sections.setdefault(section, {})[key] = json.loads(value)
    return "".join(f"[{section}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
                   for section, values in sections.items())


class Member:
    """A process of the run, and the most memory that it has had."""

    def __init__(self, role, folder, *command):
        self.role, self.peak, self.log = role, 0, open(folder / f"{role}.{time.monotonic_ns()}.log", "w+")
        self.process = subprocess.Popen([str(word) for word in command], stdout=self.log, stderr=subprocess.STDOUT,
                                        stdin=subprocess.DEVNULL)

    def look(self):
        """Whether it still runs."""
        try:
            status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
            found = re.search(r"VmHWM:\s+(\d+) kB", status)
            self.peak = max(self.peak, int(found[1]) * 1024 if found else 0)
        except OSError:
            pass
        return self.process.poll() is None

    def said(self):
        self.log.seek(0)
        return self.log.read()[-2000:]


def out(*command):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def bytes_of(text):
    """What `muster` says of memory, in bytes, by role."""
    size = r"([\d.]+) (MiB|GiB)"
    said = re.search(f"a node takes about {size} of memory, a verifier {size}, the steward {size}", text).groups()
    sizes = [float(number) * (1 << 20 if unit == "MiB" else 1 << 30) for number, unit in zip(said[::2], said[1::2])]
    return dict(zip(GOALS, sizes))


def play(muster, verifier, size, nodes, rounds, more):
    """Parameters, what was said that each role takes, and the members that took part."""
    with tempfile.TemporaryDirectory(prefix="muster-memory-") as home:
        home = pathlib.Path(home)
        (home / "run.toml").write_text(settings(size, nodes, rounds, more))
        (home / "text.txt").write_text("".join(f"{number} is followed by {number + 1}.\n" for number in range(20_000)))
        out(muster, "data", "pack", "--text", home / "text.txt", "--out", home / "corpus")
        made = out(muster, "run", "new", "--config", home / "run.toml", "--data", home / "corpus", "--out", home / "run")
        members = [Member("steward", home, muster, "host", home / "run", "--exit-when-done", "--listen", "127.0.0.1:0", *PROCESSOR)]
        begun = time.monotonic()
        try:
            while not (home / "run" / "address").exists():
                if not members[0].look() or time.monotonic() - begun > 600:
                    sys.exit(f"the steward does not listen\n{members[0].said()}")
                time.sleep(0.2)
            invite = lambda role, uses: out(muster, "invite", home / "run", "--role", role, "--uses", uses).strip()
            out(verifier, "enroll", invite("verifier", 1), "--data-dir", home / "verifier")
            members.append(Member("verifier", home, verifier, "watch", home / "verifier", *PROCESSOR))
            invitation = invite("node", nodes)
            for number in range(nodes):
                members.append(Member("node", home, muster, "join", invitation, "--data-dir", home / f"node{number}", "--listen",
                                      "127.0.0.1:0", "--threads", 1, *PROCESSOR))
            while any([member.look() for member in members]):
                if time.monotonic() - begun > PATIENCE:
                    sys.exit(f"the run is not over after {PATIENCE} s\n{members[0].said()}")
                time.sleep(0.1)
        finally:
            for member in members:
                member.process.kill()
                member.process.wait()
        for member in members:
            if member.process.returncode:
                sys.exit(f"a {member.role} ended with {member.process.returncode}\n{member.said()}")
        return parameters(made), bytes_of(made), members, time.monotonic() - begun


def parameters(text):
    """Of the first line of `muster run new`."""
    return int(re.search(r"(\d+) parameters", text)[1])


def main():
    arguments, missed = parse(), False
    muster, verifier = programs()
    print("size   nodes  role       peak       B/parameter  goal  said by muster")
    for size in arguments.sizes:
        for nodes in arguments.nodes:
            if nodes > 2 and size != min(arguments.sizes):
                continue
            count, said, members, seconds = play(muster, verifier, size, nodes, arguments.rounds, arguments.set)
            for role, goal in GOALS.items():
                peak = max(member.peak for member in members if member.role == role)
                each = peak / count
                told = f"{said[role] / 2**20:8.0f} MiB"
                print(f"{size:3} M  {nodes:5}  {role:9}  {peak / 2**20:6.0f} MiB  {each:10.1f}  {goal:5}  {told}", flush=True)
                missed |= each > goal
                print(f"verdict: {role} of {size} M beside {nodes - 1 if role == 'node' else nodes} others: "
                      f"{'met' if each <= goal else 'missed'}")
                share = said[role] / peak
                near = abs(share - 1) <= SAID
                missed |= not near
                print(f"verdict: what is said of it, {share:.2f} of what was seen: {'met' if near else 'missed'}")
            print(f"       {seconds:.0f} s", flush=True)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
