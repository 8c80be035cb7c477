#!/usr/bin/env python3
"""Robust rules: Muster's, in defined bits, beside the reference library ByzFL, in turn, in one run.

    python3 tests/bench/rules.py                     # answers, then 16 inputs of 10⁷ and 64 of 10⁶ on two threads
    python3 tests/bench/rules.py --quick             # answers, and a tenth of the size: whether all works
    python3 tests/bench/rules.py --shapes 64x1000000 --threads 1 --rules krum,median --repeats 5

Answers are compared at 100,003 coefficients of 15 and 65 inputs (odd, because ByzFL's median of an even number lies
between two inputs) with ByzFL on numpy in f64: the largest difference, in units of the root mean square of ByzFL's
answer, must stay below 10⁻⁶, or the script exits with 1. ByzFL on torch turns everything into f32: its own rounding
shows there. A fifth of the inputs (of sixteen, three) are attackers that send the tenfold opposite.

Speed: ByzFL on f32 arrays of numpy and of torch, whichever is faster here, and Muster on the same numbers as integers;
every side is a process of its own that waits while the others compute, and the ratio is that of the medians over the
turns, above 1 Muster is faster. `wall` is the time that passed, `cpu` what the processors were busy for: on a machine
that does other things, believe the second, with `--threads 1`, because threads that wait may spin. A backend that takes
over three times as long as the other has one turn. Mixing is compared with what it precedes, because ours keeps no mixed
inputs; ByzFL's copies every neighbour of every input, so that its length is bounded by memory. Every rule has a line
`verdict: …`; exits with 1 if one is slower than the goal.
"""

import argparse
import os
import statistics
import sys
import tempfile

import environment

environment.enter("numpy", "torch", "torchvision", "byzfl")
import numpy

