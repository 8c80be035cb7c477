"""ALBERT of profile `exact` (arithmetic.md), forward and backward. One layer's parameters serve all layers."""

import reference as ref
from arithmetic import (chain, cross_entropy, f32, fma, gelu, gelu_backward, layer_norm, layer_norm_backward, product,
                        root)
from network import attend, attend_backward, by_tensor, columns, gather, real

LAYER = "albert.encoder.albert_layer_groups.0.albert_layers.0."
WORDS, POSITIONS = "albert.embeddings.word_embeddings", "albert.embeddings.position_embeddings"
MAPPING, EMBEDDING_NORM = "albert.encoder.embedding_hidden_mapping_in", "albert.embeddings.LayerNorm"
QUERY, KEY, VALUE, DENSE, ATTENTION_NORM = (
    LAYER + "attention." + name for name in ("query", "key", "value", "dense", "LayerNorm"))
FEED, FEED_OUTPUT, LAST_NORM = (LAYER + name for name in ("ffn", "ffn_output", "full_layer_layer_norm"))
PREDICTION, PREDICTION_NORM, WORD_BIAS = "predictions.dense", "predictions.LayerNorm", "predictions.bias"


class Albert:
    """ARITH-65: an ALBERT with its parameters."""

    def __init__(self, model, parameters):
        self.model, self.tensors = model, by_tensor(model, parameters)
        self.heads, self.epsilon = model["heads"], real(model["norm_epsilon"])
        self.head_width = model["width"] // self.heads
        self.score_scale = f32(1.0 / root(float(self.head_width)))
        parts = model["sequence"] * model["family"]["Albert"]["masked_ppm"] // 10**6
        self.predicted = min(max(parts, 1), model["sequence"])

    def weight(self, name):
        return self.tensors[name + ".weight"]

    def bias(self, name):
        return self.tensors[name + ".bias"][0]

    def linear(self, rows, name):
        """ARITH-65: every chain starts from the bias."""
        return product(rows, self.weight(name), [self.bias(name)] * len(rows))

    def onto(self, rows, name, stream):
        """ARITH-65: the chains of a residual sum start from stream and bias, added."""
        start = [[f32(value + b) for value, b in zip(row, self.bias(name))] for row in stream]
        return product(rows, self.weight(name), start)

    def normed(self, rows, name):
        """Rows of the output, and of the statistics that the backward pass needs."""
        three = [layer_norm(row, self.weight(name)[0], self.bias(name), self.epsilon) for row in rows]
        return [row for row, _, _ in three], [(mean, scale) for _, mean, scale in three]

    def head_rows(self, rows, head):
        return [row[head * self.head_width:(head + 1) * self.head_width] for row in rows]

    def forward(self, window, share, masking):
        """ARITH-65: everything that the backward pass reads, the loss and the gradient of the logits."""
        known = self.model["vocabulary"] - 1
        inputs, places = ref.masked(self.model, *masking, window)
        tape = {"inputs": [min(token, known) for token in inputs], "places": places, "layers": []}
        words, positions = self.weight(WORDS), self.weight(POSITIONS)
        tape["sums"] = [[f32(a + b) for a, b in zip(words[token], row)] for token, row in zip(tape["inputs"], positions)]
        tape["embedded"], tape["embedded_statistics"] = self.normed(tape["sums"], EMBEDDING_NORM)
        stream = self.linear(tape["embedded"], MAPPING)
        for _ in range(self.model["layers"]):
            tape["layers"].append(self.forward_layer(stream))
            stream = tape["layers"][-1]["output"]
        tape["gathered"] = [stream[place] for place in places]
        tape["dense"] = self.linear(tape["gathered"], PREDICTION)
        tape["active"] = [gelu(row) for row in tape["dense"]]
        tape["normed"], tape["statistics"] = self.normed(tape["active"], PREDICTION_NORM)
        start = [self.tensors[WORD_BIAS][0]] * len(places)
        logits = product(tape["normed"], words, start)
        targets = [min(window[place], known) for place in places]
        both = [cross_entropy(row, target, share) for row, target in zip(logits, targets)]
        tape["d_logits"], tape["loss"] = [gradient for _, gradient in both], ref.ordered_sum(loss for loss, _ in both)
        return tape

    def forward_layer(self, stream):
        """ARITH-65"""
        at = {"input": stream}
        queries = [[f32(value * self.score_scale) for value in row] for row in self.linear(stream, QUERY)]
        at["joint"] = queries, product(stream, self.weight(KEY)), self.linear(stream, VALUE)
        both = [attend(*(self.head_rows(rows, head) for rows in at["joint"]), causal=False) for head in range(self.heads)]
        at["probabilities"] = [probabilities for probabilities, _ in both]
        at["mixed"] = [[value for head in row for value in head] for row in zip(*(outputs for _, outputs in both))]
        at["middle_sums"] = self.onto(at["mixed"], DENSE, stream)
        at["middle"], at["middle_statistics"] = self.normed(at["middle_sums"], ATTENTION_NORM)
        at["feed"] = self.linear(at["middle"], FEED)
        at["active"] = [gelu(row) for row in at["feed"]]
        at["last"] = self.onto(at["active"], FEED_OUTPUT, at["middle"])
        at["output"], at["statistics"] = self.normed(at["last"], LAST_NORM)
        return at

    # The gradient of one window grows in `self.window`, a copy of the tensors' shapes.

    def weigh(self, names, d, inputs):
        """ARITH-66: chains over the rows, going on where the layer above ended."""
        inputs, offset = columns(inputs), 0
        for name in names:
            rows = self.window[name + ".weight"]
            for o, row in enumerate(rows):
                d_output = [share[offset + o] for share in d]
                rows[o] = [chain(d_output, column, old) for column, old in zip(inputs, row)]
            offset += len(rows)

    def add(self, name, rows):
        """ARITH-66: rows added in order."""
        for row in rows:
            self.window[name][0] = [f32(old + value) for old, value in zip(self.window[name][0], row)]

    def norm_backward(self, rows, statistics, name, d):
        """ARITH-62, ARITH-66: the gradient of the input; gain and bias grow."""
        result = []
        for row, (mean, scale), share in zip(rows, statistics, d):
            found, unit = layer_norm_backward(row, self.weight(name)[0], mean, scale, share)
            gain = self.window[name + ".weight"]
            gain[0] = [fma(v, u, old) for v, u, old in zip(share, unit, gain[0])]
            self.add(name + ".bias", [share])
            result.append(found)
        return result

    def backward(self, tape):
        """ARITH-66"""
        self.window = {name: [[0.0] * len(row) for row in rows] for name, rows in self.tensors.items()}
        self.add(WORD_BIAS, tape["d_logits"])
        self.weigh([WORDS], tape["d_logits"], tape["normed"])
        d = product(tape["d_logits"], columns(self.weight(WORDS)))
        d = self.norm_backward(tape["active"], tape["statistics"], PREDICTION_NORM, d)
        d = [gelu_backward(row, share) for row, share in zip(tape["dense"], d)]
        self.add(PREDICTION + ".bias", d)
        self.weigh([PREDICTION], d, tape["gathered"])
        stream = [[0.0] * self.model["width"] for _ in tape["inputs"]]
        for place, row in zip(tape["places"], product(d, columns(self.weight(PREDICTION)))):
            stream[place] = row
        for at in reversed(tape["layers"]):
            stream = self.attention_backward(at, self.feed_backward(at, stream))
        self.add(MAPPING + ".bias", stream)
        self.weigh([MAPPING], stream, tape["embedded"])
        d = product(stream, columns(self.weight(MAPPING)))
        d = self.norm_backward(tape["sums"], tape["embedded_statistics"], EMBEDDING_NORM, d)
        for name, places in ((POSITIONS, range(len(d))), (WORDS, tape["inputs"])):
            rows = self.window[name + ".weight"]
            for place, share in zip(places, d):
                rows[place] = [f32(old + value) for old, value in zip(rows[place], share)]
        tape["window"] = [value for rows in self.window.values() for row in rows for value in row]

    def feed_backward(self, at, stream):
        """ARITH-66"""
        stream = self.norm_backward(at["last"], at["statistics"], LAST_NORM, stream)
        self.add(FEED_OUTPUT + ".bias", stream)
        self.weigh([FEED_OUTPUT], stream, at["active"])
        d = product(stream, columns(self.weight(FEED_OUTPUT)))
        d = [gelu_backward(row, share) for row, share in zip(at["feed"], d)]
        self.add(FEED + ".bias", d)
        self.weigh([FEED], d, at["middle"])
        stream = product(d, columns(self.weight(FEED)), stream)
        return self.norm_backward(at["middle_sums"], at["middle_statistics"], ATTENTION_NORM, stream)

    def attention_backward(self, at, stream):
        """ARITH-66"""
        self.add(DENSE + ".bias", stream)
        self.weigh([DENSE], stream, at["mixed"])
        d_mixed = product(stream, columns(self.weight(DENSE)))
        heads = []
        for head in range(self.heads):
            rows = [self.head_rows(part, head) for part in at["joint"]]
            outputs, d_outputs = self.head_rows(at["mixed"], head), self.head_rows(d_mixed, head)
            probabilities = at["probabilities"][head]
            d_scores, d_queries = attend_backward(*rows, probabilities, outputs, d_outputs, causal=False)
            zeros = [[0.0] * self.head_width for _ in outputs]
            heads.append((d_queries, gather(d_scores, rows[0], zeros, False), gather(probabilities, d_outputs, zeros, False)))
        d_queries, d_keys, d_values = ([[v for head in row for v in head] for row in zip(*part)] for part in zip(*heads))
        d_queries = [[f32(value * self.score_scale) for value in row] for row in d_queries]
        self.add(QUERY + ".bias", d_queries)
        self.add(VALUE + ".bias", d_values)
        d = [a + b + c for a, b, c in zip(d_queries, d_keys, d_values)]
        self.weigh([QUERY, KEY, VALUE], d, at["input"])
        joined = self.weight(QUERY) + self.weight(KEY) + self.weight(VALUE)
        return product(d, columns(joined), stream)

    def gradient(self, tapes):
        """ARITH-66: the windows' gradients, the first as it is, the others added in order."""
        total = tapes[0]["window"]
        for tape in tapes[1:]:
            total = [f32(old + value) for old, value in zip(total, tape["window"])]
        return total
