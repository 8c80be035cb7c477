"""Leaf gradients on demand in eager PyTorch: answers `leaf.py` as `bench-leaf` does, for the tasks that it asks of both.

`peer.py FOLDER [name=value …]` takes the same settings; `manual=1` for attention in single operations. By `precision`:
f32, TF32 where the device has it, or autocast to bf16.
"""

import json
import os
import re
import sys
import time

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler complains of absent GPUs
import torch

import environment
import networks


def memory(name):
    with open("/proc/self/status") as status:
        return int(re.search(rf"{name}:\s*(\d+) kB", status.read())[1]) * 1024


def share_of_products(leaf, manual):
    """How much of a leaf's time goes to matrix products, those inside of fused attention left out."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
        leaf.gradient(manual)
    spent = {event.key: event.self_cpu_time_total for event in profile.key_averages()}
    return sum(spent.get(f"aten::{name}", 0) for name in ("mm", "addmm", "bmm", "baddbmm")) / sum(spent.values())


def main():
    folder, shape = sys.argv[1], environment.settings(sys.argv[2:])
    torch.set_num_threads(int(shape["threads"]))
    precision, cuda = int(shape.get("precision", 0)), int(shape.get("cuda", -1))
    device = torch.device("cpu" if cuda < 0 else f"cuda:{cuda}")
    torch.set_float32_matmul_precision("high" if precision == 1 else "highest")
    bf16 = torch.autocast(device.type, torch.bfloat16, enabled=precision == 2)
    # The library's own start: threads, dispatch tables, kernels made at first use.
    warm = torch.ones(64, 64, requires_grad=True)
    (warm @ warm).sum().backward()
    start, leaf, manual = memory("VmRSS"), None, bool(shape["manual"])
    for line in sys.stdin:
        task, _, count = line.strip().partition(" ")
        answer = {}
        if task == "load":
            leaf = networks.Leaf(folder, shape, torch.float32, device)
        elif task == "leaf":
            begun = time.perf_counter()
            for _ in range(int(count)):
                leaf.gradient(manual, bf16)
            if cuda >= 0:
                torch.cuda.synchronize()
            answer["seconds"] = (time.perf_counter() - begun) / int(count)
        elif task == "products":
            answer["share"] = share_of_products(leaf, manual)
        elif task == "peak":
            answer = {"start": start, "peak": memory("VmHWM")}
        else:
            sys.exit(f"no task is called {task}")
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