BENCH = environment.ROOT / "tests" / "bench"
LEAVES = 8
# Name: rule, mixing, radius in units of an honest input's norm (0: a number for ByzFL's ν), iterations.
CASES = {
    "mean": ("mean", 0, 0, 0),
    "median": ("median", 0, 0, 0),
    "trimmed-mean": ("trimmed-mean", 0, 0, 0),
    "krum": ("krum", 0, 0, 0),
    "multi-krum": ("multi-krum", 0, 0, 0),
    "geometric-median": ("geometric-median", 0, 0, 3),
    "fixed-radius-clip": ("fixed-radius-clip", 0, 0.5, 5),
    "mixing+mean": ("mean", 1, 0, 0),
    "mixing+trimmed-mean": ("trimmed-mean", 1, 0, 0),
}
NU = 0.1
GOAL = 3.0
# What ByzFL's mixing may copy, in numbers.
MIXED_NUMBERS = 400_000_000


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--shapes", default="16x10000000,64x1000000")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rules", default=",".join(CASES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--program", help="bench-rules, where it is built already")
    parser.add_argument("--no-speed", action="store_true")
    return parser.parse_args()


def assumed(count):
    """Attackers of a million: a share that is a whole number of inputs, as ByzFL's f is."""
    return 187_500 if count % 16 == 0 else 200_000


def make(path, count, length):
    """Writes the inputs; returns the norm of an honest one, a leaf."""
    source = numpy.random.default_rng(count + length)
    attackers, norm = count * assumed(count) // 10**6, 0.0
    common = source.standard_normal(length, dtype=numpy.float32)
    with open(path, "wb") as file:
        for place in range(count):
            values = 256 * LEAVES * (common + 0.7 * source.standard_normal(length, dtype=numpy.float32))
            if place >= count - attackers:
                values *= -10
            values = numpy.rint(values).astype("<i4")
            values.tofile(file)
            norm = norm or float(numpy.linalg.norm(values.astype(numpy.float64))) / LEAVES
    return norm


def task(name, count, norm, output="-"):
    rule, mixing, radius, iterations = CASES[name]
    radius = numpy.float32(radius * norm) if radius else numpy.float32(NU)
    return f"{rule} {mixing} {assumed(count)} {radius!s} {iterations} {output}"


class Sides:
    """The processes of one shape."""

    def __init__(self, program, folder, count, length, threads, kinds):
        self.file, self.count = os.path.join(folder, "inputs"), count
        self.norm = make(self.file, count, length)
        shape = [self.file, count, length, threads, LEAVES]
        os.environ.update({name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")})
        self.children = {"muster": environment.Child(program, *shape)}
        for backend in ("numpy", "torch"):
            command = [sys.executable, BENCH / "rules_peer.py", *shape, backend, kinds]
            self.children[backend] = environment.Child(*command)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for child in self.children.values():
            child.__exit__()
        os.remove(self.file)

    def answers(self, name, folder, kind):
        values = {}
        for side, child in self.children.items():
            output = os.path.join(folder, side)
            if child.ask(task(name, self.count, self.norm, output))["seconds"] is not None:
                values[side] = numpy.fromfile(output, dtype="<f4" if side == "muster" else kind).astype(numpy.float64)
        return values

    def turn(self, name, sides):
        """Seconds that passed, and of all processors, of some sides."""
        times = {}
        for side in sides:
            child = self.children[side]
            begun = child.processor_seconds()
            passed = child.ask(task(name, self.count, self.norm))["seconds"]
            times[side] = (passed, child.processor_seconds() - begun)
        return times


def check(program, folder, names, threads):
    """Compares answers; returns whether all agree."""
    good = True
    print("answers: largest difference from ByzFL, over the root mean square; numpy in f64, torch in f32")
    for count in (15, 65):
        with Sides(program, folder, count, 100_003, threads, "float64") as sides:
            for name in names:
                values = sides.answers(name, folder, "<f8")
                differences = []
                for backend in ("numpy", "torch"):
                    scale = numpy.sqrt(numpy.mean(values[backend] ** 2))
                    differences.append(float(numpy.abs(values["muster"] - values[backend]).max() / scale))
                good &= differences[0] < 1e-6
                print(f"{count:>4} × 100003 {name:<20} numpy {differences[0]:.1e}  torch {differences[1]:.1e}", flush=True)
    return good


def speed(program, folder, names, arguments, count, length):
    """Compares seconds; returns whether the goal is missed by some rule."""
    found = {}
    print(f"\n{count} inputs of {length}, {arguments.threads} thread(s), {arguments.repeats} turns; milliseconds, wall/cpu")
    print(f"{'':<20} {'muster':>16} {'numpy':>16} {'torch':>16}   ratio: wall    cpu   difference")
    with Sides(program, folder, count, length, arguments.threads, "float32") as sides:
        for name in names:
            values = sides.answers(name, folder, "<f4")  # and every side has run it once
            turns = [sides.turn(name, values)]
            least = min(turns[0][side][1] for side in values if side != "muster")
            quick = [side for side in values if side == "muster" or turns[0][side][1] <= 3 * least]
            turns += [sides.turn(name, quick) for _ in range(arguments.repeats - 1)]
            median = lambda side, which: statistics.median(turn[side][which] for turn in turns if side in turn)
            times = {side: (median(side, 0), median(side, 1)) for side in values}
            best = [min(times[side][which] for side in values if side != "muster") for which in (0, 1)]
            ratios = [best[which] / times["muster"][which] for which in (0, 1)]
            other = values.get("torch", values["numpy"])
            error = numpy.linalg.norm(values["muster"] - other) / numpy.linalg.norm(other)
            cell = lambda side: f" {1e3 * times[side][0]:>8.0f}/{1e3 * times[side][1]:<7.0f}" if side in times else f"{'-':>17}"
            shown = "".join(map(cell, sides.children))
            print(f"{name:<20}{shown}        {ratios[0]:>6.2f} {ratios[1]:>6.2f}   {error:.0e}", flush=True)
            found[name] = ratios[0]
    of = f"{count} inputs of {length}"
    slow = [environment.verdict(f"{name}, {of}", f"{ratio:.2f}", f"at least {GOAL}", ratio >= GOAL) for name, ratio in found.items()]
    return any(slow)


def main():
    arguments = parse()
    names = arguments.rules.split(",")
    program = arguments.program or environment.build("bench-rules")
    shapes = [tuple(map(int, shape.split("x"))) for shape in arguments.shapes.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        good = check(program, folder, names, arguments.threads)
        print("answers agree" if good else "ANSWERS DIFFER")
        for count, length in [] if arguments.no_speed else shapes:
            length = length // 10 if arguments.quick else length
            plain, mixing = ([name for name in names if CASES[name][1] == mixed] for mixed in (0, 1))
            if plain:
                good &= not speed(program, folder, plain, arguments, count, length)
            if mixing:
                good &= not speed(program, folder, mixing, arguments, count, min(length, MIXED_NUMBERS // count**2))
    sys.exit(not good)


if __name__ == "__main__":
    main()
