"""The vectors of arithmetic.md: operations and families, in the shapes of cases.py.

f32 values are their bit patterns, eight hexadecimal digits each, separated by spaces; matrices row by row.
"""

import random
import struct

import arithmetic as by
import decoder
import mixture
import reference as ref
import training
from cases import SMALL, Sampler, case, fill, operation, un, wide, word
from network import attend, attend_backward, embedded, gather, summed


def values(text):
    return [by.single(int(bits, 16)) for bits in text.split()]


def shown(reals):
    return " ".join(f"{by.bits32(value):08x}" for value in reals)


def rows_of(text, width):
    flat = values(text)
    return [flat[i:i + width] for i in range(0, len(flat), width)]


def flat(rows):
    return shown(value for row in rows for value in row)


# ---------------------------------------------------------------- operators

@operation
def fma(a, b, c):
    return {"values": shown(by.fma(*three) for three in zip(values(a), values(b), values(c)))}


@operation
def dot(a, b):
    return {"value": shown([by.dot(values(a), values(b))])}


@operation
def total(row):
    return {"value": shown([by.lane_sum(values(row))])}


@operation
def largest(row):
    """Of zeros +0: which one it is changes nothing."""
    return {"value": shown([by.largest(values(row)) + 0.0])}


@operation
def squares(values):
    return {"sum": word(by.bits64(by.sum_of_squares([by.single(int(bits, 16)) for bits in values.split()])))}


@operation
def product(depth, left, right, start):
    """Rows of `left` by rows of `right`; `start` may be empty."""
    a, b = rows_of(left, depth), rows_of(right, depth)
    return {"values": flat(by.product(a, b, rows_of(start, len(b)) if start else None))}


@operation
def exp(x):
    return {"values": shown(map(by.exp32, values(x)))}


@operation
def functions(x):
    """ln, exp, sine and cosine of f64; null where a function is not defined."""
    results = []
    for bits in x:
        value = by.double(wide(bits))
        sine, cosine = by.sine_cosine(value) if abs(value) <= 2**17 else (None, None)
        power = by.exp64(value) if abs(value) <= 700 else None
        results.append([None if r is None else word(by.bits64(r)) for r in (by.ln(value), power, sine, cosine)])
    return {"values": results}


@operation
def rms_norm(x, gain, epsilon, d, residual):
    """One row, forward and backward."""
    x, gain, epsilon = values(x), values(gain), values(epsilon)[0]
    y, scale = by.rms_norm(x, gain, epsilon)
    stream, share = by.rms_norm_backward(x, gain, scale, values(d), values(residual))
    return {"y": shown(y), "scale": shown([scale]), "residual": shown(stream), "gain": shown(share)}


@operation
def angles(tokens, head_width, base):
    return shown_angles(tokens, by.rotary_frequencies(head_width, values(base)[0]))


@operation
def scaled_angles(tokens, head_width, base, scaling):
    scaling = decoder.scaling_of(dict(scaling=ref.decode("Scaling", un(scaling))))
    return shown_angles(tokens, by.rotary_frequencies(head_width, values(base)[0], scaling))


def shown_angles(tokens, frequencies):
    cosines, sines = by.rotary_angles(tokens, frequencies)
    return {"cosines": flat(cosines), "sines": flat(sines)}


@operation
def rotate(head, cosines, sines, direction, scale):
    turned = by.rotate(values(head), values(cosines), values(sines), float(direction), values(scale)[0])
    return {"values": shown(turned)}


@operation
def softmax(scores, seen, d, output, d_output):
    """One row that sees its first places, forward and backward."""
    probabilities = by.softmax(values(scores), seen)
    d_scores = by.softmax_backward(probabilities, values(d), values(output), values(d_output))
    return {"probabilities": shown(probabilities), "d_scores": shown(d_scores)}


@operation
def layer_norm(x, gain, bias, epsilon, d):
    """One row, forward and backward; the gradients of gain and bias begin at +0."""
    x, gain = values(x), values(gain)
    y, mean, scale = by.layer_norm(x, gain, values(bias), values(epsilon)[0])
    found, unit = by.layer_norm_backward(x, gain, mean, scale, values(d))
    shares = [by.fma(v, u, 0.0) for v, u in zip(values(d), unit)]
    return {"y": shown(y), "mean": shown([mean]), "scale": shown([scale]), "d": shown(found), "gain": shown(shares),
            "bias": shown(summed([values(d)]))}


@operation
def row_sums(rows, width):
    """Columns of rows, added in order."""
    return {"sums": shown(summed(rows_of(rows, width)))}


@operation
def embedding(start, width, tokens, rows):
    """The gradient of an embedding that begins as `start`."""
    return {"gradient": flat(embedded(rows_of(start, width), tokens, rows_of(rows, width)))}


@operation
def biased(rows, bias):
    """What the chains of a residual sum start from."""
    width = len(values(bias))
    return {"rows": flat([by.f32(value + b) for value, b in zip(row, values(bias))] for row in rows_of(rows, width))}


@operation
def bias_sums(rows, stride, first, start):
    """A bias's gradient goes on from `start` with some columns of each row, in order."""
    sums = values(start)
    for row in rows_of(rows, stride):
        sums = [by.f32(old + value) for old, value in zip(sums, row[first:first + len(sums)])]
    return {"sums": shown(sums)}


@operation
def gelu(x, d):
    return {"values": shown(by.gelu(values(x))), "d": shown(by.gelu_backward(values(x), values(d)))}


