"""The networks of `muster-compute`, written once more in PyTorch: what the other scripts compare it with.

Parameters, tokens and right answers come from a folder that `bench-leaf` wrote. Names of modules give the names of
tensors in spec/layout.md. A network's loss is the mean over everything that it predicts. What balances experts is
differentiated with it, and not part of it.
"""

import contextlib
import json
import math
import pathlib

import numpy
import torch
import torch.nn.functional as F
from torch import nn


def numbers(folder, name, kind):
    return torch.from_numpy(numpy.fromfile(pathlib.Path(folder) / name, dtype=kind))


class Root(nn.Module):
    """RMSNorm."""

    def __init__(self, width, epsilon):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


def matrix(inputs, outputs, bias=False):
    return nn.Linear(inputs, outputs, bias=bias)


def attend(queries, keys, values, causal, manual):
    """Attention of heads of shape batch × heads × tokens × width; fewer key heads are shared by neighbours."""
    shared = queries.shape[1] // keys.shape[1]
    if shared > 1:
        keys, values = (heads.repeat_interleave(shared, 1) for heads in (keys, values))
    if not manual:
        return F.scaled_dot_product_attention(queries, keys, values, is_causal=causal)
    scores = queries @ keys.transpose(-2, -1) / math.sqrt(queries.shape[-1])
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return scores.softmax(-1) @ values


def rotate(heads, cosines, sines):
    """Rotary positions: dimension i turns with dimension i + half."""
    first, second = heads.chunk(2, -1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1)


