#!/usr/bin/env python3
"""What `muster plan` says of a round beside what rounds take over such lines: twelve cells, of six kinds of lines, without and with
local updates.

    python3 tests/bench/plan.py                     # a quarter of an hour
    python3 tests/bench/plan.py --cells 2 3         # some of it

Four nodes and a steward on links of their own (`tests/links.sh`), 3.2 million parameters; a round is the median of the last half, since
share classes take some rounds to find their places. A leaf and the rest of a round are measured by `muster bench` beforehand, on one thread.
All processes share this machine's processors: a leaf takes as many times as long as there are nodes for each of them, and the rest as
there are members.

The goal has a line `verdict: …`: within 15 % in nine of twelve cells. Exits with 1 where it is missed, with 3 where the machine allows no
links.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import environment

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import uneven  # noqa: E402

# Lines of the nodes in Mbit/s, up or up/down; how many rounds are played: classes move by a step in each.
LINES = [(("10",) * 4, 6), (("50",) * 4, 10), (("100",) * 4, 10), (("1000",) * 4, 10),
         (("4/40", "100", "100", "100"), 14), (("10", "50", "100", "1000"), 14)]
LOCAL = (1, 8)
SIZE, DELAY = "3m", 0.015
WITHIN, LEAST = 0.15, 9


def number(pattern, text):
    return float(re.search(pattern, text)[1])


def out(*command, within=None):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=within)
    if done.returncode:
        print(done.stdout)
        sys.exit(3 if done.returncode == 3 else f"{' '.join(map(str, command))}: exit status {done.returncode}")
    return done.stdout


def compute(program, run):
    """Seconds of a leaf and of the rest of a round, beside those of the other processes."""
    cores = os.cpu_count() or 1
    # As many at once as there are processors: these slow each other down in the run as well.
    with concurrent.futures.ThreadPoolExecutor(cores) as pool:
        said = list(pool.map(lambda _: out(program, "bench", run), range(cores)))
    leaf, rest = (statistics.mean(number(rf"{what} +([\d.]+) s", text) for text in said) for what in ("leaf", "round"))
    nodes = len(LINES[0][0])
    return leaf * max(1, nodes / cores), rest * max(1, (nodes + 1) / cores)


def predicted(program, run, lines, local, leaf, rest):
    links = [word for line in lines for word in ("--link", line)]
    said = out(program, "plan", run, "--leaf", leaf, "--rest", rest, "--latency", DELAY, *links)
    row = "parts as lines carry" if local == 1 else f"{local} local steps"
    return local * number(rf"{row} +([\d.]+)", said)


def measured(program, lines, rounds, local):
    links = ["sh", ROOT / "tests/links.sh", "--rates", ",".join(("1000", *lines)), "--delay", f"{1000 * DELAY:g}ms", "--"]
    play = [sys.executable, ROOT / "tests/uneven.py", "--rounds", rounds, "--size", SIZE, "--local", local, program]
    return number(r"median of the last half ([\d.]+) s", out(*links, *play))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cells = [(lines, rounds, local) for local in LOCAL for lines, rounds in LINES]
    parser.add_argument("--cells", type=int, nargs="+", choices=range(len(cells)), default=list(range(len(cells))))
    parser.add_argument("--program", type=pathlib.Path, help="a built `muster`, instead of one of this tree")
    arguments = parser.parse_args()
    program = (arguments.program or pathlib.Path(environment.build("muster"))).resolve()
    good = 0
    with tempfile.TemporaryDirectory(prefix="muster-plan-") as folder:
        folder = pathlib.Path(folder)
        uneven.texts(folder)
        out(program, "data", "pack", "--text", folder / "text.txt", "--held-out", folder / "held-out.txt", "--out", folder / "corpus")
        runs = {}
        for local in LOCAL:
            (folder / f"{local}.toml").write_text(uneven.settings(SIZE, 10, len(LINES[0][0]), local))
            runs[local] = folder / f"run{local}"
            out(program, "run", "new", "--config", folder / f"{local}.toml", "--data", folder / "corpus", "--out", runs[local])
        costs = {local: compute(program, run) for local, run in runs.items()}
        for local, (leaf, rest) in costs.items():
            print(f"{local} steps: a leaf takes {leaf:.3f} s and the rest of a round {rest:.3f} s, with {len(LINES[0][0])} nodes on "
                  f"{os.cpu_count()} processors", flush=True)
        for cell in arguments.cells:
            lines, rounds, local = cells[cell]
            said, seen = predicted(program, runs[local], lines, local, *costs[local]), measured(program, lines, rounds, local)
            good += abs(said / seen - 1) <= WITHIN
            print(f"{cell:>3}  {', '.join(lines):<22} {local} steps: planned {said:.2f} s, measured {seen:.2f} s, {said / seen:.2f} of it",
                  flush=True)
    missed = environment.verdict("cells that are planned within 15 %", f"{good} of {len(arguments.cells)}", f"{LEAST} of {len(cells)}",
                                 good >= LEAST, judged=len(arguments.cells) == len(cells))
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
