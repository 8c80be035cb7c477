"""Steps of training on demand, with hivemind's mixture of experts: answers `dmoe.py`.

`dmoe_peer.py ROUTING THREADS [name=value …]`, ROUTING `rows` or `sequences`, names as of `bench-leaf`. Its server, a
process of its own, holds the experts of every layer and takes a step of Adam at each backward call, as hivemind does.
This process is the trainer: embedding, attention, norms, shared experts and gates, with a step of AdamW for each batch.
A task is `step WINDOWS DELAY FAILING`: seconds of a step on so many windows, where each call of an expert waits for
DELAY seconds first and fails with probability FAILING. Whoever fails does so at once and costs its server nothing;
looking up experts is not delayed. Both are in hivemind's favour.
"""

import asyncio
import json
import logging
import os
import random
import sys
import time

import hivemind
import hivemind.moe.client.moe as client
import torch
from hivemind.moe import get_experts
from hivemind.moe.server.layers.custom_experts import register_expert_class
from hivemind.moe.server.server import background_server
from torch import nn

import environment
import networks

GRID = {16: (4, 4), 8: (2, 4), 4: (2, 2), 64: (8, 8)}


class Link:
    """What every call of an expert goes through."""

    delay, failing = 0.0, 0.0
    drawn = random.Random(1)

    @classmethod
    def behind(cls, call):
        async def slow(*arguments):
            await asyncio.sleep(cls.delay)
            if cls.drawn.random() < cls.failing:
                raise ConnectionError("a call that fails")
            return await call(*arguments)

        return slow


class RemoteFeed(nn.Module):
    """The shared expert here, and the row of experts on a server."""

    def __init__(self, shape, dht, layer, by_rows):
        super().__init__()
        self.shared_expert = networks.FeedForward(shape["width"], shape["shared_hidden"])
        self.shared_expert_gate = networks.matrix(shape["width"], 1)
        self.by_rows = by_rows
        self.experts = hivemind.RemoteMixtureOfExperts(
            in_features=shape["width"], grid_size=GRID[shape["columns"]], dht=dht, uid_prefix=f"layer{layer}.",
            k_best=shape["active"], k_min=1, backward_k_min=0, forward_timeout=60, backward_timeout=60, timeout_after_k_min=5,
            allow_zero_outputs=True)

    def forward(self, x):
        shared = self.shared_expert(x) * self.shared_expert_gate(x).sigmoid()
        x = x + 0
        if x.requires_grad:
            # Where all experts of an input fail, hivemind's weights are no numbers.
            x.register_hook(torch.nan_to_num)
        y = self.experts(x.flatten(0, 1)).view_as(x) if self.by_rows else self.experts(x)
        return shared + torch.nan_to_num(y)


class Trainer:
    def __init__(self, shape, dht, by_rows):
        self.shape = shape
        self.network = networks.Decoder({**shape, "columns": 0})
        for number, layer in enumerate(self.network.model.layers):
            layer.mlp = RemoteFeed(shape, dht, number, by_rows)
        for parameter in self.network.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=shape["initial_scale"])
        self.optimiser = torch.optim.AdamW(self.network.parameters(), lr=1e-3)

    def step(self, windows):
        """Seconds of forward, backward and update."""
        tokens = torch.randint(self.shape["vocabulary"], (windows, self.shape["sequence"] + 1))
        begun = time.perf_counter()
        self.optimiser.zero_grad()
        self.network(tokens[:, :-1], None, tokens[:, 1:]).backward()
        for parameter in self.network.parameters():
            if parameter.grad is not None:
                parameter.grad.nan_to_num_()
        self.optimiser.step()
        return time.perf_counter() - begun


def main():
    routing, threads, *words = sys.argv[1:]
    shape, by_rows = environment.settings(words), routing == "rows"
    torch.set_num_threads(int(threads))
    logging.disable(logging.WARNING)
    client.expert_forward, client.expert_backward = map(Link.behind, (client.expert_forward, client.expert_backward))
    between = () if by_rows else (shape["sequence"],)

    @register_expert_class("swiglu", lambda batch, width: torch.empty(batch, *between, width))
    class Expert(networks.FeedForward):
        def __init__(self, width):
            super().__init__(width, shape["hidden"])

    first, second = GRID[shape["columns"]]
    uids = [f"layer{layer}.{i}.{j}" for layer in range(shape["layers"]) for i in range(first) for j in range(second)]
    here = "/ip4/127.0.0.1/tcp/0"
    with background_server(expert_uids=uids, expert_cls="swiglu", hidden_dim=shape["width"], device="cpu",
                           num_handlers=2, max_batch_size=1 << 16, optim_cls=torch.optim.Adam, expiration=3600,
                           host_maddrs=[here]) as server:
        dht = hivemind.DHT(initial_peers=server.addrs, start=True, client_mode=True, host_maddrs=[here])
        while None in get_experts(dht, uids):
            time.sleep(1)
        trainer = Trainer(shape, dht, by_rows)
        for line in sys.stdin:
            _, windows, Link.delay, Link.failing = (of(word) for of, word in zip((str, int, float, float), line.split()))
            print(json.dumps({"seconds": trainer.step(windows)}), flush=True)
        dht.shutdown()
    # What is left cannot be closed without an event loop, and says so at length.
    os._exit(0)


if __name__ == "__main__":
    main()
