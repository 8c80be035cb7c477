#!/usr/bin/env python3
"""A leaf's gradient: Muster beside eager PyTorch in f32, in turn, in one run; memory; what the protocol adds.

    python3 tests/bench/leaf.py                                # 5, 10 and 50 M parameters, 1 and 2 threads
    python3 tests/bench/leaf.py --quick                        # 5 M, one thread, few repeats: whether all works
    python3 tests/bench/leaf.py --sizes 10 --threads 2 --repeats 9 --parts speed,memory
    python3 tests/bench/leaf.py --threads 1 --processor-time   # on a machine that is doing other things too

A leaf is 8 windows of 256 tokens, vocabulary 4096. Speed: forward and backward pass, ours with the grid; PyTorch with
its fused attention or in single operations, whichever is faster here. What share of its leaf PyTorch spends on matrix
products, by its own profiler, bounds the ratio where ours are no faster. Each side is a process of its own that waits
while the other computes; the ratio is the median over the pairs, above 1 we are faster. Memory: peak of a fresh process
(VmHWM) less what it held before the model came (interpreter and library, after a first small product), so parameters,
gradient, packed weights, activations and buffers; PyTorch with the attention that needs less. Nothing else should run
beside it; where that cannot be had, `--processor-time` counts what one thread was given instead of what passed.

What the protocol adds is set against a leaf of at least half a second (more windows where 8 take less); here each
figure is the least of all repeats. The limit of
grid, update and fingerprint is the machine's memory: copying a vector of the model's length or adding it to another,
whichever moves more bytes a second. That of the commitment is BLAKE3 over the same bytes in one piece. `of limit` is
the share of that speed which ours reaches. Each goal has a line `verdict: …`; exits with 1 if one is missed.
"""

import argparse
import math
import os
import statistics
import sys
import tempfile

import environment

BENCH = environment.BENCH
COMMON = dict(albert=0, vocabulary=4096, sequence=256, tied=1, rope_base=10000.0, norm_epsilon=1e-5,
              initial_scale=0.02, windows=8, recompute=0)
SIZES = {
    "5": dict(width=256, layers=5, heads=4, key_value_heads=4, hidden=688),
    "10": dict(width=384, layers=5, heads=6, key_value_heads=6, hidden=1024),
    "50": dict(width=768, layers=7, heads=12, key_value_heads=12, hidden=2048),
}
GOALS = {"speed": 1.5, "memory": 0.8, "costs": 0.03}
LEAST_SECONDS = 0.5
# Bytes that each part of the protocol moves for one coefficient: the grid reads the gradient and writes its integer; the
# update reads the aggregate twice and changes parameters and both moments.
BYTES = {"grid": 8, "fingerprint": 4, "apply": 32}


def operations(shape):
    """Floating-point operations of a leaf, forward and backward, attention only where it is causal."""
    width, tokens = shape["width"], shape["windows"] * shape["sequence"]
    key_width = width // shape["heads"] * shape["key_value_heads"]
    layer = 2 * width * width + 2 * width * key_width + 3 * width * shape["hidden"]
    weights = shape["layers"] * layer + shape["vocabulary"] * width
    return 6 * tokens * (weights + shape["layers"] * width * shape["sequence"])


class Sides:
    """How the processes of both sides are made."""

    def __init__(self, program, python, folder, size, threads, processor_time):
        self.program, self.python, self.folder, self.name = program, python, folder, f"{size} M"
        self.shape = COMMON | SIZES[size] | {"threads": threads}
        self.processor_time = processor_time

    def muster(self, **changes):
        return environment.Child(self.program, self.folder, *environment.words(self.shape | changes))

    def torch(self, **changes):
        words = environment.words(self.shape | {"manual": 0} | changes)
        return environment.Child(self.python, BENCH / "peer.py", self.folder, *words)

    def seconds(self, child):
        """Seconds of one leaf."""
        begun = child.processor_seconds()
        passed = child.ask("leaf 1")["seconds"]
        return child.processor_seconds() - begun if self.processor_time else passed


def speed(sides, repeats):
    """Compares the seconds of a leaf; returns ours, and whether the goal is missed."""
    with sides.muster() as muster, sides.torch() as fused, sides.torch(manual=1) as manual:
        peers = {"fused": fused, "single operations": manual}
        for child in (muster, *peers.values()):
            child.ask("load")
            sides.seconds(child)
        best = {name: min(sides.seconds(peer) for _ in range(2)) for name, peer in peers.items()}
        attention = min(best, key=best.get)
        pairs = [(sides.seconds(muster), sides.seconds(peers[attention])) for _ in range(repeats)]
        share = statistics.median(peers[attention].ask("products")["share"] for _ in range(3))
    ours, theirs = map(statistics.median, zip(*pairs))
    ratios = sorted(theirs / ours for ours, theirs in pairs)
    work = operations(sides.shape) / 1e9
    print(f"  speed: {ours:.3f} s ({work / ours:.0f} GFLOP/s), PyTorch {theirs:.3f} s ({work / theirs:.0f} GFLOP/s, "
          f"attention {attention}); ratio {statistics.median(ratios):.3f}, "
          f"{ratios[0]:.2f} to {ratios[-1]:.2f} in {repeats} pairs")
    print(f"  of PyTorch's leaf {100 * share:.0f} % are matrix products: at their speed, and with all else for nothing, "
          f"the ratio would be {1 / share:.2f}")
    return ours, verdict(sides, statistics.median(ratios), "speed")


