#!/usr/bin/env python3
"""Leaves by libtorch: beside the same model in eager PyTorch, beside the leaves of defined bits, and what the protocol adds.

    protocol/compute/libtorch.sh                                       # once: what the build needs
    python3 tests/bench/libtorch.py                                    # 5 and 10 M parameters on the processor
    python3 tests/bench/libtorch.py --quick                            # 5 M, f32, one thread: whether all works
    python3 tests/bench/libtorch.py --threads 1 --processor-time       # on a machine that is doing other things too
    python3 tests/bench/libtorch.py --device cuda --sizes 50,100 --precisions f32,tf32,bf16

A leaf is as many windows of 256 tokens as `--windows` says, vocabulary 4096. Speed: tokens a second of forward and
backward pass, ours with parameters copied to the device once for `--leaves` leaves, gradients copied back and put on the
grid beside the next leaf; PyTorch with its fused attention, parameters staying where they are, bf16 by autocast. Each side
is a process of its own that waits while the other computes; the ratio is the median over the pairs, above 1 we are faster.

Distance: |ours - right| / |right| in Euclidean norms, of the real gradient before the grid; `right` has defined bits
(f32, `bench-leaf` without libtorch). Whole gradient, median tensor, worst tensor and its name. Beside it the distance to
the same precision at another number of threads: what differs between honest machines.

Costs: what the protocol does with a leaf's gradient on the processor, as shares of a leaf; how much longer a leaf takes
when it does so beside the next leaf's gradient; and, computed from that, how many such processor cores hide it behind a
device whose leaves take so many milliseconds (`--device-leaf`). A contribution is summed beside the next leaf's gradient;
how much longer it takes to collect its leaves and add them on one thread.

Each goal has a line that begins with `verdict:`, met, MISSED, or not judged where it is one for other machines or sizes.
Exit code 1 if one is missed.
"""

import argparse
import os
import pathlib
import statistics
import sys
import tempfile

import environment

environment.enter("numpy", "torch")

import numpy

from leaf import BENCH, COMMON, SIZES

SIZES = SIZES | {"100": dict(width=1024, layers=8, heads=16, key_value_heads=16, hidden=2752)}
PRECISIONS = ["f32", "tf32", "bf16"]
# Tokens a second beside PyTorch; share of a leaf that the protocol may add, there and at so many tokens; relative
# distance of each tensor to defined bits in f32.
GOAL, SHARE, TOKENS, NEAR = 0.9, 0.05, 32_768, 1e-5


def ask(child, task, key):
    with child:
        child.ask("load")
        return child.ask(task).get(key)


class Model:
    """One model: its folder, and the processes that compute its leaves."""

    def __init__(self, program, folder, shape, cuda):
        self.program, self.folder, self.shape, self.cuda = program, folder, shape, cuda
        with self.exact() as exact:
            self.parameters = exact.ask("draw")["parameters"]

    def exact(self, **changes):
        return environment.Child(self.program, self.folder, *environment.words(self.shape | changes))

    def ours(self, precision, **changes):
        return self.exact(tch=1, precision=PRECISIONS.index(precision), cuda=self.cuda, **changes)

    def theirs(self, precision):
        shape = self.shape | {"precision": PRECISIONS.index(precision), "cuda": self.cuda, "manual": 0}
        return environment.Child(sys.executable, BENCH / "peer.py", self.folder, *environment.words(shape))

    def gradient(self, child):
        ask(child, "gradient", None)
        return numpy.fromfile(pathlib.Path(self.folder) / "gradient.f32", dtype="<f4").astype(numpy.float64)

    def tensors(self):
        layout = environment.json.loads((pathlib.Path(self.folder) / "layout.json").read_text())
        return [(name, slice(offset, offset + rows * columns)) for name, (rows, columns), offset in layout]


def seconds(child, leaves, processor_time):
    """Seconds of one of some leaves."""
    begun = child.processor_seconds()
    passed = child.ask(f"leaf {leaves}")["seconds"]
    return (child.processor_seconds() - begun) / leaves if processor_time else passed


