"""Averages one tensor with others on demand, by hivemind or by gloo: answers `exchange.py`.

`exchange_peer.py hivemind|gloo RANK SIZE PARAMETERS ADDRESS`. The first line on the standard output has what the others need to
find rank 0, and the first line on the standard input what rank 0 said. Then each task is `prepare`, after which everything that
can be done before the values are known is done (hivemind has found its group), and `go`, which averages. Answers are JSON.
"""

import json
import logging
import os
import socket
import sys
import time

# Gloo warns of hosts without a name.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
import torch  # noqa: E402

# What a group may take to be found, in seconds.
MATCHMAKING = 5.0
PATIENCE = 120


class Gloo:
    def __init__(self, rank, size, parameters, address):
        self.rank, self.size = rank, size
        os.environ["GLOO_SOCKET_IFNAME"] = "lo" if address.startswith("127.") else "wire"
        with socket.create_server((address, 0)) as free:
            say(f"tcp://{address}:{free.getsockname()[1]}")
        at = hear()
        torch.distributed.init_process_group("gloo", init_method=at, rank=rank, world_size=size)
        self.values = torch.empty(parameters)

    def prepare(self):
        self.values.fill_(self.rank)
        return True

    def go(self):
        torch.distributed.all_reduce(self.values)
        self.values /= self.size
        return self.values[0].item()


class Hivemind:
    def __init__(self, rank, size, parameters, address):
        import hivemind
        from hivemind.averaging.control import AveragingStage

        self.rank, self.size, self.waits = rank, size, AveragingStage.AWAITING_TRIGGER
        self.finished = AveragingStage.FINISHED
        here = [f"/ip4/{address}/tcp/0"]
        first = hivemind.DHT(start=True, host_maddrs=here) if rank == 0 else None
        say(" ".join(map(str, first.get_visible_maddrs())) if first else "")
        at = hear().split()
        dht = first or hivemind.DHT(start=True, host_maddrs=here, initial_peers=at)
        self.averager = hivemind.averaging.DecentralizedAverager(
            [torch.empty(parameters)], dht, start=True, prefix="exchange", target_group_size=size, min_group_size=size,
            min_matchmaking_time=MATCHMAKING, request_timeout=MATCHMAKING / 2, next_chunk_timeout=PATIENCE)

    def prepare(self):
        with self.averager.get_tensors() as tensors:
            tensors[0].fill_(self.rank)
        self.step = self.averager.step(wait=False, require_trigger=True, allow_retries=False, timeout=PATIENCE)
        end = time.monotonic() + 4 * MATCHMAKING
        while self.step.stage not in (self.waits, self.finished) and time.monotonic() < end:
            time.sleep(0.01)
        return self.step.stage == self.waits

    def go(self):
        try:
            self.step.allow_allreduce()
            self.step.result(timeout=PATIENCE)
        except Exception:  # noqa: BLE001 - of any kind: the group was not found, or fell apart
            self.step.cancel()
            return None
        with self.averager.get_tensors() as tensors:
            return tensors[0][0].item()


def say(text):
    print(text, flush=True)


def hear():
    return sys.stdin.readline().strip()


def main():
    library, rank, size, parameters, address = sys.argv[1:]
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    peer = {"gloo": Gloo, "hivemind": Hivemind}[library](int(rank), int(size), int(parameters), address)
    say(json.dumps("there"))
    for task in map(str.strip, sys.stdin):
        say(json.dumps(peer.prepare() if task == "prepare" else peer.go()))
    # What is left cannot be closed without an event loop, and says so at length; its daemons end with this process.
    if library == "hivemind":
        peer.averager.shutdown()
        peer.averager.dht.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
