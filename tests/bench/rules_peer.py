"""Robust rules on demand from ByzFL: answers `rules.py` as `bench-rules` does.

`rules_peer.py FILE INPUTS LENGTH THREADS LEAVES BACKEND TYPE`, BACKEND `numpy` or `torch`, TYPE `float32` or `float64`.
"""

import json
import sys
import time

import numpy
import torch

import byzfl


def rule(name, f, radius, iterations):
    """ByzFL's rule, and whether the inputs are mixed before it."""
    return {
        "mean": lambda: byzfl.Average(),
        "median": lambda: byzfl.Median(),
        "trimmed-mean": lambda: byzfl.TrMean(f),
        "geometric-median": lambda: byzfl.GeometricMedian(nu=radius, T=iterations),
        "krum": lambda: byzfl.Krum(f),
        "multi-krum": lambda: byzfl.MultiKrum(f),
        "fixed-radius-clip": lambda: byzfl.CenteredClipping(m=None, L=iterations, tau=radius),
    }[name]()


def main():
    file, count, length, threads, leaves, backend, kind = sys.argv[1:]
    torch.set_num_threads(int(threads))
    torch.set_grad_enabled(False)
    inputs = numpy.fromfile(file, dtype="<i4").reshape(int(count), int(length)).astype(kind)
    inputs /= int(leaves)
    if backend == "torch":
        inputs = torch.from_numpy(inputs)
    for line in sys.stdin:
        name, mixing, assumed, radius, iterations, output = line.split()
        f = int(count) * int(assumed) // 10**6
        combine, mix = rule(name, f, float(radius), int(iterations)), byzfl.NNM(f)
        begun = time.perf_counter()
        try:
            values = combine(mix(inputs) if mixing == "1" else inputs)
        except RuntimeError as error:  # torch's quantile takes at most 2²⁴ numbers
            print(json.dumps({"seconds": None, "why": str(error)}), flush=True)
            continue
        seconds = time.perf_counter() - begun
        if output != "-":
            numpy.asarray(values, dtype="<f4" if kind == "float32" else "<f8").tofile(output)
        print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