def speed(model, precision, arguments):
    repeats, tokens = arguments.repeats, model.shape["windows"] * model.shape["sequence"]
    with model.ours(precision) as ours, model.theirs(precision) as theirs:
        for child in (ours, theirs):
            child.ask("load")
            child.ask("leaf 2")
        pairs = [[tokens / seconds(child, arguments.leaves, arguments.processor_time) for child in (ours, theirs)]
                 for _ in range(repeats)]
    ratios = sorted(ours / theirs for ours, theirs in pairs)
    ours, theirs = map(statistics.median, zip(*pairs))
    ratio = statistics.median(ratios)
    print(f"  {precision:5} speed     {ours:10.0f} tokens/s, PyTorch {theirs:10.0f}; ratio {ratio:.2f}, "
          f"{ratios[0]:.2f} to {ratios[-1]:.2f} in {repeats} pairs")
    return environment.verdict(f"tokens a second beside PyTorch, {model.said} {precision}", f"{ratio:.2f}",
                               f"at least {GOAL}", ratio >= GOAL, arguments.judges_speed)


def distances(model, found, right):
    """Of the whole gradient, of the median and of the worst tensor."""
    length = numpy.linalg.norm
    each = sorted((length(found[at] - right[at]) / length(right[at]), name) for name, at in model.tensors())
    return f"{length(found - right) / length(right):.1e}", f"{each[len(each) // 2][0]:.1e}", f"{each[-1][0]:.1e}", each[-1][1]


def distance(model, precision, right):
    found = model.gradient(model.ours(precision))
    whole, median, worst, name = distances(model, found, right)
    print(f"  {precision:5} distance  {whole} to defined bits, median tensor {median}, worst {worst} ({name})")
    missed = precision == "f32" and environment.verdict(f"worst tensor from defined bits, {model.said} f32", worst,
                                                        f"at most {NEAR:.0e}", float(worst) <= NEAR)
    again = model.gradient(model.ours(precision))
    differ = int((again != found).sum())
    missed |= environment.verdict(f"bits repeat in another process, {model.said} {precision}",
                                  f"{differ} of {len(found)} differ", "none", differ == 0)
    other = 1 if model.shape["threads"] > 1 else 2
    if model.cuda < 0:
        beside = model.gradient(model.ours(precision, threads=other))
    else:
        beside = model.gradient(model.exact(tch=1, precision=PRECISIONS.index(precision)))
    whole, median, worst, name = distances(model, beside, found)
    where = f"{other} thread(s)" if model.cuda < 0 else "the processor"
    print(f"  {precision:5}           {whole} to {where}, median tensor {median}, worst {worst} ({name})")
    return missed


def costs(model, precision, arguments):
    with model.ours(precision) as child:
        child.ask("load")
        spent = child.ask(f"costs {arguments.repeats}")
        beside = {task: child.ask(f"{task} {2 * arguments.repeats}")["seconds"] for task in ("leaf", "audit")}
        summed = child.ask(f"contribution {arguments.contribution}")
    parts = {name: spent[name] for name in ("grid", "commitment", "fingerprint", "apply")}
    told = ", ".join(f"{name} {1e3 * value:.1f} ms ({100 * value / spent['gradient']:.2f} %)" for name, value in parts.items())
    total = sum(parts.values())
    print(f"  {precision:5} costs     beside {1e3 * spent['gradient']:.0f} ms: {told}; together "
          f"{100 * total / spent['gradient']:.2f} %")
    longer = ", ".join(f"{name} {1e3 * took:.0f} ms, {100 * (took / spent['gradient'] - 1):+.1f} %"
                       for name, took in beside.items())
    print(f"  {precision:5}           overlapped, one after the other: {longer} to the gradient alone")
    # Each of these grows with the parameters and with nothing else, and is spread over threads.
    core = {"leaf": spent["grid"], "audit": spent["grid"] + spent["fingerprint"]}
    core = {name: took * model.shape["threads"] / model.parameters for name, took in core.items()}
    needed = ", ".join(f"{name} {1e9 * took:.2f} ns a parameter, {took * arguments.device_parameters / arguments.device_leaf:.1f}"
                       for name, took in core.items())
    print(f"  {precision:5}           computed, not measured: cores that hide it behind leaves of {1e3 * arguments.device_leaf:.0f} ms "
          f"of {arguments.device_parameters / 1e6:.0f} M parameters: {needed}")
    ratios = sorted(after / at_once for at_once, after in zip(summed["beside"], summed["after"]))
    print(f"  {precision:5}           a contribution of {arguments.contribution}: {1e3 * min(summed['beside']):.0f} ms; "
          f"{statistics.median(ratios):.2f} times as long ({ratios[0]:.2f} to {ratios[-1]:.2f}) if its leaves are "
          f"collected and then added on one thread")
    missed = environment.verdict(f"both ways have the same sum, {model.said} {precision}", summed["same"], "True", summed["same"])
    # What the next leaf does not hide of the grid; hashing is once a contribution, and here of a single leaf.
    share = beside["leaf"] / spent["gradient"] - 1 + spent["commitment"] / spent["gradient"]
    tokens = model.shape["windows"] * model.shape["sequence"]
    judged = arguments.judges_speed and precision == "bf16" and model.parameters >= 9e7 and tokens >= TOKENS
    return missed | environment.verdict(f"grid and hashing, share of a leaf of {tokens} tokens, {model.said} {precision}",
                                        f"{100 * share:.1f} %", f"at most {100 * SHARE:.0f} %", share <= SHARE, judged)


