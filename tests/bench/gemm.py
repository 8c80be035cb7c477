#!/usr/bin/env python3
"""Matrix products: Muster's defined chains beside OpenBLAS (numpy) and libtorch, in turn, in one run.

    python3 tests/bench/gemm.py                  # all paths of this machine, 1 and 2 threads, 128 to 2048
    python3 tests/bench/gemm.py --sizes 128,512 --paths avx512 --threads 1 --rounds 9
    python3 tests/bench/gemm.py --threads 1 --processor-time   # on a machine that is doing other things too

The script makes its own virtual environment under target/bench-venv, with numpy and torch 2.11.0 (4.7 GB), and builds
`bench-gemm`. Each library lives in a process of its own that answers "run this shape N times"; they take turns, and a
library's time for a shape is its best over all rounds. Ours includes the packing of both factors. The ratio is ours
over the better of the two others, in GFLOP/s: above 1 we are faster. Nothing else should run beside it; where that
cannot be had, `--processor-time` counts what one thread was given instead of what passed, and takes medians. The goal has
a line `verdict: …` for each number of threads; exits with 1 if one is missed.
"""

import argparse
import math
import os
import statistics
import subprocess
import sys
import time

import environment

GOAL = 0.95
FORMS = ["nn", "nt", "tn", "tt"]

PEER = """
import sys, time
name, threads = sys.argv[1], int(sys.argv[2])
if name == "openblas":
    import numpy as np
    make = lambda rows, columns: np.random.default_rng(1).random((rows, columns), dtype=np.float32) - 0.5
    transposed = lambda x: x.T
    run = lambda a, b, c: np.matmul(a, b, out=c)
else:
    import torch
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    make = lambda rows, columns: torch.rand(rows, columns) - 0.5
    transposed = lambda x: x.t()
    run = lambda a, b, c: torch.mm(a, b, out=c)
for line in sys.stdin:
    rows, columns, depth, left, right, repeats = line.split()
    rows, columns, depth, repeats = map(int, (rows, columns, depth, repeats))
    a = transposed(make(depth, rows)) if left == "t" else make(rows, depth)
    b = transposed(make(columns, depth)) if right == "t" else make(depth, columns)
    c = make(rows, columns)
    run(a, b, c)
    begun = time.perf_counter()
    for _ in range(repeats):
        run(a, b, c)
    print(time.perf_counter() - begun, flush=True)
"""


class Library:
    """A process that runs products."""

    def __init__(self, command, threads, prefix=""):
        variables = dict(os.environ, OPENBLAS_NUM_THREADS=str(threads), OMP_NUM_THREADS=str(threads))
        self.prefix = prefix
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables
        )

    def seconds(self, shape, form, repeats):
        task = f"{self.prefix}{shape[0]} {shape[1]} {shape[2]} {form[0]} {form[1]} {repeats}\n"
        self.process.stdin.write(task)
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"the process {self.process.args[:3]} ended at the task {task!r}")
        return float(answer) / repeats

    def processor_seconds(self, shape, form, repeats):
        """Time of the process for `repeats` products, less what a task takes around them."""
        clock = (~self.process.pid << 3) | 2  # the processor clock of another process, as Linux names it
        marks = [time.clock_gettime(clock)]
        for count in (repeats + 1, 1):
            self.seconds(shape, form, count)
            marks.append(time.clock_gettime(clock))
        return ((marks[1] - marks[0]) - (marks[2] - marks[1])) / repeats


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    numbers = lambda text: [int(word) for word in text.split(",")]
    parser.add_argument("--sizes", type=numbers, default=[128, 192, 256, 384, 512, 768, 1024, 1536, 2048])
    parser.add_argument("--forms", type=lambda text: text.split(","), default=FORMS)
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--paths", type=lambda text: text.split(","), default=["avx512", "avx2"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--milliseconds", type=float, help="of each turn; 40, on several threads 300, because the libraries' "
                        "threads spin for a while when their turn is over")
    parser.add_argument("--program", help="bench-gemm, where it is built already")
    parser.add_argument("--processor-time", action="store_true", help="one thread on a busy machine")
    arguments = parser.parse_args()
    if arguments.processor_time and arguments.threads != [1]:
        parser.error("--processor-time counts one thread: add --threads 1")
    return arguments


def measure(libraries, threads, shape, form, arguments):
    """GFLOP/s of each library: its best turn, or its median of processor time."""
    work = 2.0 * shape[0] * shape[1] * shape[2]
    milliseconds = arguments.milliseconds or (40 if threads == 1 else 300)
    repeats = max(1, round(milliseconds / 1e3 / (work / 80e9)))
    turns = {name: [] for name in libraries}
    for _ in range(arguments.rounds):
        for name, library in libraries.items():
            seconds = library.processor_seconds if arguments.processor_time else library.seconds
            turns[name].append(seconds(shape, form, repeats))
    choose = statistics.median if arguments.processor_time else min
    return {name: work / choose(seconds) / 1e9 for name, seconds in turns.items()}


def main():
    arguments = parse()
    python = environment.python("numpy", "torch")
    program = arguments.program or environment.build("bench-gemm")
    flags = open("/proc/cpuinfo").read() if os.path.exists("/proc/cpuinfo") else ""
    paths = [path for path in arguments.paths if {"avx512": "avx512dq", "avx2": "avx2"}.get(path, "") in flags]
    missed = False
    for threads in arguments.threads:
        peers = {name: Library([python, "-c", PEER, name, str(threads)], threads) for name in ("openblas", "libtorch")}
        ours = {path: Library([program], threads, f"{path} {threads} ") for path in paths}
        libraries = {**ours, **peers}
        print(f"\n{threads} thread(s), GFLOP/s\n{'shape':>12} " + " ".join(f"{name:>9}" for name in libraries), end="")
        print("  ratio: " + " ".join(f"{path:>7}" for path in paths))
        ratios = {path: [] for path in paths}
        for size in arguments.sizes:
            for form in arguments.forms:
                speeds = measure(libraries, threads, (size,) * 3, form, arguments)
                best = max(speeds[name] for name in peers)
                print(f"{size:>9} {form} " + " ".join(f"{speed:9.1f}" for speed in speeds.values()), end="         ")
                for path in paths:
                    ratios[path].append(speeds[path] / best)
                    print(f" {ratios[path][-1]:7.3f}", end="")
                print(flush=True)
        for path, values in ratios.items():
            mean = math.exp(sum(map(math.log, values)) / len(values))
            print(f"{threads} thread(s), {path}: ratio to the better of both: geometric mean {mean:.3f}")
            # The libraries take the fastest instructions of the processor: goals are for ours that do, too.
            missed |= environment.verdict(f"least ratio, {path}, {threads} thread(s)", f"{min(values):.3f}",
                                          f"at least {GOAL}", min(values) >= GOAL, path == paths[0])
        for library in libraries.values():
            library.process.stdin.close()
            library.process.wait()
    sys.exit(missed)


if __name__ == "__main__":
    main()
