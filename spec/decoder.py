"""The decoder of profile `exact` (arithmetic.md), forward and backward."""

import reference as ref
from arithmetic import (cross_entropy, f32, product, rms_norm, rms_norm_backward, root, rotary_angles, rotary_frequencies,
                        rotate, swiglu, swiglu_backward)
from network import attend, attend_backward, by_tensor, columns, embedded, gather, real, summed


def over(records, key):
    """ARITH-4: rows of all windows, in order."""
    return [row for record in records for row in record[key]]


def scaling_of(variant):
    """ARITH-75: what it takes to scale a frequency."""
    of = variant.get("scaling")
    return of and (*(real(of[name]) for name in ("factor", "low", "high")), float(of["original"]))


class Decoder:
    """ARITH-41: a decoder with its parameters."""

    def __init__(self, model, parameters):
        self.model, self.tensors = model, by_tensor(model, parameters)
        family = ref.decoder_of(model)
        self.heads, self.epsilon = model["heads"], real(model["norm_epsilon"])
        self.head_width, projection = ref.head_width(model), ref.variant_of(model).get("projection")
        self.biased, self.has_head_norms = projection == "Biased", projection == "Normed"
        self.group = self.heads // family["key_value_heads"]
        frequencies = rotary_frequencies(self.head_width, real(family["rope_base"]), scaling_of(ref.variant_of(model)))
        self.cosines, self.sines = rotary_angles(model["sequence"], frequencies)
        self.score_scale = f32(1.0 / root(float(self.head_width)))
        self.predicted = model["sequence"]
        self.head = "model.embed_tokens.weight" if family["tied"] else "lm_head.weight"

    def names(self, layer):
        name = lambda short: f"model.layers.{layer}.{short}.weight"
        return {"norm": name("input_layernorm"), "o": name("self_attn.o_proj"), "down": name("mlp.down_proj"),
                "joint": [name(f"self_attn.{x}_proj") for x in "qkv"],
                "biases": [f"model.layers.{layer}.self_attn.{x}_proj.bias" for x in "qkv" if self.biased],
                "head_norms": [name(f"self_attn.{x}_norm") for x in "qk" if self.has_head_norms],
                "feed_norm": name("post_attention_layernorm"),
                "gate_up": [name("mlp.gate_proj"), name("mlp.up_proj")]}

    def joined(self, names):
        return [row for name in names for row in self.tensors[name]]

    def head_rows(self, rows, place):
        """One head's share of rows; heads of queries, then of keys, then of values."""
        return [row[place * self.head_width:(place + 1) * self.head_width] for row in rows]

    def rotated(self, joint, direction):
        """ARITH-34: heads of queries scaled, heads of keys not, values as they are."""
        key_heads, width, result = self.heads // self.group, self.head_width, []
        for row, cosines, sines in zip(joint, self.cosines, self.sines):
            heads = [row[i:i + width] for i in range(0, len(row), width)]
            for i in range(self.heads + key_heads):
                heads[i] = rotate(heads[i], cosines, sines, direction, self.score_scale if i < self.heads else 1.0)
            result.append([value for head in heads for value in head])
        return result

    def normed(self, rows, name):
        both = [rms_norm(row, self.tensors[name][0], self.epsilon) for row in rows]
        return [row for row, _ in both], [scale for _, scale in both]

    def parts(self, head):
        """Places of a head's queries, keys and values among the heads of `joint`."""
        key = self.heads + head // self.group
        return head, key, key + self.heads // self.group

    def forward(self, window, share, _masking=None):
        """ARITH-41: everything that the backward pass reads, the loss and the gradient of the logits."""
        known = self.model["vocabulary"] - 1
        tokens = [min(token, known) for token in window]
        tape = {"inputs": tokens[:-1], "layers": [], "share": share}
        stream = [list(self.tensors["model.embed_tokens.weight"][token]) for token in tokens[:-1]]
        for layer in range(self.model["layers"]):
            at = self.forward_layer(stream, self.names(layer))
            tape["layers"].append(at)
            stream = at["output"]
        tape["last"] = stream
        tape["normed"], tape["scales"] = self.normed(stream, "model.norm.weight")
        logits = product(tape["normed"], self.tensors[self.head])
        both = [cross_entropy(row, target, share) for row, target in zip(logits, tokens[1:])]
        tape["d_logits"], tape["loss"] = [gradient for _, gradient in both], ref.ordered_sum(loss for loss, _ in both)
        return tape

    def forward_layer(self, stream, names):
        """ARITH-41: the chains of both output projections start from the residual stream."""
        at = {"input": stream}
        at["normed"], at["scales"] = self.normed(stream, names["norm"])
        # ARITH-76: chains start from the biases.
        biases = [[value for name in names["biases"] for value in self.tensors[name][0]]] * len(stream) if self.biased else None
        at["projected"] = product(at["normed"], self.joined(names["joint"]), biases)
        at["joint"] = self.rotated(self.normed_heads(at, names), 1.0)
        both = [attend(*(self.head_rows(at["joint"], place) for place in self.parts(head))) for head in range(self.heads)]
        at["probabilities"] = [probabilities for probabilities, _ in both]
        at["mixed"] = [[value for head in row for value in head] for row in zip(*(outputs for _, outputs in both))]
        at["middle"] = product(at["mixed"], self.tensors[names["o"]], stream)
        at["feed_normed"], at["feed_scales"] = self.normed(at["middle"], names["feed_norm"])
        self.feed_forward(at, names)
        return at

    def head_gains(self, names):
        """ARITH-77: of each head of queries and keys, in order."""
        of_queries, of_keys = (self.tensors[name][0] for name in names["head_norms"])
        return [of_queries] * self.heads + [of_keys] * (self.heads // self.group)

    def normed_heads(self, at, names):
        """ARITH-77: heads of queries and keys are normed, each by itself, and values stay as they are."""
        if not self.has_head_norms:
            return at["projected"]
        gains, at["head_scales"], rows = self.head_gains(names), [], []
        for row in at["projected"]:
            both = [rms_norm(row[i * self.head_width:(i + 1) * self.head_width], gain, self.epsilon) for i, gain in enumerate(gains)]
            at["head_scales"].append([scale for _, scale in both])
            rows.append([value for head, _ in both for value in head] + row[len(gains) * self.head_width:])
        return rows

    def normed_heads_backward(self, at, names, d_joint):
        """ARITH-77: the gradient of the product, and the shares of each head in the gains' gradients."""
        if not self.has_head_norms:
            return d_joint
        gains, zeros, rows = self.head_gains(names), [0.0] * self.head_width, []
        at["d_q_gain"], at["d_k_gain"] = [], []
        for row, d, scales in zip(at["projected"], d_joint, at["head_scales"]):
            heads = [values[i * self.head_width:(i + 1) * self.head_width] for i in range(len(gains)) for values in (row, d)]
            both = [rms_norm_backward(x, gain, scale, dy, zeros) for x, dy, gain, scale in zip(heads[::2], heads[1::2], gains, scales)]
            rows.append([value for head, _ in both for value in head] + d[len(gains) * self.head_width:])
            at["d_q_gain"] += [share for _, share in both[:self.heads]]
            at["d_k_gain"] += [share for _, share in both[self.heads:]]
        return rows

    def feed_forward(self, at, names):
        """ARITH-41: steps 5 and 6, after the norm."""
        at["gate_up"] = product(at["feed_normed"], self.joined(names["gate_up"]))
        hidden = self.model["hidden"]
        both = [swiglu(row[:hidden], row[hidden:]) for row in at["gate_up"]]
        at["product"], at["sigmoid"] = [row for row, _ in both], [row for _, row in both]
        at["output"] = product(at["product"], self.tensors[names["down"]], at["middle"])

    def norm_backward(self, rows, scales, name, d, residual):
        """Gradients of the stream, and of the gain by row."""
        gain = self.tensors[name][0]
        both = [rms_norm_backward(*row) for row in zip(rows, [gain] * len(rows), scales, d, residual)]
        return [stream for stream, _ in both], [share for _, share in both]

    def backward(self, tape):
        """ARITH-42: adds to a tape what the gradients of the parameters are made of."""
        d = product(tape["d_logits"], columns(self.tensors[self.head]))
        zeros = [[0.0] * self.model["width"]] * len(d)
        stream, tape["d_gain"] = self.norm_backward(tape["last"], tape["scales"], "model.norm.weight", d, zeros)
        for layer in reversed(range(self.model["layers"])):
            at, names = tape["layers"][layer], self.names(layer)
            at["d_output"] = stream
            d = self.feed_backward(at, names, tape["share"])
            at["d_middle"], at["d_feed_gain"] = self.norm_backward(at["middle"], at["feed_scales"], names["feed_norm"], d, stream)
            stream = self.attention_backward(at, names)
        tape["d_embedded"] = stream

    def feed_backward(self, at, names, _share):
        """ARITH-42: steps 1 and 2."""
        hidden = self.model["hidden"]
        d_product = product(at["d_output"], columns(self.tensors[names["down"]]))
        both = [swiglu_backward(row[:hidden], row[hidden:], sigmoid, d)
                for row, sigmoid, d in zip(at["gate_up"], at["sigmoid"], d_product)]
        at["d_gate_up"] = [gate + up for gate, up in both]
        return product(at["d_gate_up"], columns(self.joined(names["gate_up"])))

    def attention_backward(self, at, names):
        """ARITH-42, ARITH-37: heads in order; those that share keys continue each other's chains."""
        d_mixed = product(at["d_middle"], columns(self.tensors[names["o"]]))
        empty = [[0.0] * self.head_width] * len(d_mixed)
        heads = [empty] * (self.heads + 2 * self.heads // self.group)
        for head in range(self.heads):
            query, key, value = self.parts(head)
            rows = [self.head_rows(at["joint"], place) for place in (query, key, value)]
            outputs, d_outputs = self.head_rows(at["mixed"], head), self.head_rows(d_mixed, head)
            probabilities = at["probabilities"][head]
            d_scores, heads[query] = attend_backward(*rows, probabilities, outputs, d_outputs)
            heads[key] = gather(d_scores, rows[0], heads[key])
            heads[value] = gather(probabilities, d_outputs, heads[value])
        turned = self.rotated([[v for head in row for v in head] for row in zip(*heads)], -1.0)
        at["d_joint"] = self.normed_heads_backward(at, names, turned)
        d = product(at["d_joint"], columns(self.joined(names["joint"])))
        stream, at["d_gain"] = self.norm_backward(at["input"], at["scales"], names["norm"], d, at["d_middle"])
        return stream

    def gradient(self, tapes):
        """ARITH-4, ARITH-43, ARITH-44: the flat gradient over all windows, in order."""
        found = {"model.norm.weight": [summed(over(tapes, "d_gain"))]}
        found.update(self.weighed([self.head], over(tapes, "d_logits"), over(tapes, "normed")))
        embedding = found.setdefault("model.embed_tokens.weight",
                                     [[0.0] * self.model["width"] for _ in range(self.model["vocabulary"])])
        for tape in tapes:
            embedding = embedded(embedding, tape["inputs"], tape["d_embedded"])
        found["model.embed_tokens.weight"] = embedding
        for layer in range(self.model["layers"]):
            names, records = self.names(layer), [tape["layers"][layer] for tape in tapes]
            found.update(self.weighed(names["joint"], over(records, "d_joint"), over(records, "normed")))
            found.update(self.bias_gradient(names["biases"], over(records, "d_joint")))
            for name, key in zip(names["head_norms"], ("d_q_gain", "d_k_gain")):
                found[name] = [summed(over(records, key))]
            found.update(self.weighed([names["o"]], over(records, "d_middle"), over(records, "mixed")))
            found.update(self.feed_gradient(records, names))
            found[names["norm"]] = [summed(over(records, "d_gain"))]
            found[names["feed_norm"]] = [summed(over(records, "d_feed_gain"))]
        return [value for name in self.tensors for row in found[name] for value in row]

    def bias_gradient(self, names, d_joint):
        """ARITH-76"""
        sums = iter(summed(d_joint)) if names else iter(())
        return {name: [[next(sums) for _ in self.tensors[name][0]]] for name in names}

    def feed_gradient(self, records, names):
        """ARITH-4: of a layer's feed-forward, over the records of all windows."""
        return {**self.weighed(names["gate_up"], over(records, "d_gate_up"), over(records, "feed_normed")),
                **self.weighed([names["down"]], over(records, "d_output"), over(records, "product"))}

    def weighed(self, names, d, x):
        """ARITH-4: gradients of matrices with these outputs, joined, and inputs; +0 where there are none."""
        if not d:
            return {name: [[0.0] * len(row) for row in self.tensors[name]] for name in names}
        rows = iter(product(columns(d), columns(x)))
        return {name: [next(rows) for _ in self.tensors[name]] for name in names}