def tried(part, model, precision, rest):
    """Whether a part fails or misses a goal. The others are measured all the same."""
    try:
        return part(model, precision, rest)
    except SystemExit as why:
        print(f"  {precision:5} FAILED: {part.__name__}: {why}")
        return environment.verdict(f"{part.__name__}, {model.said} {precision}", "it fails", "to be measured", False)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    listed = lambda text: text.split(",")
    parser.add_argument("--sizes", type=listed, default=["5", "10"], metavar="5,10,50,100", help="million parameters")
    parser.add_argument("--precisions", type=listed, default=["f32", "bf16"], metavar="f32,tf32,bf16")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--windows", type=int, default=8, help="of 256 tokens, a leaf")
    parser.add_argument("--repeats", type=int, default=7, help="pairs of measurements")
    parser.add_argument("--contribution", type=int, default=8, help="leaves of one")
    parser.add_argument("--leaves", type=int, help="of one measurement [default: 1 on the processor, 8 elsewhere]")
    parser.add_argument("--device-leaf", type=float, default=50, metavar="MS", help="of the device that costs hide behind")
    parser.add_argument("--device-parameters", type=float, default=100, metavar="MILLION", help="of a model on it")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--parts", type=listed, default=["speed", "distance", "costs"], metavar="speed,distance,costs")
    parser.add_argument("--processor-time", action="store_true", help="of one thread, instead of the time that passed")
    parser.add_argument("--quick", action="store_true", help="5 M, f32, one thread, 2 repeats, unless told otherwise")
    parser.add_argument("--program", help="bench-leaf, where it is built already with --features tch")
    if "--quick" in sys.argv:
        parser.set_defaults(sizes=["5"], precisions=["f32"], threads=1, repeats=2, contribution=2)
    arguments = parser.parse_args()
    for given, known in ((arguments.sizes, SIZES), (arguments.precisions, PRECISIONS)):
        if set(given) - set(known):
            parser.error(f"{', '.join(set(given) - set(known))}: choose of {', '.join(known)}")
    if arguments.processor_time and (arguments.threads, arguments.device) != (1, "cpu"):
        parser.error("--processor-time says nothing about more than one thread or another device: add --threads 1")
    name, _, number = arguments.device.partition(":")
    arguments.cuda = -1 if name == "cpu" else int(number or 0)
    # Goals of speed are goals for a graphics processor, and not for a trial.
    arguments.judges_speed = name != "cpu" and not arguments.quick
    arguments.leaves = arguments.leaves or (1 if name == "cpu" else 8)
    arguments.device_leaf, arguments.device_parameters = arguments.device_leaf / 1e3, arguments.device_parameters * 1e6
    return arguments


def main():
    arguments = parse()
    # Two threads that spin for each other on a busy machine say nothing.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    program = arguments.program or environment.build("bench-leaf", "tch")
    print(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    missed = False
    for size in arguments.sizes:
        shape = COMMON | SIZES[size] | {"threads": arguments.threads, "windows": arguments.windows}
        with tempfile.TemporaryDirectory() as folder:
            model = Model(program, folder, shape, arguments.cuda)
            model.said = f"{size} M"
            print(f"{model.parameters / 1e6:.1f} M parameters, {shape['windows']} × {shape['sequence']} tokens, "
                  f"{arguments.device}, {arguments.threads} thread(s)")
            if "distance" in arguments.parts:
                right = model.gradient(model.exact())
            for precision in arguments.precisions:
                if "speed" in arguments.parts:
                    missed |= tried(speed, model, precision, arguments)
                if "distance" in arguments.parts:
                    missed |= tried(distance, model, precision, right)
                if "costs" in arguments.parts:
                    missed |= tried(costs, model, precision, arguments)
                sys.stdout.flush()
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
