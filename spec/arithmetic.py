"""The arithmetic of profile `exact` (arithmetic.md), once more, in plain Python: numbers, sums, functions, operators.

A real is a Python float, which is an f64; one that stands for an f32 has a value that f32 has. Additions,
multiplications, divisions and roots of f32 are computed in f64 and narrowed: 53 bits are more than twice 24, so that
rounding twice is rounding once. A fused multiply-add needs more care, and gets it. NaN is one value.
"""

import math
import struct

INFINITY, NAN = math.inf, math.nan
SINGLE, DOUBLE = struct.Struct("<f"), struct.Struct("<d")


# ---------------------------------------------------------------- numbers

def f32(x):
    """ARITH-1: the nearest f32, ties to even; what is too large is infinite."""
    try:
        return SINGLE.unpack(SINGLE.pack(x))[0]
    except OverflowError:
        return math.copysign(INFINITY, x)


def single(bits):
    return SINGLE.unpack(struct.pack("<I", bits & 0xFFFFFFFF))[0]


def double(bits):
    return DOUBLE.unpack(struct.pack("<Q", bits))[0]


def bits32(x):
    """ARITH-20: NaN is 7fc00000."""
    return 0x7FC00000 if x != x else struct.unpack("<I", SINGLE.pack(x))[0]


def bits64(x):
    return 0x7FF8000000000000 if x != x else struct.unpack("<Q", DOUBLE.pack(x))[0]


def fma(a, b, c):
    """ARITH-1: a·b + c of f32, rounded once.

    The product is exact in f64. Its sum with c is rounded there to odd: where it is not exact, the last bit is 1. So it
    is never halfway between two f32 by accident, and rounding it again is right (Boldo and Melquiond 2008).
    """
    product = a * b
    total = product + c
    back = total - product
    error = (product - (total - back)) + (c - back)
    if error and error == error and not DOUBLE.pack(total)[0] & 1:
        total = math.nextafter(total, math.copysign(INFINITY, error))
    return f32(total)


def quotient(a, b):
    """IEEE 754's a/b, which Python refuses where b is 0; in f64."""
    if b:
        return a / b
    return NAN if a != a or b != b or a == 0 else math.copysign(INFINITY, math.copysign(1, a) * math.copysign(1, b))


def root(x):
    """IEEE 754's root, which Python refuses below 0; in f64."""
    return NAN if x < 0 else math.sqrt(x)


def finite(x):
    return math.isfinite(x)


# ---------------------------------------------------------------- sums

def chain(a, b, start=0.0):
    """ARITH-2: acc ← fma(a[k], b[k], acc), ascending."""
    total = start
    for x, y in zip(a, b):
        total = fma(x, y, total)
    return total


def product(left, right, start=None):
    """ARITH-2: rows of `left` by rows of `right`; chains start from `start` where it is given."""
    return [[chain(row, other, start[i][j] if start else 0.0) for j, other in enumerate(right)]
            for i, row in enumerate(left)]


def lanes(terms, add):
    """ARITH-3: 16 lanes, then a tree of pairs; `add` puts a term to a lane."""
    sums = [0.0] * 16
    for i, term in enumerate(terms):
        sums[i % 16] = add(sums[i % 16], term)
    for half in (8, 4, 2, 1):
        sums = [f32(sums[lane] + sums[lane + half]) for lane in range(half)]
    return sums[0]


def dot(a, b):
    """ARITH-3: fused."""
    return lanes(zip(a, b), lambda total, pair: fma(pair[0], pair[1], total))


def lane_sum(values):
    """ARITH-3: plain additions."""
    return lanes(values, lambda total, value: f32(total + value))


def largest(values):
    """ARITH-21: NaN is skipped."""
    return max((value for value in values if value == value), default=-INFINITY)


def sum_of_squares(values):
    """ARITH-22: in f64, eight lanes; what is not finite counts 0."""
    sums = [0.0] * 8
    for i, value in enumerate(values):
        sums[i % 8] += value * value if finite(value) else 0.0
    four = [sums[lane] + sums[lane + 4] for lane in range(4)]
    return (four[0] + four[2]) + (four[1] + four[3])


# ---------------------------------------------------------------- functions

LOG2_E, ROUND, EXP_HIGH, EXP_LOW = map(single, (0x3FB8AA3B, 0x4B400000, 0x3F318000, 0xB95E8083))
EXP_POLYNOMIAL = list(map(single, (0x39506967, 0x3AB743CE, 0x3C088908, 0x3D2AA9C1, 0x3E2AAAAA, 0x3F000000)))