class SelfAttention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.width = shape["width"] // shape["heads"]
        key_width = self.width * shape["key_value_heads"]
        self.q_proj = matrix(shape["width"], shape["width"])
        self.k_proj = matrix(shape["width"], key_width)
        self.v_proj = matrix(shape["width"], key_width)
        self.o_proj = matrix(shape["width"], shape["width"])

    def forward(self, x, cosines, sines, manual):
        heads = lambda y: y.unflatten(-1, (-1, self.width)).transpose(1, 2)
        queries, keys, values = (heads(projection(x)) for projection in (self.q_proj, self.k_proj, self.v_proj))
        queries, keys = (rotate(y, cosines, sines) for y in (queries, keys))
        return self.o_proj(attend(queries, keys, values, True, manual).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, width, hidden):
        super().__init__()
        self.gate_proj, self.up_proj = matrix(width, hidden), matrix(width, hidden)
        self.down_proj = matrix(hidden, width)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.Module):
    """A shared expert, which every token passes, and a row of experts, of which each token passes the best by its scores.

    `balance` is what the last windows add to what is differentiated; the loss that is reported lacks it.
    """

    def __init__(self, shape):
        super().__init__()
        width, self.columns, self.active = (shape[name] for name in ("width", "columns", "active"))
        self.shared_expert = FeedForward(width, shape["shared_hidden"])
        self.shared_expert_gate = matrix(width, 1)
        self.gate = matrix(width, self.columns)
        self.experts = nn.ModuleList(FeedForward(width, shape["hidden"]) for _ in range(self.columns))
        self.importance, self.balance = shape["balance"], 0

    def forward(self, x):
        scores = self.gate(x)
        best, chosen = scores.topk(self.active, -1)
        # Windows × experts; how many tokens chose an expert has no gradient.
        chosen_share = F.one_hot(chosen, self.columns).sum((1, 2)).to(x) / (self.active * x.shape[1])
        self.balance = self.importance * self.columns * (chosen_share * scores.softmax(-1).mean(1)).sum(-1).mean()
        y = self.shared_expert(x) * self.shared_expert_gate(x).sigmoid()
        x, y, chosen, weights = (each.flatten(0, 1) for each in (x, y, chosen, best.softmax(-1)))
        for column, expert in enumerate(self.experts):
            tokens, place = (chosen == column).nonzero(as_tuple=True)
            # Where nobody chose the expert its gradient is still there, as zeros.
            y = y.index_add(0, tokens, expert(x[tokens]) * weights[tokens, place, None])
        return y.view(scores.shape[:2] + y.shape[1:])


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.input_layernorm = Root(shape["width"], shape["norm_epsilon"])
        self.self_attn = SelfAttention(shape)
        self.post_attention_layernorm = Root(shape["width"], shape["norm_epsilon"])
        self.mlp = Experts(shape) if shape.get("columns") else FeedForward(shape["width"], shape["hidden"])

    def forward(self, x, *positions):
        x = x + self.self_attn(self.input_layernorm(x), *positions)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Llama's shape; with experts, Qwen2-MoE's."""

    def __init__(self, shape):
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(shape["vocabulary"], shape["width"])
        self.model.layers = nn.ModuleList(Layer(shape) for _ in range(shape["layers"]))
        self.model.norm = Root(shape["width"], shape["norm_epsilon"])
        if not shape["tied"]:
            self.lm_head = matrix(shape["width"], shape["vocabulary"])
        self.tied = shape["tied"]
        half = shape["width"] // shape["heads"] // 2
        frequencies = shape["rope_base"] ** (-torch.arange(half, dtype=torch.float64) / half)
        self.angles = torch.arange(shape["sequence"], dtype=torch.float64)[:, None] * frequencies

    def forward(self, inputs, places, targets, manual=False):
        x = self.model.embed_tokens(inputs)
        cosines, sines = (turn(self.angles).to(x) for turn in (torch.cos, torch.sin))
        for layer in self.model.layers:
            x = layer(x, cosines, sines, manual)
        head = self.model.embed_tokens.weight if self.tied else self.lm_head.weight
        return F.cross_entropy(F.linear(self.model.norm(x), head).flatten(0, 1), targets.flatten())


class AlbertAttention(nn.Module):
    def __init__(self, width, heads, epsilon):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = matrix(width, width, True), matrix(width, width), matrix(width, width, True)
        self.dense = matrix(width, width, True)
        self.LayerNorm = nn.LayerNorm(width, epsilon)

    def forward(self, x, manual):
        heads = lambda y: y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        queries, keys, values = (heads(projection(x)) for projection in (self.query, self.key, self.value))
        mixed = attend(queries, keys, values, False, manual).transpose(1, 2).flatten(2)
        return self.LayerNorm(x + self.dense(mixed))


class AlbertLayer(nn.Module):
    def __init__(self, width, heads, hidden, epsilon):
        super().__init__()
        self.attention = AlbertAttention(width, heads, epsilon)
        self.ffn, self.ffn_output = matrix(width, hidden, True), matrix(hidden, width, True)
        self.full_layer_layer_norm = nn.LayerNorm(width, epsilon)

    def forward(self, x, manual):
        x = self.attention(x, manual)
        return self.full_layer_layer_norm(x + self.ffn_output(F.gelu(self.ffn(x), approximate="tanh")))


class Albert(nn.Module):
    """ALBERT with its masked-language-modelling head."""

    def __init__(self, shape):
        super().__init__()
        width, narrow, epsilon = shape["width"], shape["embedding"], shape["norm_epsilon"]
        self.layers = shape["layers"]
        self.albert = nn.Module()
        self.albert.embeddings = nn.Module()
        self.albert.embeddings.word_embeddings = nn.Embedding(shape["vocabulary"], narrow)
        self.albert.embeddings.position_embeddings = nn.Embedding(shape["sequence"], narrow)
        self.albert.embeddings.LayerNorm = nn.LayerNorm(narrow, epsilon)
        self.albert.encoder = nn.Module()
        self.albert.encoder.embedding_hidden_mapping_in = matrix(narrow, width, True)
        group = nn.Module()
        group.albert_layers = nn.ModuleList([AlbertLayer(width, shape["heads"], shape["hidden"], epsilon)])
        self.albert.encoder.albert_layer_groups = nn.ModuleList([group])
        self.predictions = nn.Module()
        self.predictions.dense = matrix(width, narrow, True)
        self.predictions.LayerNorm = nn.LayerNorm(narrow, epsilon)
        self.predictions.bias = nn.Parameter(torch.zeros(shape["vocabulary"]))

    def forward(self, inputs, places, targets, manual=False):
        embeddings, encoder, predictions = self.albert.embeddings, self.albert.encoder, self.predictions
        x = embeddings.word_embeddings(inputs) + embeddings.position_embeddings.weight
        x = encoder.embedding_hidden_mapping_in(embeddings.LayerNorm(x))
        for _ in range(self.layers):
            x = encoder.albert_layer_groups[0].albert_layers[0](x, manual)
        x = x.gather(1, places[..., None].expand(-1, -1, x.shape[-1]))
        x = predictions.LayerNorm(F.gelu(predictions.dense(x), approximate="tanh"))
        logits = F.linear(x, embeddings.word_embeddings.weight, predictions.bias)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Leaf:
    """A network with the parameters and the windows of a folder."""

    def __init__(self, folder, shape, dtype, device="cpu"):
        self.network = (Albert if shape["albert"] else Decoder)(shape).to(device, dtype)
        self.layout = json.loads((pathlib.Path(folder) / "layout.json").read_text())
        self.parameters = dict(self.network.named_parameters())
        names = {name for name, _, _ in self.layout}
        assert names == set(self.parameters), f"other tensors: {names ^ set(self.parameters)}"
        flat = numbers(folder, "parameters.f32", "<f4")
        with torch.no_grad():
            for name, part in self.split(flat):
                self.parameters[name].copy_(part.view(self.parameters[name].shape))
        files = ("inputs.u32", "places.u32", "targets.u32")
        tasks = (numbers(folder, name, "<u4").long().view(shape["windows"], -1) for name in files)
        self.tasks = [task.to(device) for task in tasks]

    def split(self, flat):
        """Each tensor's name and its part of a flat vector."""
        for name, (rows, columns), offset in self.layout:
            yield name, flat[offset : offset + rows * columns]

    def gradient(self, manual=False, forward=contextlib.nullcontext()):
        """Computes all gradients, the forward pass within a context; returns the loss."""
        self.network.zero_grad()
        with forward:
            loss = self.network(*self.tasks, manual=manual)
        experts = (module for module in self.network.modules() if isinstance(module, Experts))
        (loss + sum(module.balance for module in experts)).backward()
        return loss.item()
