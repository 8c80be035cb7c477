#!/usr/bin/env python3
"""The held-out loss of a mixture of experts beside a dense model of equal operations a token, at equal tokens.

    python3 tests/bench/mixture_loss.py                       # one row, three seeds: a quarter of an hour on two processors
    python3 tests/bench/mixture_loss.py --quick               # whether all works
    python3 tests/bench/mixture_loss.py --rows 4 --branch 350 # also a mixture whose row becomes four in the middle

`bench-mixture-loss` trains each model with the arithmetic, the reduction and the update of a run, in one process without
a network. A token passes as many inner values in the mixture, of the shared expert and the chosen ones together, as in
the dense model; only the scores of the experts come on top (1 % of the operations). Both have the same windows in the
same order, optimiser, schedule and initial scale. Seeds change the draw of parameters, windows and rounding.

Bytes are tokens. The text is on every machine that has built Muster: the Rust sources of the crates of `Cargo.lock` that
cargo has unpacked, and the library of the Python that runs this script, half of each. Whole crates and modules are held
out. Its digest is printed, since losses on other text are other losses. Rows are chosen by the bytes before a window: a
table made here of a mixture of unigrams with equal shares. Beside the loss of the best row stands that of the two best,
mixed as `muster generate --ask 2` mixes them.

Exits with 1 where the mean of a mixture is above that of the dense model.
"""

import argparse
import concurrent.futures
import hashlib
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

import environment

environment.enter("numpy")

import numpy

from corpus import corpus, written

MODEL = dict(width=128, layers=3, heads=4, key_value_heads=4, hidden=344, sequence=128, initial_scale=0.08)
TRAINING = dict(leaves=4, leaf_windows=8)
OPTIMISER = dict(rate=0.004, minimum_rate=0.0004, warmup=100, schedule="cosine", beta1=0.9, beta2=0.95,
                 weight_decay=0.05)
EXPERTS = dict(columns=8, active=2, shared_hidden=172, balance=0.01)
ROUTE_TOKENS = 64


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few rounds of one seed, without judging")
    parser.add_argument("--rounds", type=int, default=700, help="of 4,096 bytes")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1, help="more than 1: one model more, with so many rows")
    parser.add_argument("--branch", type=int, help="the round before which one row becomes several; usually half of all")
    parser.add_argument("--jobs", type=int, default=2, help="models that are trained at a time, one thread each")
    parser.add_argument("--bytes", type=int, default=10_000_000, help="of the training text at most")
    parser.add_argument("--columns", type=int, default=EXPERTS["columns"])
    parser.add_argument("--program", help="bench-mixture-loss, where it is built already")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.seeds, arguments.bytes = 12, 1, 1_000_000
    if arguments.branch is None:
        arguments.branch = arguments.rounds // 2
    return arguments


def table(text, rows):
    """Scores of the bytes before a window for each row, and each row's bias: a mixture of unigrams, in integers.

    Expectation and maximisation over drawn places, hard as the choice itself is; biases move until shares are equal.
    """
    drawn = numpy.random.default_rng(5)
    tokens = numpy.frombuffer(text, dtype=numpy.uint8)
    places = drawn.integers(0, len(tokens) - ROUTE_TOKENS, 20_000)
    counts = numpy.stack([numpy.bincount(tokens[place : place + ROUTE_TOKENS], minlength=256) for place in places])
    chosen = drawn.integers(0, rows, len(places))
    bias = numpy.zeros(rows)
    for turn in range(60):
        sums = numpy.stack([counts[chosen == row].sum(0) for row in range(rows)]) + 1.0
        scores = counts @ numpy.log(sums / sums.sum(1, keepdims=True)).T
        for _ in range(40):
            shares = numpy.bincount((scores + bias).argmax(1), minlength=rows) / len(places)
            bias -= 8.0 * (shares - 1 / rows)
        chosen = (scores + bias).argmax(1)
    logarithms = numpy.log(sums / sums.sum(1, keepdims=True))
    numbers = numpy.rint(256 * numpy.concatenate([logarithms, bias[:, None]], 1)).astype(int)
    return "\n".join(" ".join(map(str, row)) for row in numbers.tolist()), shares