def exp32(x):
    """ARITH-23"""
    if x != x:
        return NAN
    if x < -87.0:
        return 0.0
    bounded = 88.0 if x > 88.0 else x
    shifted = fma(bounded, LOG2_E, ROUND)
    n = f32(shifted - ROUND)
    r = fma(n, -EXP_LOW, fma(n, -EXP_HIGH, bounded))
    p = EXP_POLYNOMIAL[0]
    for coefficient in EXP_POLYNOMIAL[1:]:
        p = fma(p, r, coefficient)
    mantissa = f32(fma(p, f32(r * r), r) + 1.0)
    return f32(mantissa * single((bits32(shifted) << 23) + 0x3F800000))


LN_2_HIGH, LN_2_LOW, LOG2_E_64 = map(double, (0x3FE62E42FEE00000, 0x3DEA39EF35793C76, 0x3FF71547652B82FE))
HALF_PI_HIGH, HALF_PI_LOW, TWO_OVER_PI = map(double, (0x3FF921FB54400000, 0x3DD0B4611A626331, 0x3FE45F306DC9C883))
SQRT_2, PI = map(double, (0x3FF6A09E667F3BCD, 0x400921FB54442D18))


def ln(x):
    """ARITH-24"""
    if not 2.0**-1022 <= x < INFINITY:
        return NAN
    exponent = (bits64(x) >> 52) - 1023
    mantissa = double(bits64(x) & 2**52 - 1 | 1023 << 52)
    if mantissa >= SQRT_2:
        mantissa, exponent = mantissa * 0.5, exponent + 1
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square, series = s * s, 0.0
    for odd in range(23, 1, -2):
        series = (series + 1.0 / odd) * square
    k = float(exponent)
    return k * LN_2_HIGH + (k * LN_2_LOW + (2.0 * s + 2.0 * s * series))


def nearest(x):
    """ARITH-6: the nearest integer, ties to even, with the sign of x where it is 0."""
    return math.copysign(round(x), x)


def exp64(x):
    """ARITH-25"""
    n = nearest(x * LOG2_E_64)
    r = (x - n * LN_2_HIGH) - n * LN_2_LOW
    series = 1.0
    for divisor in range(14, 0, -1):
        series = 1.0 + series * r / divisor
    return series * 2.0**n


def sine_cosine(x):
    """ARITH-26"""
    n = nearest(x * TWO_OVER_PI)
    r = (x - n * HALF_PI_HIGH) - n * HALF_PI_LOW
    square, sine, cosine = r * r, 1.0, 1.0
    for even in range(18, 0, -2):
        cosine = 1.0 - cosine * square / (even * (even - 1))
        sine = 1.0 - sine * square / (even * (even + 1))
    sine = sine * r
    return ((sine, cosine), (cosine, -sine), (-sine, -cosine), (-cosine, sine))[int(n) & 3]


# ---------------------------------------------------------------- operators: rows of f32

def rms_norm(x, gain, epsilon):
    """ARITH-31: the normalised row and its scale."""
    scale = f32(quotient(1.0, f32(root(f32(f32(dot(x, x) / len(x)) + epsilon)))))
    return [f32(f32(value * scale) * g) for value, g in zip(x, gain)], scale


def rms_norm_backward(x, gain, scale, d, residual):
    """ARITH-32: the new gradient of the residual stream, and the row's share of the gain's gradient."""
    terms = zip(d, gain, x)
    total = lanes(terms, lambda total, term: fma(f32(term[0] * term[1]), term[2], total))
    mean = f32(f32(total * scale) / len(x))
    unit = [f32(value * scale) for value in x]
    inner = [fma(-u, mean, f32(v * g)) for u, v, g in zip(unit, d, gain)]
    return [fma(scale, v, old) for v, old in zip(inner, residual)], [f32(v * u) for v, u in zip(d, unit)]


