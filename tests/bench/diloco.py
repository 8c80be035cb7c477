#!/usr/bin/env python3
"""The held-out loss of local updates beside DiLoCo in PyTorch, and beside one update a round, at equal tokens.

    python3 tests/bench/diloco.py                    # three seeds: half an hour on two processors
    python3 tests/bench/diloco.py --quick            # whether all works
    python3 tests/bench/diloco.py --steps 64 --rounds 30
    python3 tests/bench/diloco.py --model large --rounds 30 --seeds 1

`bench-train` trains with the arithmetic, the robust rule and the update of a run of local updates, in one process without a
network; then a run that exchanges gradients, of as many rounds with as many leaves, which sends as many bytes or more. DiLoCo
(Douillard et al. 2023) is written here once more in plain PyTorch: AdamW whose moments each member keeps for itself over all
rounds, and Nesterov momentum along the plain mean of the differences, in f32. All have the same model, initial scale,
schedule, optimiser, number of members, and tokens; windows are drawn at random, by each for itself.

Of each the best of several learning rates counts, chosen by the first seed. Exits with 1 where local updates are more than 0.5 %
above DiLoCo, or not below one update a round.
"""

import argparse
import concurrent.futures
import copy
import hashlib
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile

import environment

environment.enter("numpy", "torch")

import numpy
import torch

import networks
from corpus import SHAPES, corpus, written

OPTIMISER = dict(schedule="cosine", beta1=0.9, beta2=0.99, weight_decay=0.05, clip_norm=1.0)
OUTER = dict(outer_rate=0.7, outer_momentum=0.9)
# What each chooses from; so few updates as one a round want larger steps.
RATES = {"local updates": (0.002, 0.004, 0.008), "DiLoCo in PyTorch": (0.001, 0.002, 0.004), "one update a round": (0.003, 0.006, 0.012)}
# How much smaller they are for each model.
SMALLER = {"demo": 1, "large": 2}
WINDOWS = 4


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few rounds of one seed, without judging")
    parser.add_argument("--model", choices=SHAPES, default="demo", help="0.6 or 5 M parameters")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--steps", type=int, default=16, help="local steps of a round")
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--grid-bits", type=int, default=8)
    parser.add_argument("--bytes", type=int, default=10_000_000, help="of the training text at most")
    parser.add_argument("--jobs", type=int, default=2, help="models that are trained at a time, one thread each")
    parser.add_argument("--program", help="bench-train, where it is built already")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.seeds, arguments.bytes = 3, 1, 1_000_000
    return arguments


def warmup(arguments):
    return max(1, arguments.rounds // 10)


def settings(arguments, local, rate):
    training = {"rounds": arguments.rounds, "leaf_windows": WINDOWS, "grid_bits": arguments.grid_bits,
                "leaves": arguments.members * arguments.steps}
    tables = {"model": SHAPES[arguments.model], "training": training, "optimiser": {**OPTIMISER, "rate": rate, "minimum_rate": rate / 10,
                                                                "warmup": warmup(arguments)},
              "admission": {"start_nodes": 1, "start_verifiers": 0}, "audit": {"share": 0.0, "final_rounds": 0}}
    if local:
        # Segments of four steps, or as short as there may be: what is audited changes no bit of what is learnt.
        segment = next(h for h in range(4, arguments.steps + 1) if arguments.steps % h == 0 and arguments.steps // h <= 64)
        tables["local"] = {"steps": arguments.steps, "segment": segment, **OUTER}
    return written(tables)


def rate(step, arguments):
    """ARITH-46 with the schedule of `OPTIMISER`, by rounds."""
    start, most = warmup(arguments), arguments.rate
    if step < start:
        return most * (step + 1) / start
    progress = (step - start) / max(1, arguments.rounds - 1 - start)
    return most * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))