def settings(mixture, arguments):
    model = dict(MODEL)
    if mixture:
        model["family"] = "mixture"
        model["hidden"] = (MODEL["hidden"] - EXPERTS["shared_hidden"]) // EXPERTS["active"]
    tables = {"model": model, "training": {"rounds": arguments.rounds, **TRAINING},
              "optimiser": {**OPTIMISER, "warmup": min(OPTIMISER["warmup"], arguments.rounds // 3)},
              "aggregation": {"rule": "mean"}, "admission": {"start_nodes": 1, "start_verifiers": 0},
              "audit": {"share": 0.0, "final_rounds": 0}}
    if mixture:
        tables["experts"] = {**EXPERTS, "columns": arguments.columns}
    return written(tables)


def train(program, folder, name, seed, more):
    """Trains one model; its last line, and the losses on the way."""
    texts = [folder / "train", folder / "held-out"]
    file = "dense" if name == "dense" else "mixture"
    command = [program, folder / f"{file}.toml", *texts, f"seed={seed}", *more]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{name}: {done.stderr}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    last = lines[-1]
    print(f"  {name:20} seed {seed}: {last['held_out']:.4f}, {last['parameters'] / 1e6:.2f} M parameters, "
          f"{last['seconds']:.0f} s; " + (f"two rows mixed {last['mixed']:.4f}; " if last["mixed"] else "") + " ".join(f"{line['round']}:{line['held_out']:.3f}" for line in lines[:-1]), flush=True)
    return last


def main():
    arguments = parse()
    program = arguments.program or environment.build("bench-mixture-loss")
    train_text, held_out = corpus(arguments.bytes)
    digest = hashlib.sha256(train_text + held_out).hexdigest()[:16]
    tokens = arguments.rounds * TRAINING["leaves"] * TRAINING["leaf_windows"] * MODEL["sequence"]
    print(f"{len(train_text) / 1e6:.1f} MB of text, {len(held_out) / 1e6:.1f} MB held out, digest {digest}; "
          f"{arguments.rounds} rounds, {tokens / 1e6:.1f} M tokens")
    every = f"every={max(1, arguments.rounds // 3)}"
    models = {"dense": [every], "mixture": [every]}
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        (folder / "train").write_bytes(train_text)
        (folder / "held-out").write_bytes(held_out)
        for name in models:
            (folder / f"{name}.toml").write_text(settings(name == "mixture", arguments))
        if arguments.rows > 1:
            text, shares = table(train_text, arguments.rows)
            (folder / "table").write_text(text)
            print(f"shares of the rows: {', '.join(f'{share:.3f}' for share in shares)}")
            models[f"mixture, {arguments.rows} rows"] = [
                every, f"rows={arguments.rows}", f"branch={arguments.branch}", f"table={folder / 'table'}",
                f"route_tokens={ROUTE_TOKENS}"]
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            # Seed by seed, so that what else the machine does falls on every model.
            order = [(name, seed) for seed in range(arguments.seeds) for name in models]
            runs = [pool.submit(train, program, folder, name, seed, models[name]) for name, seed in order]
            found = {}
            for (name, _), run in zip(order, runs):
                found.setdefault(name, []).append(run.result())
    print(f"\n{'held-out loss, nats a byte':28} {'mean':>7} {'spread':>7}   parameters  seconds")
    for name, lasts in found.items():
        losses = [last["held_out"] for last in lasts]
        spread = statistics.stdev(losses) if len(losses) > 1 else 0.0
        print(f"  {name:26} {statistics.mean(losses):7.4f} {spread:7.4f}   {lasts[0]['parameters'] / 1e6:7.2f} M "
              f"{statistics.mean(last['seconds'] for last in lasts):8.0f}")
        if lasts[0]["mixed"]:
            mixed = [last["mixed"] for last in lasts]
            print(f"  {'the same, two rows mixed':26} {statistics.mean(mixed):7.4f}")
    mean = {name: statistics.mean(last["held_out"] for last in lasts) for name, lasts in found.items()}
    missed = [environment.verdict(f"held-out loss of the {name}", f"{mean[name]:.4f}", f"at most dense, {mean['dense']:.4f}",
                                  mean[name] <= mean["dense"], not arguments.quick)
              for name in models if name != "dense"]
    sys.exit(any(missed))


if __name__ == "__main__":
    main()