def verdict(sides, value, part):
    """Says whether a goal is met; gives whether it is missed."""
    goal, at_least = GOALS[part], part == "speed"
    met = value >= goal if at_least else value <= goal
    name = f"{part}, {sides.name}, {sides.shape['threads']} thread(s)"
    return environment.verdict(name, f"{value:.3f}", f"{'at least' if at_least else 'at most'} {goal}", met)


def peak(child):
    """Peak bytes that the model adds to a fresh process."""
    with child:
        child.ask("load")
        child.ask("leaf 2")
        told = child.ask("peak")
    return told["peak"] - told["start"]


def memory(sides):
    theirs = {name: peak(sides.torch(manual=manual)) for name, manual in (("fused", 0), ("single operations", 1))}
    least = min(theirs, key=theirs.get)
    told = ", ".join(f"{value / 1e6:.0f} MB {name}" for name, value in theirs.items())
    print(f"  memory: PyTorch {told}")
    ratios = []
    for name, recompute in (("kept", 0), ("recomputed", 1)):
        ours = peak(sides.muster(recompute=recompute))
        ratios.append(ours / theirs[least])
        print(f"    activations {name}: {ours / 1e6:.0f} MB, ratio {ratios[-1]:.3f}")
    return verdict(sides, ratios[0], "memory")


def recompute(sides, repeats):
    """What computing activations again costs in time."""
    with sides.muster() as kept, sides.muster(recompute=1) as again:
        for child in (kept, again):
            child.ask("load")
            sides.seconds(child)
        ratios = [sides.seconds(again) / sides.seconds(kept) for _ in range(repeats)]
    print(f"  recomputing activations: {statistics.median(ratios):.2f} times the seconds")


def costs(sides, repeats, leaf):
    """What the protocol adds to a leaf of `leaf` seconds for 8 windows; gives whether the goal is missed."""
    windows = sides.shape["windows"] * max(1, math.ceil(LEAST_SECONDS / leaf))
    with sides.muster(windows=windows) as muster:
        count = muster.ask("load")["parameters"]
        spent = muster.ask(f"costs {repeats}")
        gradient = spent["gradient"]
        if sides.processor_time:
            gradient = min(sides.seconds(muster) for _ in range(repeats)) - spent["grid"]
    # A copy reads and writes four bytes a coefficient, an addition reads eight; the fingerprint has one thread.
    rate, rate_of_one = (max(8 * count / copy, 12 * count / add) for copy, add in (spent["all"], spent["one"]))
    limits = {name: each * count / (rate_of_one if name == "fingerprint" else rate) for name, each in BYTES.items()}
    limits["commitment"] = spent["hash"]
    print(f"  the protocol beside {gradient:.2f} s for a gradient of {windows} windows "
          f"(memory {rate / 1e9:.1f} GB/s)")
    for name, limit in limits.items():
        print(f"    {name:12} {1e3 * spent[name]:8.2f} ms {100 * spent[name] / gradient:6.2f} %"
              f"   {100 * limit / spent[name]:4.0f} % of limit")
    total = sum(spent[name] for name in limits)
    print(f"    together     {1e3 * total:8.2f} ms {100 * total / gradient:6.2f} %")
    return verdict(sides, total / gradient, "costs")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    listed = lambda text: text.split(",")
    parser.add_argument("--sizes", type=listed, default=list(SIZES), metavar="5,10,50", help="million parameters")
    parser.add_argument("--threads", type=listed, default=["1", "2"], metavar="1,2")
    parser.add_argument("--repeats", type=int, default=7, help="pairs of leaves")
    parser.add_argument("--parts", type=listed, default=["speed", "memory", "costs"], metavar="speed,memory,costs")
    parser.add_argument("--processor-time", action="store_true", help="of one thread, instead of the time that passed")
    parser.add_argument("--quick", action="store_true", help="5 M, one thread, 2 repeats, unless told otherwise")
    parser.add_argument("--program", help="bench-leaf, where it is built already")
    if "--quick" in sys.argv:
        parser.set_defaults(sizes=["5"], threads=["1"], repeats=2)
    arguments = parser.parse_args()
    if arguments.processor_time and arguments.threads != ["1"]:
        parser.error("--processor-time says nothing about more than one thread: add --threads 1")
    for given, known in ((arguments.sizes, SIZES), (arguments.parts, GOALS)):
        if set(given) - set(known):
            parser.error(f"{', '.join(set(given) - set(known))}: choose of {', '.join(known)}")
    return arguments


def main():
    arguments = parse()
    program, python = arguments.program or environment.build("bench-leaf"), environment.python("numpy", "torch")
    print(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    missed = False
    for size in arguments.sizes:
        for threads in map(int, arguments.threads):
            with tempfile.TemporaryDirectory() as folder:
                sides = Sides(program, python, folder, size, threads, arguments.processor_time)
                with sides.muster() as muster:
                    count = muster.ask("draw")["parameters"]
                    leaf = sides.seconds(muster)
                work = operations(sides.shape) / 1e9
                print(f"{count / 1e6:.1f} M parameters, {threads} thread(s), {work:.0f} GFLOP a leaf")
                if "speed" in arguments.parts:
                    leaf, slow = speed(sides, arguments.repeats)
                    recompute(sides, arguments.repeats)
                    missed |= slow
                if "memory" in arguments.parts:
                    missed |= memory(sides)
                if "costs" in arguments.parts:
                    missed |= costs(sides, arguments.repeats, leaf)
    sys.exit(missed)


if __name__ == "__main__":
    main()
