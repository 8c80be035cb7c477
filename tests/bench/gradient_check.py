#!/usr/bin/env python3
"""The gradient of a leaf beside PyTorch's, which differentiates a formulation of its own in f64.

    python3 tests/bench/gradient_check.py                      # every model below: half a minute
    python3 tests/bench/gradient_check.py --models tied --all  # one, with a line for every tensor

`bench-leaf` writes the f32 gradient that comes before the grid; both sides read the same parameters (gains and biases
moved away from 1 and 0) and tokens. The error of a tensor is |ours - theirs| / |theirs|, in Euclidean norms; beside it
the error of PyTorch's own f32 gradient. A row of the table is the worst of all layers and experts. Exits with 1 where an
error of ours is above 1e-5. Where theirs is zero, as that of an expert which no token passed, ours must be zero, too.
"""

import argparse
import pathlib
import re
import sys
import tempfile

import environment

environment.enter("numpy", "torch")

import numpy
import torch

import networks

LIMIT = 1e-5
COMMON = dict(albert=0, columns=0, vocabulary=512, width=96, layers=3, heads=6, key_value_heads=6, hidden=200, sequence=96, tied=1,
              rope_base=10000.0, norm_epsilon=1e-5, initial_scale=0.06, windows=3, recompute=0, threads=2)
MODELS = {
    "tied": {},
    "untied, shared keys": {"tied": 0, "key_value_heads": 2, "heads": 12, "sequence": 77},
    "recomputed": {"recompute": 1, "threads": 1},
    "5 M": {"vocabulary": 4096, "width": 256, "layers": 5, "heads": 4, "key_value_heads": 4, "hidden": 688,
            "sequence": 256, "windows": 2, "initial_scale": 0.02},
    "ALBERT": {"albert": 1, "embedding": 32, "masked": 0.15, "layers": 4},
    "mixture": {"columns": 8, "active": 2, "shared_hidden": 120, "hidden": 72, "balance": 0.01},
    "mixture, unbalanced": {"columns": 6, "active": 3, "shared_hidden": 50, "hidden": 88, "balance": 0, "recompute": 1},
    "mixture, most experts unused": {"columns": 64, "active": 1, "shared_hidden": 64, "hidden": 40, "balance": 0.5,
                                     "sequence": 20, "windows": 1, "tied": 0, "key_value_heads": 2, "threads": 1},
    "ALBERT, recomputed": {"albert": 1, "embedding": 48, "masked": 0.3, "layers": 2, "sequence": 50, "recompute": 1},
}


def move(folder, layout):
    """Moves gains and biases away from where they begin."""
    path = pathlib.Path(folder) / "parameters.f32"
    flat = numpy.fromfile(path, dtype="<f4")
    drawn = numpy.random.default_rng(7)
    for name, (rows, columns), offset in layout:
        if rows == 1:
            centre = 1.0 if name.lower().endswith("norm.weight") else 0.0
            flat[offset : offset + columns] = centre + 0.3 * drawn.standard_normal(columns)
    flat.tofile(path)


def compare(program, shape):
    """Loss of both sides; of each tensor, our error and that of PyTorch's f32."""
    with tempfile.TemporaryDirectory() as folder:
        with environment.Child(program, folder, *environment.words(shape)) as muster:
            muster.ask("draw")
            # In f32, as the manifest has them.
            rounded = {name: float(numpy.float32(shape.get(name, 0))) for name in ("norm_epsilon", "balance")}
            exact = {**shape, **rounded}
            leaf = networks.Leaf(folder, exact, torch.float64)
            move(folder, leaf.layout)
            muster.ask("load")
            muster.ask("gradient")
            ours = muster.ask("loss")["loss"]
        leaf, single = (networks.Leaf(folder, exact, kind) for kind in (torch.float64, torch.float32))
        found = networks.numbers(folder, "gradient.f32", "<f4")
    theirs = leaf.gradient(manual=True)
    single.gradient()
    errors = {}
    for name, part in leaf.split(found):
        expected = leaf.parameters[name].grad.flatten()
        both = (part, single.parameters[name].grad.flatten())
        errors[name] = [relative(one, expected) for one in both]
    return ours, theirs, errors


def relative(found, expected):
    """The error of a tensor; infinite where it should be zero and is not."""
    if bool((found == expected).all()):
        return 0.0
    return ((found - expected).norm() / expected.norm()).item()


def report(errors, every):
    """Prints the errors, of all layers together unless `every`; returns whether all of ours are good."""
    rows = {}
    for name, error in errors.items():
        name = name if every else re.sub(r"(layers|experts)\.\d+", r"\1.*", name)
        rows.setdefault(name, []).append(error)
    for name, row in rows.items():
        ours, theirs = map(max, zip(*row))
        print(f"  {name:84} {ours:9.2e} {theirs:9.2e}{'' if good(row) else '  ABOVE ' + str(LIMIT)}")
    return good(errors.values())


def good(errors):
    # So written, a NaN is not good.
    return all(ours <= LIMIT for ours, _ in errors)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=lambda text: text.split(";"), default=list(MODELS), metavar="A;B",
                        help="of: " + "; ".join(MODELS))
    parser.add_argument("--all", action="store_true", help="a line for every tensor")
    parser.add_argument("--program", help="bench-leaf, where it is built already")
    arguments = parser.parse_args()
    unknown = set(arguments.models) - set(MODELS)
    if unknown:
        parser.error(f"no model is called {'; '.join(unknown)}")
    program = arguments.program or environment.build("bench-leaf")
    passed = True
    for name in arguments.models:
        ours, theirs, errors = compare(program, {**COMMON, **MODELS[name]})
        print(f"{name}: loss {ours:.7f}, PyTorch in f64 {theirs:.7f}")
        print(f"  {'relative error of the gradient of':84} {'ours':>9} {'theirs':>9}")
        passed &= report(errors, arguments.all) and abs(ours - theirs) <= LIMIT * abs(theirs)
    print(f"{'every' if passed else 'NOT every'} loss and gradient within {LIMIT}")
    sys.exit(not passed)


if __name__ == "__main__":
    main()