def rotary_frequencies(head_width, base, scaling=None):
    """ARITH-33, ARITH-75: of each pair."""
    logarithm = ln(base)
    plain = [exp64(-(2 * i) / head_width * logarithm) for i in range(head_width // 2)]
    return [scaled(frequency, *scaling) for frequency in plain] if scaling else plain


def scaled(frequency, factor, low, high, original):
    """ARITH-75"""
    turns = frequency * original / (2.0 * PI)
    if turns < low:
        return frequency / factor
    if turns > high:
        return frequency
    mixed = (turns - low) / (high - low)
    return (1.0 - mixed) * (frequency / factor) + mixed * frequency


def rotary_angles(tokens, frequencies):
    """ARITH-33: cosines and sines by token and pair."""
    both = [[sine_cosine(token * frequency) for frequency in frequencies] for token in range(tokens)]
    return [[f32(c) for _, c in row] for row in both], [[f32(s) for s, _ in row] for row in both]


def rotate(head, cosines, sines, direction, scale):
    """ARITH-34"""
    half = len(head) // 2
    low, high = head[:half], head[half:]
    sines = [f32(s * direction) for s in sines]
    return ([f32(fma(x, c, -f32(y * s)) * scale) for x, y, c, s in zip(low, high, cosines, sines)]
            + [f32(fma(y, c, f32(x * s)) * scale) for x, y, c, s in zip(low, high, cosines, sines)])


def exponentials(row):
    """ARITH-35: e^(x − largest), their sum, and the largest."""
    shift = largest(row)
    powers = [exp32(f32(x - shift)) for x in row]
    return powers, lane_sum(powers), shift


def softmax(row, seen):
    """ARITH-35: probabilities of a row whose first `seen` places take part."""
    powers, total, _ = exponentials(row[:seen] + [-INFINITY] * (len(row) - seen))
    inverse = f32(quotient(1.0, total))
    return [f32(power * inverse) for power in powers]


def softmax_backward(probabilities, d, output, d_output):
    """ARITH-36"""
    mean = dot(output, d_output)
    return [f32(p * f32(v - mean)) for p, v in zip(probabilities, d)]


def logistic(x):
    """ARITH-38, ARITH-71: σ."""
    return f32(quotient(1.0, f32(1.0 + exp32(-x))))


def swiglu(gate, up):
    """ARITH-38: the product, and σ(gate)."""
    sigmoid = [logistic(g) for g in gate]
    return [f32(f32(g * s) * u) for g, s, u in zip(gate, sigmoid, up)], sigmoid


def swiglu_backward(gate, up, sigmoid, d):
    """ARITH-39: the gradients of gate and of up."""
    slope = lambda g, s: f32(s * fma(g, f32(1.0 - s), 1.0))
    d_gate = [f32(f32(v * u) * slope(g, s)) for g, u, s, v in zip(gate, up, sigmoid, d)]
    return d_gate, [f32(v * f32(g * s)) for g, s, v in zip(gate, sigmoid, d)]


def layer_norm(x, gain, bias, epsilon):
    """ARITH-61: the normalised row, its mean and scale."""
    mean = f32(lane_sum(x) / len(x))
    centred = [f32(value - mean) for value in x]
    scale = f32(quotient(1.0, f32(root(f32(f32(dot(centred, centred) / len(x)) + epsilon)))))
    return [fma(f32(c * scale), g, b) for c, g, b in zip(centred, gain, bias)], mean, scale


def layer_norm_backward(x, gain, mean, scale, d):
    """ARITH-62: the gradient of the input, and the row's unit values, by which gains are weighed."""
    unit = [f32(f32(value - mean) * scale) for value in x]
    scaled = [f32(v * g) for v, g in zip(d, gain)]
    level, slope = f32(lane_sum(scaled) / len(x)), f32(dot(scaled, unit) / len(x))
    return [f32(scale * fma(-u, slope, f32(v - level))) for u, v in zip(unit, scaled)], unit


GELU_SLOPE, GELU_CUBE = map(single, (0x3FCC4229, 0x3D922279))


def gelu_gate(x):
    """ARITH-63: σ of GELU's argument, and 1 − σ."""
    power = exp32(-f32(x * fma(f32(x * x), GELU_CUBE, GELU_SLOPE)))
    sigmoid = f32(quotient(1.0, f32(1.0 + power)))
    return sigmoid, f32(power * sigmoid)


def gelu(row):
    """ARITH-63"""
    return [f32(x * gelu_gate(x)[0]) for x in row]


def gelu_backward(row, d):
    """ARITH-64"""
    result = []
    for x, v in zip(row, d):
        sigmoid, rest = gelu_gate(x)
        inner = fma(f32(x * x), f32(3.0 * GELU_CUBE), GELU_SLOPE)
        result.append(f32(v * fma(f32(f32(x * sigmoid) * rest), inner, sigmoid)))
    return result


def cross_entropy(row, target, share):
    """ARITH-40: a token's loss, and the gradient of its logits."""
    powers, total, shift = exponentials(row)
    loss = ln(total) - f32(row[target] - shift)
    factor = f32(quotient(share, total))
    gradient = [f32(power * factor) for power in powers]
    gradient[target] = f32(gradient[target] - share)
    return loss, gradient
