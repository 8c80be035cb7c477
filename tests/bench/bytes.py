#!/usr/bin/env python3
"""The held-out loss beside the bytes that a round moves, by the fineness of the two grids.

    python3 tests/bench/bytes.py                     # 0.6 M parameters, one seed
    python3 tests/bench/bytes.py --model large       # 5 M parameters
    python3 tests/bench/bytes.py --local             # local updates: 16 steps a round
    python3 tests/bench/bytes.py --overlap           # updates that come a round late
    python3 tests/bench/bytes.py --quick             # whether all works

`bench-train` trains with the arithmetic, the robust rule and the update of a run, in one process without a network. First
`grid_bits` varies, which contributions are rounded to, then `result_bits`, which results are. Bytes are those of the chunks and
blocks as they travel (COMMIT-6, AGG-24), for each parameter: of one member's contribution, and of all results together. A node of
n sends about (n − 1)/n of its contribution, and (n − 1)/n of the results to others.
"""

import argparse
import concurrent.futures
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

import environment
from corpus import SHAPES, corpus, written

RATES = {("demo", False): 0.006, ("large", False): 0.003, ("demo", True): 0.004, ("large", True): 0.002}
MEMBERS = 4


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few rounds")
    parser.add_argument("--model", choices=SHAPES, default="demo")
    parser.add_argument("--local", action="store_true", help="local updates instead of gradients")
    parser.add_argument("--overlap", action="store_true", help="updates that come a round late")
    parser.add_argument("--optimiser", nargs="*", default=[], metavar="NAME=VALUE", help="other settings of [optimiser] in run.toml")
    parser.add_argument("--grid-bits", type=int, nargs="*", default=[13, 8, 6, 4, 3])
    parser.add_argument("--result-bits", type=int, nargs="*", default=[8, 6, 4, 3, 2, 1], help="each with grid_bits 8")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--leaves", type=int, default=16, help="of a round, shared by four members; of local updates steps of each")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--bytes", type=int, default=10_000_000, help="of the training text at most")
    parser.add_argument("--jobs", type=int, default=2, help="models that are trained at a time, one thread each")
    parser.add_argument("--program", help="bench-train, where it is built already")
    arguments = parser.parse_args()
    arguments.rounds = 3 if arguments.quick else arguments.rounds or (60 if arguments.local else 150)
    return arguments


def settings(arguments, grid_bits, result_bits):
    rate = RATES[arguments.model, arguments.local]
    tables = {"model": SHAPES[arguments.model],
              "training": {"rounds": arguments.rounds, "leaf_windows": 2, "grid_bits": grid_bits, "overlap": arguments.overlap,
                           "leaves": arguments.leaves * (MEMBERS if arguments.local else 1)},
              "optimiser": {"rate": rate, "warmup": max(1, arguments.rounds // 10)} | environment.settings(arguments.optimiser),
              "aggregation": {"result_bits": result_bits},
              "admission": {"start_nodes": 1, "start_verifiers": 0}, "audit": {"share": 0.0, "final_rounds": 0}}
    if arguments.local:
        tables["local"] = {"steps": arguments.leaves, "segment": 4}
    return written(tables)


def main():
    arguments = parse()
    program = arguments.program or environment.build("bench-train")
    texts = corpus(1_000_000 if arguments.quick else arguments.bytes)
    cases = [(bits, min(bits, 8)) for bits in arguments.grid_bits] + [(8, bits) for bits in arguments.result_bits if bits < 8]
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        for name, text in zip(("train", "held-out"), texts):
            (folder / name).write_bytes(text)

        def run(case, seed):
            file = folder / f"{case[0]}-{case[1]}.toml"
            file.write_text(settings(arguments, *case))
            command = [program, file, folder / "train", folder / "held-out", f"seed={seed}", f"members={MEMBERS}",
                       f"every={arguments.rounds}"]
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
            if done.returncode:
                sys.exit(done.stderr)
            return json.loads(done.stdout.splitlines()[-1])

        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            jobs = {case: [pool.submit(run, case, seed) for seed in range(arguments.seeds)] for case in cases}
            first = True
            for case, lasts in jobs.items():
                lasts = [last.result() for last in lasts]
                if first:
                    what = f"{arguments.leaves} local steps a round" if arguments.local else f"{arguments.leaves} leaves a round"
                    late = ", updates a round late" if arguments.overlap else ""
                    print(f"{lasts[0]['parameters']} parameters, {MEMBERS} members, {arguments.rounds} rounds, {what}, {arguments.seeds} seeds{late}")
                    print("| grid_bits | result_bits | held-out loss | contribution, bytes | results, bytes |\n|---|---|---|---|---|")
                    first = False
                losses = [last["held_out"] for last in lasts]
                spread = f" ± {statistics.stdev(losses):.3f}" if len(losses) > 1 else ""
                mean = lambda name: statistics.mean(last[name] for last in lasts)
                print(f"| {case[0]} | {case[1]} | {statistics.mean(losses):.4f}{spread} | {mean('bytes'):.2f} | {mean('result_bytes'):.2f} |", flush=True)


if __name__ == "__main__":
    main()