class Peer:
    """DiLoCo in PyTorch."""

    def __init__(self, arguments, folder, seed):
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        self.arguments = arguments
        self.shape = {**SHAPES[arguments.model], "vocabulary": 256, "tied": True, "rope_base": 10_000.0, "norm_epsilon": 1e-5}
        self.text, self.held_out = (torch.from_numpy(numpy.fromfile(folder / name, dtype=numpy.uint8)).long()
                                    for name in ("train", "held-out"))
        self.network = networks.Decoder(self.shape)
        bound = math.sqrt(3) * self.shape["initial_scale"]
        for name, tensor in self.network.named_parameters():
            if tensor.dim() > 1:
                adds_up = name.endswith(("o_proj.weight", "down_proj.weight"))
                torch.nn.init.uniform_(tensor, *(sign * bound / (math.sqrt(2 * self.shape["layers"]) if adds_up else 1) for sign in (-1, 1)))
        self.outer = torch.optim.SGD(self.network.parameters(), lr=OUTER["outer_rate"], momentum=OUTER["outer_momentum"], nesterov=True)
        self.members = [copy.deepcopy(self.network) for _ in range(arguments.members)]
        self.inner = [self.adam(member) for member in self.members]

    def adam(self, member):
        matrices = [p for p in member.parameters() if p.dim() > 1]
        norms = [p for p in member.parameters() if p.dim() == 1]
        groups = [{"params": matrices, "weight_decay": OPTIMISER["weight_decay"]}, {"params": norms, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=1.0, betas=(OPTIMISER["beta1"], OPTIMISER["beta2"]), eps=1e-8)

    def windows(self, starts, text):
        length = self.shape["sequence"]
        return torch.stack([text[start : start + length + 1] for start in starts])

    def loss(self, member, windows):
        return member(windows[:, :-1], None, windows[:, 1:])

    def round(self, number):
        with torch.no_grad():
            start = [p.clone() for p in self.network.parameters()]
            difference = [torch.zeros_like(p) for p in start]
        for member, inner in zip(self.members, self.inner):
            with torch.no_grad():
                for own, p in zip(member.parameters(), start):
                    own.copy_(p)
            for group in inner.param_groups:
                group["lr"] = rate(number, self.arguments)
            for _ in range(self.arguments.steps):
                starts = self.shape["sequence"] * torch.randint((len(self.text) - 1) // self.shape["sequence"], (WINDOWS,))
                inner.zero_grad()
                self.loss(member, self.windows(starts, self.text)).backward()
                torch.nn.utils.clip_grad_norm_(member.parameters(), OPTIMISER["clip_norm"])
                inner.step()
            with torch.no_grad():
                for sum, own, p in zip(difference, member.parameters(), start):
                    sum += (p - own) / len(self.members)
        for p, moved in zip(self.network.parameters(), difference):
            p.grad = moved
        self.outer.step()

    @torch.no_grad()
    def evaluate(self, most=256):
        length = self.shape["sequence"]
        count = (len(self.held_out) - 1) // length
        taken = min(most, count)
        starts = [length * (index * count // taken) for index in range(taken)]
        return statistics.mean(self.loss(self.network, self.windows(some, self.held_out)).item()
                               for some in (starts[i : i + 32] for i in range(0, taken, 32)))


def peer(arguments):
    folder, seed = arguments.peer.rsplit(":", 1)
    model = Peer(arguments, pathlib.Path(folder), int(seed))
    for number in range(arguments.rounds):
        model.round(number)
    print(json.dumps({"held_out": model.evaluate()}))


def last_line(name, seed, command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{name}: {done.stderr}")
    last = json.loads(done.stdout.splitlines()[-1])
    print(f"  {name:28} seed {seed}: {last['held_out']:.4f}" + (f", {last['bytes']:.2f} bytes a parameter" if "bytes" in last else ""), flush=True)
    return last


def main():
    arguments = parse()
    if arguments.peer:
        return peer(arguments)
    program = arguments.program or environment.build("bench-train")
    train_text, held_out = corpus(arguments.bytes)
    digest = hashlib.sha256(train_text + held_out).hexdigest()[:16]
    tokens = arguments.rounds * arguments.members * arguments.steps * WINDOWS * SHAPES[arguments.model]["sequence"]
    print(f"{len(train_text) / 1e6:.1f} MB of text, digest {digest}; {arguments.members} members, {arguments.rounds} rounds of "
          f"{arguments.steps} steps, {tokens / 1e6:.1f} M tokens")
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        (folder / "train").write_bytes(train_text)
        (folder / "held-out").write_bytes(held_out)
        shared = [f"--{name}={getattr(arguments, name)}" for name in ("model", "rounds", "steps", "members")]

        def run(name, rate, seed):
            label = f"{name}, {rate}"
            if name == "DiLoCo in PyTorch":
                command = [sys.executable, __file__, f"--peer={folder}:{seed}", f"--rate={rate}", *shared]
            else:
                file = folder / f"{label}.toml"
                file.write_text(settings(arguments, name == "local updates", rate))
                command = [program, file, folder / "train", folder / "held-out", f"seed={seed}", f"members={arguments.members}",
                           f"every={arguments.rounds}"]
            return last_line(label, seed, command)

        rates_of = {name: [rate / SMALLER[arguments.model] for rate in rates] for name, rates in RATES.items()}
        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            first = {(name, rate): pool.submit(run, name, rate, 0) for name, rates in rates_of.items() for rate in rates}
            loss = {one: done.result()["held_out"] for one, done in first.items()}
            best = {name: min(rates, key=lambda rate: loss[name, rate]) for name, rates in rates_of.items()}
            others = {name: [pool.submit(run, name, rate, seed) for seed in range(1, arguments.seeds)] for name, rate in best.items()}
            found = {name: [first[name, best[name]].result(), *(done.result() for done in others[name])] for name in RATES}
    print(f"\n{'held-out loss, nats a byte':30} {'mean':>7} {'spread':>7}   bytes a parameter and round")
    mean = {}
    for name, lasts in found.items():
        losses = [last["held_out"] for last in lasts]
        mean[name] = statistics.mean(losses)
        spread = statistics.stdev(losses) if len(losses) > 1 else 0.0
        bytes = f"{statistics.mean(last['bytes'] for last in lasts):8.2f}" if "bytes" in lasts[0] else "    4.00"
        print(f"  {f'{name}, {best[name]}':28} {mean[name]:7.4f} {spread:7.4f}   {bytes}")
    ours, theirs, one = mean["local updates"], mean["DiLoCo in PyTorch"], mean["one update a round"]
    judged = not arguments.quick
    missed = [environment.verdict("local updates beside DiLoCo", f"{ours / theirs:.4f}", "at most 1.005", ours <= 1.005 * theirs, judged),
              environment.verdict("local updates beside one update a round", f"{ours:.4f}", f"below {one:.4f}", ours < one, judged)]
    sys.exit(any(missed))


if __name__ == "__main__":
    main()
