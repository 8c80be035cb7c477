"""The mixture of experts of profile `exact` (arithmetic.md): a decoder with another feed-forward."""

from arithmetic import chain, dot, f32, fma, logistic, product, quotient, softmax, swiglu, swiglu_backward
from decoder import Decoder, over
from network import columns, real


# ---------------------------------------------------------------- operators: one token

def route(scores, active):
    """ARITH-70: the chosen experts, ascending, and their weights."""
    order = sorted(range(len(scores)), key=lambda j: (True, 0.0, j) if scores[j] != scores[j] else (False, -scores[j], j))
    chosen = sorted(order[:active])
    return chosen, softmax([scores[j] for j in chosen], active)


def route_backward(scores, chosen, weights, d_weights, counts, tokens, beta):
    """ARITH-73: the gradient of the scores; `counts` says how many of the window's tokens chose each expert."""
    d_scores, mean = [0.0] * len(scores), dot(weights, d_weights)
    for j, weight, d in zip(chosen, weights, d_weights):
        d_scores[j] = f32(weight * f32(d - mean))
    likely = softmax(scores, len(scores))
    shares = [f32(quotient(f32(count), f32(len(chosen) * tokens))) for count in counts]
    level = dot(shares, likely)
    return [fma(f32(beta * p), f32(share - level), d) for p, share, d in zip(likely, shares, d_scores)]


def balance_scale(balance, experts, share):
    """ARITH-73: β."""
    return f32(balance * experts * share)


def gate_backward(sigma, d):
    """ARITH-73: the gradient of s, where σ is the weight of the shared expert."""
    return f32(d * f32(sigma * f32(1.0 - sigma)))


def expert(gate, up, weight):
    """ARITH-71: the product, σ(gate), and what goes down."""
    inner, sigmoid = swiglu(gate, up)
    return inner, sigmoid, [f32(weight * value) for value in inner]


def expert_backward(gate, up, sigmoid, inner, weight, d):
    """ARITH-72: the gradients of the weight, of gate and of up; `d` is that of what went down."""
    return dot(d, inner), *swiglu_backward(gate, up, sigmoid, [f32(weight * value) for value in d])


# ---------------------------------------------------------------- the network

EXPERT = ("gate", "up", "sigmoid", "inner", "weight")


class Mixture(Decoder):
    """ARITH-71: a mixture with its parameters. A layer's record has for each token a list of its passes.

    The first pass is that through the shared expert; the others are those through the chosen experts, ascending.
    """

    def __init__(self, model, parameters):
        super().__init__(model, parameters)
        family = model["family"]["Mixture"]
        self.experts, self.active, self.balance = family["columns"], family["active"], real(family["balance"])

    def names(self, layer):
        name = lambda short: f"model.layers.{layer}.mlp.{short}.weight"
        swiglu_names = lambda short: {"gate_up": [name(short + ".gate_proj"), name(short + ".up_proj")],
                                      "down": name(short + ".down_proj")}
        return {**super().names(layer), "shared": swiglu_names("shared_expert"), "shared_gate": name("shared_expert_gate"),
                "router": name("gate"), "experts": [swiglu_names(f"experts.{j}") for j in range(self.experts)]}

    def feed_forward(self, at, names):
        """ARITH-70, ARITH-71"""
        at["scores"] = product(at["feed_normed"], self.tensors[names["router"]])
        at["chosen"], at["passes"], at["output"] = [], [], []
        for row, scores, stream in zip(at["feed_normed"], at["scores"], at["middle"]):
            chosen, weights = route(scores, self.active)
            sigma = logistic(chain(row, self.tensors[names["shared_gate"]][0]))
            experts = [names["shared"]] + [names["experts"][j] for j in chosen]
            passes = [self.passed(row, *one) for one in zip(experts, [sigma] + weights)]
            for one in passes:
                (stream,) = product([one["scaled"]], self.tensors[one["of"]["down"]], [stream])
            at["chosen"].append(chosen)
            at["passes"].append(passes)
            at["output"].append(stream)

    def passed(self, row, of, weight):
        """ARITH-71: steps 1 and 2; `of` holds the names of an expert's matrices."""
        gate, up = (product([row], self.tensors[name])[0] for name in of["gate_up"])
        inner, sigmoid, scaled = expert(gate, up, weight)
        return {"of": of, "weight": weight, "gate": gate, "up": up, "inner": inner, "sigmoid": sigmoid, "scaled": scaled}

    def feed_backward(self, at, names, share):
        """ARITH-72 to ARITH-74: the gradient of the rows that experts, gate and router read."""
        counts = [sum(j in chosen for chosen in at["chosen"]) for j in range(self.experts)]
        beta = balance_scale(self.balance, self.experts, share)
        at["d_scores"], at["d_gate"], result = [], [], []
        for scores, chosen, passes, stream in zip(at["scores"], at["chosen"], at["passes"], at["d_output"]):
            for one in passes:
                (d,) = product([stream], columns(self.tensors[one["of"]["down"]]))
                one["d_weight"], d_gate, d_up = expert_backward(*(one[key] for key in EXPERT), d)
                one["d_gate_up"] = d_gate + d_up
            shared, *others = passes
            weights, d_weights = ([one[key] for one in others] for key in ("weight", "d_weight"))
            d_gate = [gate_backward(shared["weight"], shared["d_weight"])]
            d_scores = route_backward(scores, chosen, weights, d_weights, counts, len(at["passes"]), beta)
            at["d_gate"].append(d_gate)
            at["d_scores"].append(d_scores)
            readers = [(one["d_gate_up"], one["of"]["gate_up"]) for one in passes] + [(d_scores, [names["router"]])]
            readers.insert(1, (d_gate, [names["shared_gate"]]))
            d = [value for part, _ in readers for value in part]
            result += product([d], columns(self.joined(name for _, matrices in readers for name in matrices)))
        return result

    def feed_gradient(self, records, names):
        """ARITH-74: an expert's chains run over the tokens that chose it."""
        rows = over(records, "feed_normed")
        found = {**self.weighed([names["shared_gate"]], over(records, "d_gate"), rows),
                 **self.weighed([names["router"]], over(records, "d_scores"), rows)}
        tokens = list(zip(rows, over(records, "d_output"), over(records, "passes")))
        for of in [names["shared"]] + names["experts"]:
            passed = [(row, d, one) for row, d, passes in tokens for one in passes if one["of"] == of]
            found.update(self.weighed(of["gate_up"], [one["d_gate_up"] for _, _, one in passed], [row for row, _, _ in passed]))
            found.update(self.weighed([of["down"]], [d for _, d, _ in passed], [one["scaled"] for _, _, one in passed]))
        return found