@operation
def attention(tokens, heads, group, width, causal, joint, d_mixed):
    """One window: a row holds the queries of all heads, the keys and the values of the heads that have their own."""
    rows, key_heads = rows_of(joint, width * (heads + 2 * heads // group)), heads // group
    at = lambda place: [row[place * width:(place + 1) * width] for row in rows]
    d_rows, found = rows_of(d_mixed, width * heads), [None] * (heads + 2 * key_heads)
    mixed = []
    for head in range(heads):
        key, value = heads + head // group, heads + key_heads + head // group
        probabilities, outputs = attend(at(head), at(key), at(value), causal)
        d_outputs = [row[head * width:(head + 1) * width] for row in d_rows]
        d_scores, found[head] = attend_backward(at(head), at(key), at(value), probabilities, outputs, d_outputs, causal)
        zeros = [[0.0] * width] * tokens
        found[key] = gather(d_scores, at(head), found[key] or zeros, causal)
        found[value] = gather(probabilities, d_outputs, found[value] or zeros, causal)
        mixed.append(outputs)
    joined = lambda parts: flat([[v for part in row for v in part] for row in zip(*parts)])
    return {"mixed": joined(mixed), "d_joint": joined(found)}


@operation
def swiglu(gate, up, d):
    gate, up = values(gate), values(up)
    result, sigmoid = by.swiglu(gate, up)
    d_gate, d_up = by.swiglu_backward(gate, up, sigmoid, values(d))
    return {"product": shown(result), "sigmoid": shown(sigmoid), "d_gate": shown(d_gate), "d_up": shown(d_up)}


@operation
def route(scores, active):
    """Of one token."""
    chosen, weights = mixture.route(values(scores), active)
    return {"chosen": chosen, "weights": shown(weights)}


@operation
def route_backward(scores, chosen, d_weights, counts, tokens, balance, share):
    """Of one token in a window of so many; `chosen` are those of its scores, `counts` those of the window."""
    scores = values(scores)
    beta = mixture.balance_scale(values(balance)[0], len(scores), values(share)[0])
    weights = by.softmax([scores[j] for j in chosen], len(chosen))
    return {"d_scores": shown(mixture.route_backward(scores, chosen, weights, values(d_weights), counts, tokens, beta))}


@operation
def expert(gate, up, weight, d):
    """Of one token; `d` is the gradient of `scaled`, which goes down."""
    gate, up, weight, d = values(gate), values(up), values(weight)[0], values(d)
    inner, sigmoid, scaled = mixture.expert(gate, up, weight)
    d_weight, d_gate, d_up = mixture.expert_backward(gate, up, sigmoid, inner, weight, d)
    return {"product": shown(inner), "scaled": shown(scaled), "d_weight": shown([d_weight]), "d_gate": shown(d_gate), "d_up": shown(d_up)}


@operation
def shared_gate(s, d_weights):
    """Of many tokens."""
    weights = [by.logistic(x) for x in values(s)]
    return {"weights": shown(weights), "d_s": shown(map(mixture.gate_backward, weights, values(d_weights)))}


@operation
def cross_entropy(logits, target, share):
    loss, gradient = by.cross_entropy(values(logits), target, values(share)[0])
    return {"loss": word(by.bits64(loss)), "gradient": shown(gradient)}


STEP = ("unit", "beta1", "beta2", "first_share", "second_share", "rate", "second_scale", "epsilon", "keep")


@operation
def adamw(aggregate, parameters, first, second, step):
    s = dict(zip(STEP, values(step)))
    new = [training.adamw(*four, s) for four in zip(values(aggregate), values(parameters), values(first), values(second))]
    return dict(zip(("parameters", "first", "second"), map(shown, zip(*new))))


@operation
def lamb(aggregate, parameters, first, second, step, first_scale, decay, rate):
    """`rate` is the learning rate times the trust, as f32."""
    s = dict(zip(STEP, values(step)))
    both = [training.moments(*three, s)[:2] for three in zip(values(aggregate), values(first), values(second))]
    along = [training.direction(p, *new, s, values(first_scale)[0], values(decay)[0]) for p, new in zip(values(parameters), both)]
    after = [by.fma(-values(rate)[0], d, p) for d, p in zip(along, values(parameters))]
    return {"parameters": shown(after), "first": shown(m for m, _ in both), "second": shown(v for _, v in both), "direction": shown(along)}


@operation
def clip(model, exponents, squares, most):
    """Sums of squares of blocks, null where one is absent, in grid units."""
    blocks = training.block_tensors(ref.decode("Model", un(model)))
    norm = training.global_norm(blocks, [None if bits is None else by.double(wide(bits)) for bits in squares], exponents)
    return {"norm": word(by.bits64(norm)), "factor": word(by.bits64(training.clip_factor(values(most)[0], norm)))}


@operation
def trusts(model, squares):
    """Of each tensor, from the sums of squares of parameters and of directions of each block; zeros where it is absent."""
    model = ref.decode("Model", un(model))
    sums = [[0.0, 0.0] for _ in ref.tensors(model)]
    for (_, _, tensor), both in zip(training.block_tensors(model), squares):
        sums[tensor] = [old + by.double(wide(bits)) for old, bits in zip(sums[tensor], both)]
    found = [training.trust(rows, *both) for (_, rows, _), both in zip(ref.tensors(model), sums)]
    return {"trusts": [word(by.bits64(trust)) for trust in found]}


@operation
def learning_rates(optimiser, rounds, steps):
    optimiser = ref.decode("Optimiser", un(optimiser))
    return {"rates": [word(by.bits64(training.learning_rate(optimiser, rounds, step))) for step in steps]}


@operation
def initial_parameters(model, key):
    """Of all rows that a run begins with."""
    model = ref.decode("Model", un(model))
    return {"values": shown(training.draw(model, un(key), ref.rows_after(model, 0)))}


# ---------------------------------------------------------------- models

@operation
def gradient(model, key, windows, seed, leaf):
    """Of the parameters drawn with a key."""
    model = ref.decode("Model", un(model))
    loss, found = training.differentiate(model, training.draw(model, un(key)), windows, un(seed), leaf)
    return {"loss": word(by.bits64(loss)), "gradient": shown(found)}


@operation
def gradient_of(model, parameters, windows, seed, leaf):
    """Of these parameters."""
    loss, found = training.differentiate(ref.decode("Model", un(model)), values(parameters), windows, un(seed), leaf)
    return {"loss": word(by.bits64(loss)), "gradient": shown(found)}


def numbered_windows(manifest, first):
    """As many windows as a leaf has, from window `first` on; token i of window n is (3i² + 5i + 7n) mod vocabulary."""
    model = manifest["model"]
    token = lambda window, i: (3 * i * i + 5 * i + 7 * window) % model["vocabulary"]
    return [[token(first + b, i) for i in range(model["sequence"] + 1)] for b in range(windows_of_leaf(manifest))]


def windows_of_leaf(manifest):
    """ASSIGN-11: of a segment in a run of local updates."""
    (_, local), = manifest["exchange"].items()
    return manifest["training"]["leaf_windows"] * (local["segment"] if local else 1)


def integer_hash(q):
    return ref.tagged("state", b"".join(value.to_bytes(4, "little", signed=True) for value in q)).hex()


@operation
def golden(manifest, rounds, left_out):
    """A run that takes minutes here: `--check` leaves it out."""
    answer = run(manifest, rounds, left_out)
    del answer["first_leaf"]
    return answer


@operation
def run(manifest, rounds, left_out, spoiled=None):
    """Rounds from the first state on; the last one leaves out these blocks. `spoiled`, if there, is a coefficient that is NaN
    in the first round's parameters.

    With W windows a leaf and L leaves a round: windows 0.. calibrate, round t has the seed of 32 bytes t, its leaf ℓ the
    windows from W(1 + tL + ℓ) on; the aggregate is Q/2, as f32. Window 7 is evaluated at the end. With local updates a leaf
    is a segment of slot 0, and second moments move by all that is contributed.
    """
    data, manifest = un(manifest), ref.decode("Manifest", un(manifest))
    model, leaves, count = manifest["model"], manifest["training"]["leaves"], windows_of_leaf(manifest)
    calibration = ref.round_seed(ref.tagged("run", data), 2**32 - 1, bytes(32))
    state = training.initial(manifest, ref.tagged("initial", data), numbered_windows(manifest, 0), calibration)
    expect = {"exponents": state["exponents"], "roots": [training.state_root(model, state).hex()], "losses": [], "sums": []}
    if spoiled is not None:
        state["parameters"][spoiled] = by.NAN
    for turn in range(rounds):
        local, seed, d = "Local" in manifest["exchange"], bytes([turn] * 32), len(state["parameters"])
        some = [(number, numbered_windows(manifest, count * (1 + turn * leaves + number))) for number in range(leaves)]
        if local:
            found = training.chain(manifest, state, seed, 0, some)
        else:
            found = (training.leaf(model, state, seed, *one) for one in some)
        sums = [0] * (2 * d if local else d)
        for loss, q in found:
            expect["losses"].append(loss)
            expect.setdefault("first_leaf", q)
            sums = [a + b for a, b in zip(sums, q)]
        blocks = len(ref.layout(model)[0]) * (2 if local else 1)
        present = [turn < rounds - 1 or block not in left_out for block in range(blocks)]
        values = [by.f32(by.f32(value) * 0.5) for value in sums[:d]] + [float(value) for value in sums[d:]]
        state = (training.apply_local if local else training.apply)(manifest, state, values, present)
        expect["sums"].append(integer_hash(sums))
        expect["roots"].append(training.state_root(model, state).hex())
    loss = training.evaluate(model, state["parameters"], numbered_windows(manifest, 7)[:1], calibration)
    return {**expect, "last_exponents": state["exponents"], "evaluation": word(by.bits64(loss))}


# ---------------------------------------------------------------- samples

def draw(seed, count, wild=False):
    """Values of many magnitudes with zeros and subnormals; `wild` ones also infinite, NaN and the largest."""
    source, result = random.Random(seed), []
    for _ in range(count):
        bits, kind = source.getrandbits(32), source.randrange(40)
        exponent = 110 + source.randrange(24) << 23
        result.append({0: bits & 0x807FFFFF, 1: 1 << 31, 2: 0}.get(kind, bits & 0x807FFFFF | exponent))
        if wild and kind in (3, 4, 5, 6):
            result[-1] = (0x7F800000, 0xFF800000, 0x7FC00000, 0x7F7FFFFF)[kind - 3]
    return " ".join(f"{bits:08x}" for bits in result)


def tame(seed, count, scale=1.0):
    source = random.Random(seed)
    return shown(by.f32(source.gauss(0, scale)) for _ in range(count))


def small(x):
    return shown([by.f32(x)])


OPTIMISER = dict(method="AdamW", rate="3c23d70a", minimum_rate="3a83126f", warmup=2, schedule="Cosine", beta1="3f666666",
                 beta2="3f733333", epsilon="322bcc77", weight_decay="3dcccccd", clip_norm="3f800000")
TINY = {**SMALL, "vocabulary": 11, "heads": 2, "sequence": 30, "initial_scale": "3e4ccccd",
        "family": dict(Decoder=dict(key_value_heads=1, tied=True, rope_base="461c4000"))}
UNTIED = {**TINY, "width": 12, "heads": 6, "sequence": 50, "layers": 1,
          "family": dict(Decoder=dict(key_value_heads=2, tied=False, rope_base="42c80000"))}
MASKED = {**TINY, "heads": 2, "family": dict(Albert=dict(embedding=5, masked_ppm=300_000, mask_token=10))}


def experts(columns, active, balance=0.01, shared_hidden=4, rows=1, branch=0, **decoder):
    """The family of a mixture."""
    decoder = {**dict(key_value_heads=1, tied=True, rope_base="461c4000"), **decoder}
    return dict(Mixture=dict(decoder=decoder, columns=columns, active=active, shared_hidden=shared_hidden, balance=small(balance),
                             trust=small(4.0), rows=rows, branch=branch, few=0, held=0, lag=0))


SCALING = dict(factor="41000000", low="3f800000", high="40800000", original=20)


def variant(head_width, projection, scaling, **decoder):
    """The family of a decoder with another attention."""
    decoder = {**dict(key_value_heads=1, tied=True, rope_base="461c4000"), **decoder}
    return dict(Variant=dict(decoder=decoder, head_width=head_width, projection=projection, scaling=scaling))


# Llama 3.1, Mistral Nemo and Qwen2, and all that they have together; Qwen3, and with scaled positions.
LLAMA = {**TINY, "family": variant(4, "Plain", SCALING)}
NEMO = {**TINY, "family": variant(6, "Plain", None, tied=False)}
QWEN = {**TINY, "family": variant(4, "Biased", None)}
ALL_OWN = {**UNTIED, "width": 10, "heads": 4, "family": variant(2, "Biased", SCALING, key_value_heads=2, rope_base="42c80000")}
QWEN_3 = {**TINY, "family": variant(6, "Normed", None)}
NORMED = {**UNTIED, "width": 10, "heads": 4, "family": variant(18, "Normed", SCALING, key_value_heads=2, rope_base="42c80000")}
MIXED = {**TINY, "hidden": 5, "sequence": 10, "initial_scale": "3f000000", "family": experts(4, 2)}
MIXED_UNTIED = {**MIXED, "width": 12, "heads": 6, "hidden": 19, "layers": 1,
                "family": experts(5, 2, shared_hidden=21, key_value_heads=2, tied=False)}
MIXED_MILLION = {**TINY, "initial_scale": "3d4ccccd", "vocabulary": 259, "width": 128, "heads": 4, "hidden": 150, "sequence": 60,
                 "family": experts(6, 2, shared_hidden=200, key_value_heads=2, tied=False)}
MILLION = {**TINY, "initial_scale": "3d4ccccd", "vocabulary": 259, "width": 128, "layers": 3, "heads": 4, "hidden": 600, "sequence": 26,
           "family": dict(Decoder=dict(key_value_heads=2, tied=False, rope_base="461c4000"))}


def hexed(kind, value):
    return ref.write(kind, value).hex()


def manifest(model, optimiser=OPTIMISER, local=None, **training_settings):
    value = Sampler().value("Manifest")
    settings = dict(rounds=4, leaves=2, leaf_windows=2, grid_bits=8, recompute=False)
    value.update(model=model, optimiser=optimiser, training={**settings, **training_settings})
    value["exchange"] = dict(Local=local) if local else dict(Gradients=None)
    return hexed("Manifest", value)


def locally(**change):
    return {**dict(steps=4, segment=2, moments_every=1, outer_rate="3f333333", outer_momentum="3f666666"), **change}


# ---------------------------------------------------------------- the families

def family_arithmetic():
    yield from numbers()
    yield from function_cases()
    yield from operators()
    yield from mixture_operators()
    yield from update_cases()


def numbers():
    traps = [("3f800001", "3f800001", "33800000"), ("3f800001", "3f800001", "b3800000"),  # just beside a tie
             ("3f800001", "3f7ffffe", "bf800000"), ("00000001", "3f000000", "00000000"), ("00000003", "3f000000", "00000000"),
             ("00000001", "00000001", "00000001"), ("00000001", "80000001", "00800000"), ("7f7fffff", "3f800001", "00000000"),
             ("7f7fffff", "40000000", "ff7fffff"), ("7f7fffff", "40000000", "ff800000"), ("7f800000", "00000000", "3f800000"),
             ("3f800000", "3f800000", "bf800000"), ("80000000", "3f800000", "80000000"), ("80000000", "3f800000", "00000000"),
             ("4b800001", "4b800001", "27800000"), ("4b800001", "4b800000", "3f800000"), ("1a000001", "1a000001", "3f800000"),
             ("3f8c0000", "3f800fff", "337fffff"), ("0d000001", "32000001", "80000001"), ("7fc00000", "00000000", "7f800000")]
    # 2⁻²⁴(1 ∓ 2⁻⁴⁶) added to an odd and to an even f32: f64 rounds the sum to the middle of two, and then to the wrong one.
    below, above = ("3f800001", "337ffffe"), ("4b001001", "27ffe002")
    for sign in (0, 8):
        flip = lambda bits: f"{int(bits[0], 16) ^ sign:x}" + bits[1:]
        traps += [(below[0], flip(below[1]), flip("3f800001")), (above[0], flip(above[1]), flip("3f800000"))]
    a, b, c = (" ".join(column) for column in zip(*traps))
    yield case("one rounding", "ARITH-1", "a product rounded before it is added, or a sum rounded twice", "fma", a=a, b=b, c=c)
    for seed in range(3):
        yield case(f"fma of {seed}", "ARITH-1", "", "fma", a=draw(seed, 60, True), b=draw(seed + 10, 60, True), c=draw(seed + 20, 60, True))
    for rows, columns, depth in ((1, 1, 1), (3, 5, 40), (7, 17, 9), (2, 33, 70), (25, 3, 6), (1, 2, 530)):
        make = lambda seed, count: draw(seed + depth, count, columns == 33)
        given = make(3, rows * columns) if columns % 2 else ""
        yield case(f"{rows} × {columns}, depth {depth}", "ARITH-2", "chains in another order, or cut and joined by an addition",
                   "product", depth=depth, left=make(1, rows * depth), right=make(2, columns * depth), start=given)
    for count in (1, 15, 16, 17, 40, 131):
        yield case(f"sum of {count} products", "ARITH-3", "other lanes, another tree", "dot", a=draw(count, count), b=draw(count + 1, count))
    for count in (1, 15, 16, 17, 40, 131):
        yield case(f"sum of {count}", "ARITH-3", "other lanes, another tree, or a fused addition", "total", row=draw(count + 2, count))
    for count, wild in ((1, False), (16, False), (45, False), (60, True)):
        yield case(f"largest of {count}" + " wild" * wild, "ARITH-21", "NaN that wins", "largest", row=draw(count + 3, count, wild))
    yield case("largest of NaN", "ARITH-21", "NaN that is left", "largest", row=" ".join(["7fc00000"] * 18))
    for count in (1, 8, 9, 45):
        yield case(f"{count} squares", "ARITH-22", "sixteen lanes, or f32", "squares", values=draw(count, count, True))


def function_cases():
    source = random.Random(3)
    edges = [0x0, 0x80000000, 0x1, 0x80000001, 0x7F800000, 0xFF800000, 0x7FC00000, 0x42B00000, 0x42B00001, 0xC2AE0000,
             0xC2AE0001, 0xC2ADFFFF, 0x3F317218, 0x3EB17218, 0xBEB17218, 0x3F800000, 0xBF800000, 0x7F7FFFFF, 0xFF7FFFFF]
    yield case("edges", "ARITH-23", "a library's exponential", "exp", x=" ".join(f"{bits:08x}" for bits in edges))
    for turn, (low, high) in enumerate(((-87, 88), (-1, 1), (-16, 0))):
        yield case(f"from {low} to {high}", "ARITH-23", "a library's exponential", "exp",
                   x=shown(by.f32(source.uniform(low, high)) for _ in range(60 + turn)))
    f64s = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, by.SQRT_2, 2.0**-1022, 2.0**-1074, 1.7976931348623157e308, 10000.0, 1e-5,
            float("inf"), float("nan"), -3.5, 700.0, -700.0, by.PI, by.PI / 2, by.PI / 4, 2.0**17, -(2.0**17), 65535.0]
    f64s += [source.uniform(-700, 700) for _ in range(20)] + [source.uniform(0, 2) for _ in range(20)]
    f64s += [source.uniform(0, 131072) for _ in range(20)]
    yield case("functions of f64", "ARITH-6", "a library's functions", "functions", x=[word(by.bits64(x)) for x in f64s])


def operators():
    for width, wild in ((1, False), (8, False), (37, False), (100, False), (19, True)):
        x, gain = draw(width, width, wild), draw(width + 1, width)
        yield case(f"norm of {width}" + " wild" * wild, "ARITH-31", "order of the factors, or a reciprocal root", "rms_norm", x=x, gain=gain,
                   epsilon="3727c5ac", d=draw(width + 2, width), residual=draw(width + 3, width))
    yield case("norm of zeros", "ARITH-31", "", "rms_norm", x=small(0) + " 80000000", gain=draw(1, 2), epsilon="00000000", d=draw(2, 2),
               residual=draw(3, 2))
    for tokens, width, base in ((5, 8, "461c4000"), (3, 64, "48f42400"), (2, 2, "3f800000")):
        yield case(f"angles of {tokens} × {width}", "ARITH-33", "frequencies in f32, or a library's sine", "angles", tokens=tokens,
                   head_width=width, base=base)
    llama = dict(factor="41000000", low="3f800000", high="40800000", original=8192)
    # All three kinds of frequencies are among these; and none of the slow ones, and none of the fast ones.
    for name, change in (("Llama 3.1", {}), ("all fast", dict(low=small(1e-9), high=small(2e-9))), ("all slow", dict(low="49742400", high="49f42400"))):
        yield case(f"angles as in {name}", "ARITH-75", "a frequency on the wrong side, or mixed in f32", "scaled_angles", tokens=4,
                   head_width=64, base="48f42400", scaling=hexed("Scaling", {**llama, **change}))
    for half, direction, scale in ((1, 1, "3f800000"), (4, 1, "3eb504f3"), (21, -1, "3eb504f3"), (16, -1, "3f800000")):
        yield case(f"rotation by {half}, {direction}", "ARITH-34", "pairs of neighbours, or a product fused on the other side", "rotate",
                   head=draw(half, 2 * half), cosines=tame(half, half), sines=tame(half + 1, half), direction=direction, scale=scale)
    for keys, seen, wild in ((1, 1, False), (24, 1, False), (24, 24, False), (40, 30, False), (33, 20, True)):
        yield case(f"softmax of {seen} in {keys}" + " wild" * wild, "ARITH-35", "division, another tree, or fewer places", "softmax",
                   scores=tame(keys, keys, 3) if not wild else draw(keys, keys, True), seen=seen, d=tame(keys + 1, keys),
                   output=tame(2, 7), d_output=tame(3, 7))
    for width, wild in ((1, False), (8, False), (37, False), (19, True)):
        yield case(f"layer norm of {width}" + " wild" * wild, "ARITH-61", "a variance from the mean of squares", "layer_norm",
                   x=draw(width, width, wild), gain=draw(width + 1, width), bias=draw(width + 2, width), epsilon="3727c5ac",
                   d=draw(width + 3, width))
    for width, rows, wild in ((1, 3, False), (37, 5, False), (19, 4, True)):
        yield case(f"gain sums of {rows} × {width}" + " wild" * wild, "ARITH-43", "rows added in pairs, or lanes", "row_sums", width=width,
                   rows=draw(width + 4, rows * width, wild))
        yield case(f"biased rows, {rows} × {width}" + " wild" * wild, "ARITH-65", "a bias added after the chain", "biased",
                   rows=draw(width + 5, rows * width, wild), bias=draw(width + 6, width))
        yield case(f"bias sums of {rows} × {width}" + " wild" * wild, "ARITH-66", "rows summed before they are added to the start", "bias_sums",
                   rows=draw(width + 7, rows * (width + 3), wild), stride=width + 3, first=2, start=draw(width + 8, width))
    for width, tokens in ((1, [0, 0, 0]), (9, [2, 0, 2, 1, 2, 0]), (24, [5, 5])):
        rows = max(tokens) + 1
        yield case(f"embedding of {rows} × {width}", "ARITH-44", "rows of equal tokens added up first", "embedding", width=width, tokens=tokens,
                   start=draw(width + 9, rows * width), rows=draw(width + 10, len(tokens) * width))
    yield case("GELU", "ARITH-63", "the other form of GELU, or a library's tanh", "gelu", x=tame(1, 60, 4), d=tame(2, 60))
    yield case("GELU wild", "ARITH-63", "", "gelu", x=draw(3, 60, True), d=draw(4, 60))
    for tokens, heads, group, width, causal, wild in ((5, 2, 1, 4, True, False), (53, 4, 2, 3, True, False), (50, 2, 2, 2, True, True),
                                                      (30, 2, 1, 4, False, False)):
        columns, spoilt = width * (heads + 2 * heads // group), random.Random(tokens).randrange(26, 40)
        joint = tame(tokens, tokens * columns).split()
        if wild:
            joint[spoilt * columns:(spoilt + 1) * columns] = ["7f800000"] * columns
        yield case(f"attention of {tokens}, " + ("causal" if causal else "both ways") + " wild" * wild, "ARITH-37",
                   "blocks of another length show where a later token of the block is infinite", "attention", tokens=tokens, heads=heads,
                   group=group, width=width, causal=causal, joint=" ".join(joint), d_mixed=tame(tokens + 1, tokens * width * heads))
    for hidden, wild in ((5, False), (50, False), (40, True)):
        yield case(f"gated by {hidden}" + " wild" * wild, "ARITH-38", "order of the factors", "swiglu", gate=draw(hidden, hidden, wild),
                   up=draw(hidden + 1, hidden, wild), d=draw(hidden + 2, hidden))
    for vocabulary, target, wild in ((1, 0, False), (11, 10, False), (50, 3, False), (33, 0, True)):
        logits = draw(vocabulary, vocabulary, True) if wild else tame(vocabulary, vocabulary, 4)
        yield case(f"cross-entropy of {vocabulary}" + " wild" * wild, "ARITH-40", "a logarithm of f32, or the share applied elsewhere",
                   "cross_entropy", logits=logits, target=target, share=small(1 / 60))


def mixture_operators():
    numbers = lambda *values: shown(map(by.f32, values))
    inf, nan = by.INFINITY, by.NAN
    for name, why, active, scores in (
            ("ascending", "experts in the order of their scores", 3, numbers(1, -2, 3, 0.5, 4, -1, 2, 0)),
            ("all alike", "the last of equal experts", 2, numbers(*[0.25] * 6)),
            ("a tie at the end", "both of two equal experts, or neither", 3, numbers(1, 2, 3, 2, 2, 4)),
            ("zeros of both signs", "+0 before −0", 2, numbers(-0.0, 0.0, -0.0, 0.0, -1)),
            ("+0 after −0", "+0 before −0", 1, numbers(-1, -0.0, 0.0)),
            ("NaN among scores", "NaN that comes first, or last only by chance", 3, numbers(nan, 1, nan, -5, 2, nan, -inf, 0)),
            ("NaN that is chosen", "an expert too few", 4, numbers(nan, 1, nan, -inf, nan)),
            ("NaN only", "no expert", 2, numbers(nan, nan, nan)),
            ("infinities", "", 3, numbers(1, -inf, inf, 0, -inf)),
            ("infinities of one sign", "", 2, numbers(inf, 3, inf, inf)),
            ("−∞ only", "", 2, numbers(-inf, -inf, -inf)),
            ("−∞ before NaN", "", 2, numbers(nan, -inf, 2)),
            ("neighbours", "scores that are rounded before they are compared", 2, "3f800001 3f800000 3f800002 00000001 00000000"),
            ("a weight of zero", "", 2, numbers(100, -50, 0)),
            ("all active", "", 5, numbers(0.5, -1, 2, 0.25, 1)),
            ("one active", "", 1, numbers(0.5, -1, 2, 0.25, 1)),
            ("one expert", "", 1, numbers(-3)),
            ("18 of 40", "weights added in another tree", 18, tame(40, 40, 2)),
            ("9 of 60, wild", "", 9, draw(61, 60, True)),
            ("256 of 256", "numbers of experts in a byte", 256, tame(256, 256, 2))):
        yield case(f"route, {name}", "ARITH-70", why, "route", scores=scores, active=active)
    source = random.Random(7)
    for name, why, scores, active, tokens, balance in (
            ("plain", "order of the operations", tame(1, 8, 2), 3, 10, 0.01),
            ("18 of 40", "row sums in another tree", tame(2, 40, 2), 18, 30, 0.5),
            ("without balance", "a sum that is left out changes −0 to +0", tame(3, 6, 2), 2, 10, 0.0),
            ("no weight, without balance", "a sum that is left out changes −0 to +0", numbers(100, 0, -3), 2, 1, 0.0),
            ("much balance", "β in f32 before its last product", tame(4, 6, 2), 2, 10, 3e4),
            ("balance beyond f32", "β that saturates", tame(5, 6, 2), 2, 10, 3e38),
            ("all active", "", tame(6, 5, 2), 5, 7, 0.1),
            ("one active", "a weight of 1 has a gradient", tame(7, 5, 2), 1, 7, 0.1),
            ("one expert", "", numbers(-3), 1, 7, 0.1),
            ("a long window", "shares of tokens that are rounded twice", tame(8, 7, 2), 3, 65_536, 0.1),
            ("NaN that is not chosen", "a NaN that is skipped", numbers(1, nan, 2, -1), 2, 9, 0.1),
            ("NaN, without balance", "0·NaN that is left out", numbers(1, nan, 2, -1), 2, 9, 0.0),
            ("infinities", "", numbers(1, -inf, inf, 0), 2, 9, 0.1),
            ("−∞ that is not chosen", "", numbers(1, -inf, 2, 0), 2, 9, 0.1)):
        row = values(scores)
        chosen = mixture.route(row, active)[0]
        idle = next((j for j in reversed(range(len(row))) if j not in chosen), None) if name == "plain" else None
        counts = [int(j in chosen) for j in range(len(row))]
        for _ in range(tokens - 1 if tokens < 1000 else 0):
            for j in source.sample([j for j in range(len(row)) if j != idle], active):
                counts[j] += 1
        if tokens > 1000:
            counts = [tokens if j == chosen[0] else tokens // 3 for j in range(len(row))]
        yield case(f"route backward, {name}", "ARITH-73", why, "route_backward", scores=scores, chosen=chosen, counts=counts,
                   d_weights=numbers(1, -1) if name.startswith("no weight") else tame(active + 50, active), tokens=tokens,
                   balance=small(balance), share=small(1 / 60))
    for hidden, weight, wild in ((1, 0.3, False), (5, 1.0, False), (50, 0.7, False), (19, 0.0, False), (7, nan, False), (40, 0.3, True)):
        yield case(f"expert of {hidden}, weight {weight}" + " wild" * wild, "ARITH-72", "a weight on the other side of the product with down_proj",
                   "expert", gate=draw(hidden + 11, hidden, wild), up=draw(hidden + 12, hidden, wild), weight=small(weight),
                   d=draw(hidden + 13, hidden))
    edges = numbers(0, -0.0, 87, -87, 89, -89, -104, 200, inf, -inf, nan)
    yield case("shared gate", "ARITH-73", "1 − σ as a quotient, or as a factor of its own", "shared_gate", s=tame(3, 40, 4), d_weights=tame(4, 40))
    yield case("shared gate at its edges", "ARITH-71", "", "shared_gate", s=edges, d_weights=tame(5, 11))


def update_cases():
    step = shown(map(by.f32, (2.0**-20, 0.9, 0.95, 0.1, 0.05, 0.02, 1.7, 1e-8, 0.999)))
    for seed, wild in ((1, False), (2, True)):
        many = [draw(seed * 10 + i, 50, wild) for i in range(4)]
        yield case("AdamW" + " wild" * wild, "ARITH-7", "order of the products; NaN that is not 7fc00000", "adamw", aggregate=many[0],
                   parameters=many[1], first=many[2], second=many[3], step=step)
        yield case("LAMB" + " wild" * wild, "ARITH-67", "decay before the quotient, or twice; NaN that is not 7fc00000", "lamb", aggregate=many[0],
                   parameters=many[1], first=many[2], second=many[3], step=step, first_scale=small(2.5), decay=small(0.01), rate=small(0.125))
    source = random.Random(5)
    block_count = lambda model: len(ref.layout(ref.decode("Model", un(hexed("Model", model))))[0])
    some = lambda: word(by.bits64(source.uniform(0, 1e6)))
    for most in ("3f800000", "00000000", "60ad78ec"):
        squares = [None if source.randrange(4) == 0 else some() for _ in range(block_count(MILLION))]
        yield case(f"clip at {most}", "ARITH-47", "blocks added in another order, or absent ones counted", "clip", model=hexed("Model", MILLION),
                   exponents=[source.randrange(-30, 0) for _ in ref.tensors(MILLION)], squares=squares, most=most)
    for name, model in (("a million", MILLION), ("masked", MASKED)):
        squares = [[some(), some()] for _ in range(block_count(model))]
        squares[0], squares[2] = [word(0), some()], [some(), word(0)]
        yield case(f"trust, {name}", "ARITH-67", "one row that is scaled, or a root of the quotient", "trusts", model=hexed("Model", model),
                   squares=squares)
    for schedule in ("Constant", "Linear", "Cosine"):
        yield case(f"rates, {schedule}", "ARITH-46", "first and last rounds", "learning_rates",
                   optimiser=hexed("Optimiser", {**OPTIMISER, "schedule": schedule}), rounds=9, steps=list(range(11)))
    yield case("rates, warm-up longer than the run", "ARITH-46", "a length of zero", "learning_rates",
               optimiser=hexed("Optimiser", {**OPTIMISER, "warmup": 5}), rounds=3, steps=[0, 2, 4, 5, 6])
    one_expert = {**MIXED, "family": experts(1, 1)}
    for name, model in (("tied", TINY), ("untied", UNTIED), ("masked", MASKED), ("mixture", MIXED), ("mixture, a router of one row", one_expert),
                        ("a variant", ALL_OWN)):
        yield case(f"initial parameters, {name}", "ARITH-8", "words skipped at norms, a quotient instead of a product", "initial_parameters",
                   model=hexed("Model", model), key=fill(0x77))
    shallow = {**MIXED, "layers": 1, "hidden": 3}
    for name, why, rows, branch in (("three rows", "rows that all get the words of the first one", 3, 0),
                                    ("two rows of which there is one so far", "words for rows that do not exist yet", 2, 1)):
        yield case(f"initial parameters, {name}", "ARITH-8", why, "initial_parameters", key=fill(0x77),
                   model=hexed("Model", {**shallow, "family": experts(2, 1, rows=rows, branch=branch)}))


def family_arithmetic_gradients():
    source = random.Random(9)
    window = lambda model: [source.randrange(model["vocabulary"]) for _ in range(model["sequence"] + 1)]
    for name, model, count in (("tied, two windows", TINY, 2), ("untied, shared key heads, three blocks", UNTIED, 1),
                               ("masked, two windows", MASKED, 2)):
        yield case(name, "ARITH-66" if model is MASKED else "ARITH-42", "any sum in another order", "gradient", seed=fill(0x7a), leaf=3,
                   model=hexed("Model", model), key=fill(0x78), windows=[window(model) for _ in range(count)])
    beyond = window(TINY)
    beyond[3] = beyond[9] = 4_000_000_000
    yield case("tokens beyond the vocabulary", "ARITH-30", "a token out of range", "gradient", model=hexed("Model", TINY), key=fill(0x79),
               windows=[beyond], seed=fill(0x7a), leaf=0)
    idle = {**MIXED, "sequence": 3, "layers": 1}
    for name, why, model, count in (
            ("mixture, two windows", "balance over the leaf, and not window by window", {**MIXED, "sequence": 30}, 2),
            ("mixture, untied, shared key heads", "chains in another order", MIXED_UNTIED, 3),
            ("mixture, one active", "a loss that reaches the router through a weight of 1", {**MIXED, "family": experts(6, 1)}, 2),
            ("mixture, all active", "", {**MIXED, "family": experts(4, 4)}, 1),
            ("mixture, one expert", "", {**MIXED, "family": experts(1, 1)}, 1),
            ("mixture, idle experts", "what is no number, or left over, where no token was", {**idle, "family": experts(11, 1)}, 1),
            ("mixture, idle in some windows", "an expert's tokens in another order", {**idle, "family": experts(9, 2)}, 4),
            ("mixture, without balance", "", {**MIXED, "family": experts(4, 2, 0.0)}, 1),
            ("mixture, much balance", "", {**MIXED, "family": experts(4, 2, 1e4)}, 2)):
        yield case(name, "ARITH-74", why, "gradient", seed=fill(0x7a), leaf=3, model=hexed("Model", model), key=fill(0x78),
                   windows=[window(model) for _ in range(count)])
    shallow = {**MIXED, "layers": 1}
    parameters = tame(12, sum(rows * width for _, rows, width in ref.tensors(shallow)), 0.5).split()
    tied = list(parameters)
    for (name, _, _), (start, end) in zip(ref.tensors(shallow), training.tensor_ranges(shallow)):
        if name.endswith("mlp.gate.weight"):
            tied[start:end] = parameters[start:start + shallow["width"]] * 4
    for name, why, some in (("mixture, a gate of its own", "a shared expert whose weight is always that of the start, 1/2", parameters),
                            ("mixture, experts that tie", "another choice among equal experts", tied)):
        yield case(name, "ARITH-71", why, "gradient_of", model=hexed("Model", shallow), parameters=" ".join(some), seed=fill(0x7a), leaf=3,
                   windows=[window(shallow) for _ in range(2)])


    for name, why, model, count in (
            ("variant, scaled positions", "frequencies of another rule", LLAMA, 1),
            ("variant, heads wider than the stream", "a width of the heads where that of the stream belongs", NEMO, 2),
            ("variant, biases", "biases after the rotation, or of one window", QWEN, 2),
            ("variant, all of these", "", ALL_OWN, 2)):
        some = tame(13, sum(rows * width for _, rows, width in ref.tensors(model)), 0.3)
        yield case(name, "ARITH-76" if model is not LLAMA else "ARITH-75", why, "gradient_of", model=hexed("Model", model), parameters=some,
                   seed=fill(0x7a), leaf=3, windows=[window(model) for _ in range(count)])
    for name, why, model in (("variant, norms of queries and keys", "norms after the rotation, of the values, or of all heads together", QWEN_3),
                             ("variant, norms of queries and keys, and scaled positions", "gains' shares added head by head", NORMED)):
        some = tame(14, sum(rows * width for _, rows, width in ref.tensors(model)), 0.3)
        yield case(name, "ARITH-77", why, "gradient_of", model=hexed("Model", model), parameters=some, seed=fill(0x7a), leaf=3,
                   windows=[window(model) for _ in range(2)])


def family_arithmetic_runs():
    yield case("two rounds", "ARITH-48", "any bit of a run", "run", manifest=manifest(TINY), rounds=2, left_out=[3])
    other = {**OPTIMISER, "warmup": 0, "schedule": "Linear", "clip_norm": "41800000"}
    yield case("ten rounds, a clip wider than the norm", "ARITH-47", "any bit of a run", "run", left_out=[],
               manifest=manifest(UNTIED, other, leaves=1, leaf_windows=1, rounds=10), rounds=10)
    yield case("masked, two rounds", "ARITH-66", "any bit of a run, or what is masked", "run", left_out=[0], manifest=manifest(MASKED), rounds=2)
    layerwise = {**OPTIMISER, "method": "Lamb", "epsilon": "358637bd"}
    yield case("LAMB, two rounds", "ARITH-67", "any bit of a run", "run", left_out=[3], manifest=manifest(TINY, layerwise), rounds=2)
    yield case("masked, LAMB, recomputed", "ARITH-67", "any bit of a run, or activations that are computed otherwise again", "run", left_out=[],
               manifest=manifest(MASKED, layerwise, recompute=True), rounds=2)
    yield case("local updates, two rounds", "LOCAL-2", "any bit of a chain", "run", manifest=manifest(TINY, local=locally()), rounds=2,
               left_out=[3, 20])
    yield case("local updates, a coarse grid", "GRID-7", "a chain that saturates, or that adds up to another end", "run", left_out=[],
               manifest=manifest(UNTIED, other, locally(segment=1, steps=2), grid_bits=1), rounds=2)
    yield case("local updates, masked", "ASSIGN-11", "masks of another leaf", "run", left_out=[], rounds=2,
               manifest=manifest(MASKED, local=locally(segment=2, steps=2), leaves=1))
    yield case("local updates, mixture", "LOCAL-3", "a clip over both shards", "run", left_out=[30],
               manifest=manifest(MIXED, local=locally(steps=2, segment=1)), rounds=2)
    # A token's row that the first leaf does not read, and the others do.
    yield case("a parameter that is NaN", "ARITH-20", "a NaN's sign, or what a comparison made of it", "run", left_out=[],
               manifest=manifest(UNTIED), rounds=2, spoiled=29)
    yield case("masked, a parameter that is NaN", "ARITH-20", "a NaN's sign, or what a comparison made of it", "run", left_out=[],
               manifest=manifest(MASKED), rounds=2, spoiled=500)
    yield case("mixture, two rounds", "ARITH-74", "any bit of a run", "run", left_out=[3, 30], manifest=manifest(MIXED), rounds=2)
    yield case("mixture, untied, LAMB, recomputed", "ARITH-74", "any bit of a run, or tokens that are sent elsewhere again", "run", left_out=[],
               manifest=manifest(MIXED_UNTIED, layerwise, recompute=True), rounds=2)
    idle = {**MIXED, "sequence": 3, "layers": 1, "family": experts(9, 1)}
    yield case("mixture, LAMB, idle experts", "ARITH-49", "an exponent, or a direction, of nothing", "run", left_out=[],
               manifest=manifest(idle, layerwise, leaves=1, leaf_windows=1), rounds=2)
    # Of an expert's row in the router of the first layer: no token goes there any more.
    router = next(start for (name, _, _), (start, _) in zip(ref.tensors(MIXED), training.tensor_ranges(MIXED)) if name.endswith("mlp.gate.weight"))
    yield case("mixture, a router that is NaN", "ARITH-70", "NaN that is chosen", "run", left_out=[],
               manifest=manifest(MIXED, leaves=1), rounds=2, spoiled=router + MIXED["width"] + 1)
    yield case("variant, two rounds", "ARITH-76", "any bit of a run", "run", left_out=[3], manifest=manifest(ALL_OWN), rounds=2)
    yield case("variant with norms, two rounds", "ARITH-77", "any bit of a run", "run", left_out=[3], manifest=manifest(NORMED), rounds=2)
    yield case("a million parameters", "ARITH-4", "tiles, panels and blocks that a tiny model does not fill", "golden",
               manifest=manifest(MILLION, leaves=1, leaf_windows=1), rounds=1, left_out=[8])  # half of a tensor
    yield case("mixture, a million parameters", "ARITH-74", "tiles and panels that the tokens of an expert do not fill", "golden",
               manifest=manifest(MIXED_MILLION, leaves=1, leaf_windows=1), rounds=1, left_out=[40])
