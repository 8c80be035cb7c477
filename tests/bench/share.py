#!/usr/bin/env python3
"""What a member holds of a run with rows of experts: memory and disk beside those of a run of one row, equally large.

    python3 tests/bench/share.py             # 93 M parameters, one node, three rounds: minutes, 20 GB
    python3 tests/bench/share.py --quick     # 1 M parameters: whether all works

Both runs have the same trunk and the same experts. In one they are five rows of eight, of which a node holds one; in the
other they are one row of forty, of which everybody holds all. Each is a run as users start it, `muster host` and `muster
join`; the rows come to be after the first round. Memory is the peak of a process as the system counts it (VmHWM), disk
the newest state that a node keeps to go on from.

Each goal has a line `verdict: …`; exits with 1 where one is missed.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import time

import environment

ROWS, COLUMNS = 5, 8
NODES = 1
ROUNDS = 3
LARGE = dict(width=384, layers=6, heads=6, key_value_heads=6, hidden=320, sequence=128)
SMALL = dict(width=64, layers=2, heads=2, key_value_heads=2, hidden=64, sequence=64)
SHARED = {384: 128, 64: 32}
# Of a run of one row, at most.
MEMORY, DISK = 0.35, 0.25
PATIENCE = 1200
# Bytes of memory that are to be left.
LEAST = 1_000_000_000


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small model, without judging memory")
    parser.add_argument("--program", help="muster, where it is built already")
    return parser.parse_args()


def settings(model, rows):
    """A run with so many rows, or with all experts in one."""
    tables = {
        "model": {"family": '"mixture"', **model},
        "experts": {"rows": rows, "columns": COLUMNS if rows > 1 else ROWS * COLUMNS, "active": 2, "held": 0, "lag": 0,
                    "shared_hidden": SHARED[model["width"]], "branch": 1 / ROUNDS},
        "training": {"rounds": ROUNDS, "leaves": 2 * NODES, "leaf_windows": 2, "recompute": "true"},
        "audit": {"share": 0.0, "final_rounds": 0},
        "admission": {"start_nodes": NODES, "start_verifiers": 0},
        "timers": {"commit": 300.0, "part": 120.0, "result": 120.0},
        "retention": {"contributions": 2, "states": 2},
        "rollback": {"limit": 0.0},
    }
    lines = ([f"[{name}]"] + [f"{key} = {value}" for key, value in table.items()] for name, table in tables.items())
    return "\n".join(line for table in lines for line in table) + "\n"


class Run:
    """A run from its beginning to its end."""

    def __init__(self, program, home, model, rows):
        self.program, self.home, self.children, self.peaks = program, pathlib.Path(home), {}, {}
        (self.home / "text").write_text(" ".join(str(n * 2654435761 % (1 << 32) >> 8) for n in range(100_000)))
        (self.home / "run.toml").write_text(settings(model, rows))
        routed = ["--rows", str(rows)] if rows > 1 else []
        self.good("data", "pack", "--text", "text", "--out", "corpus", *routed)
        self.good("run", "new", "--config", "run.toml", "--data", "corpus", "--out", "run")
        self.start("steward", "host", "run", "--exit-when-done", "--listen", "127.0.0.1:0")
        self.wait(lambda: (self.home / "run" / "address").exists(), "the steward to listen")
        invitation = self.good("invite", "run", "--role", "node", "--uses", str(NODES))
        for node in range(NODES):
            self.start(f"node{node}", "join", invitation, "--data-dir", f"node{node}", "--threads", "1",
                       "--listen", "127.0.0.1:0")
        self.wait(lambda: all(child.poll() is not None for child in self.children.values()), "the end of the run")
        for name, child in self.children.items():
            if child.returncode:
                raise SystemExit(f"{name} ended with {child.returncode}:\n" + (self.home / f"{name}.txt").read_text()[-2000:])

    def good(self, *words):
        return environment.good(self.program, self.home, *words)

    def start(self, name, *words):
        with open(self.home / f"{name}.txt", "w") as said:
            self.children[name] = subprocess.Popen([self.program, *words, "--no-gossip"], cwd=self.home,
                                                   stdin=subprocess.DEVNULL, stdout=said, stderr=said)

    def wait(self, done, what):
        begun = time.monotonic()
        while not done():
            if time.monotonic() - begun > PATIENCE:
                raise SystemExit(f"waited in vain for {what}")
            for name, child in self.children.items():
                self.peaks[name] = peak(child.pid) or self.peaks.get(name, 0)
            if available() < LEAST:
                # A machine that swaps answers nobody for minutes.
                for child in self.children.values():
                    child.kill()
                raise SystemExit(f"this machine has too little memory: {max(self.peaks.values()) / 1e9:.1f} GB in one process")
            time.sleep(0.05)

    def state(self, name):
        """Bytes of the newest state that a member keeps."""
        kept = (self.home / name / "states").glob("*.state")
        return max(kept, key=lambda path: int(path.stem)).stat().st_size


def peak(process):
    """Bytes of memory that a process had at most; nothing once it has ended."""
    try:
        lines = pathlib.Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return found[0] if found else None


def available():
    """Bytes of memory that are left."""
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def main():
    arguments = parse()
    program = pathlib.Path(arguments.program or environment.build("muster")).resolve()
    model, found = SMALL if arguments.quick else LARGE, {}
    for rows in (ROWS, 1):
        with tempfile.TemporaryDirectory() as home:
            begun = time.monotonic()
            run = Run(program, home, model, rows)
            nodes = [f"node{node}" for node in range(NODES)]
            found[rows] = max(run.peaks[node] for node in nodes), run.peaks["steward"], max(map(run.state, nodes))
            seconds = time.monotonic() - begun
        node, steward, state = (value / 1e6 for value in found[rows])
        print(f"{rows} row{'s' if rows > 1 else ''}: a node takes {node:.0f} MB at most and keeps {state:.1f} MB of state, the "
              f"steward takes {steward:.0f} MB; {seconds:.0f} s", flush=True)
    memory, steward, disk = (mine / whole for mine, whole in zip(found[ROWS], found[1]))
    print(f"the steward's memory is {steward:.2f} of that of the run of one row")
    missed = [
        environment.verdict("memory of a node beside a run of one row", f"{memory:.2f}", f"at most {MEMORY}",
                            memory <= MEMORY, not arguments.quick),
        environment.verdict("state of a node beside a run of one row", f"{disk:.3f}", f"at most {DISK}", disk <= DISK,
                            not arguments.quick),
    ]
    sys.exit(any(missed))


if __name__ == "__main__":
    main()
