"""Leaves and updates of profile `exact` (arithmetic.md)."""

import reference as ref
from albert import Albert
from arithmetic import PI, bits32, bits64, double, f32, finite, fma, quotient, root, sine_cosine, single, sum_of_squares
from decoder import Decoder
from mixture import Mixture
from network import real


def draw(model, key, rows_of_experts=1):
    """ARITH-8: initial parameters of the trunk, and then of each row."""
    path, (trunk, *_) = ref.tensors(model), ref.shards(model)
    tensors = path[:trunk[0]] + path[trunk[0]:] * rows_of_experts
    count = sum(rows * width for _, rows, width in tensors)
    words = [word for block in range(-(-count // 16)) for word in ref.chacha_block(key, block, 20)]
    bound = root(3.0) * real(model["initial_scale"])
    values = []
    for name, rows, width in tensors:
        adds_up = name.endswith(("o_proj.weight", "down_proj.weight"))
        own = bound * (1.0 / root(2.0 * model["layers"])) if adds_up else bound
        constant = 0.0 if name.endswith((".bias", "shared_expert_gate.weight")) else 1.0
        for word in words[len(values):len(values) + rows * width]:
            unit = (2.0 * (word >> 8) + 1.0) / 2.0**24 - 1.0
            values.append(constant if rows == 1 else f32(unit * own))
    return values


# ---------------------------------------------------------------- leaves

FAMILIES = {"Decoder": Decoder, "Albert": Albert, "Mixture": Mixture, "Variant": Decoder}


def network(model, parameters):
    family, = model["family"]
    return FAMILIES[family](model, parameters)


def differentiate(model, parameters, windows, seed, leaf):
    """ARITH-45: mean loss, and the gradient; seed and leaf say what is masked."""
    passes = network(model, parameters)
    predicted = len(windows) * passes.predicted
    tapes = [passes.forward(window, f32(1.0 / predicted), (seed, leaf, b)) for b, window in enumerate(windows)]
    for tape in tapes:
        passes.backward(tape)
    return ref.ordered_sum(tape["loss"] for tape in tapes) / predicted, passes.gradient(tapes)


def evaluate(model, parameters, windows, seed):
    """ARITH-45, ASSIGN-8: mean loss."""
    passes = network(model, parameters)
    losses = [passes.forward(window, 1.0, (seed, 1, b))["loss"] for b, window in enumerate(windows)]
    mean = ref.ordered_sum(losses) / (len(windows) * passes.predicted)
    return mean if finite(mean) else float("nan")


def tensor_ranges(model):
    offset = 0
    for _, rows, width in ref.tensors(model):
        yield offset, offset + rows * width
        offset += rows * width


def shard_tensors(model):
    """STATE-7: the numbers of each shard's tensors."""
    first = 0
    for count, _ in ref.shards(model):
        yield range(first, first + count)
        first += count


def block_tensors(model):
    """Blocks with the number of their tensor."""
    ends = [end for _, end in tensor_ranges(model)]
    return [(start, end, next(i for i, last in enumerate(ends) if end <= last)) for start, end in ref.layout(model)[0]]


def leaf(model, state, seed, number, windows):
    """GRID-2, GRID-6: grid integers of a leaf, and its loss."""
    loss, gradient = differentiate(model, state["parameters"], windows, seed, number)
    words, q = ref.dither(seed, number, 0, len(gradient)), []
    for exponent, (start, end) in zip(state["exponents"], tensor_ranges(model)):
        q += [ref.quantise(bits32(gradient[c]), exponent, words[c]) for c in range(start, end)]
    return ref.fixed_loss(bits64(loss)), q


def initial(manifest, key, windows, seed):
    """ARITH-49, GRID-3: the state before the first round; `seed` is that of ASSIGN-2."""
    model, grid_bits = manifest["model"], manifest["training"]["grid_bits"]
    parameters = draw(model, key)
    exponents = []
    if "Local" in manifest["exchange"]:
        exponents = [local_exponent(manifest) for _ in tensor_ranges(model)]
    else:
        gradient = differentiate(model, parameters, windows, seed, 0)[1]
        for start, end in tensor_ranges(model):
            rms = root(sum_of_squares(gradient[start:end]) / (end - start))
            exponents.append(ref.exponent_of(bits64(rms), grid_bits, -20))
    zeros = [0.0] * len(parameters)
    shards = [{"step": 0, "beta_powers": [1.0, 1.0]} for _ in ref.shards(model)]
    return {"shards": shards, "exponents": exponents, "parameters": parameters, "first": zeros, "second": list(zeros)}


# ---------------------------------------------------------------- updates

def learning_rate(optimiser, rounds, step):
    """ARITH-46: in f64."""
    rate, minimum, warmup = real(optimiser["rate"]), real(optimiser["minimum_rate"]), optimiser["warmup"]
    if step < warmup:
        return rate * (step + 1.0) / warmup
    length = max(rounds - 1 - warmup, 1)
    progress = min(step - warmup, length) / length
    if optimiser["schedule"] == "Constant":
        return rate
    if optimiser["schedule"] == "Linear":
        return rate + (minimum - rate) * progress
    return minimum + (rate - minimum) * 0.5 * (1.0 + sine_cosine(PI * progress)[1])


def scalars(optimiser, powers, unit, rate, decay):
    """ARITH-7: what a step does to every coefficient of a tensor, in f64, rounded to f32 once."""
    beta1, beta2 = real(optimiser["beta1"]), real(optimiser["beta2"])
    return {"unit": f32(unit), "beta1": beta1, "beta2": beta2, "first_share": f32(1.0 - beta1),
            "second_share": f32(1.0 - beta2), "rate": f32(quotient(rate, 1.0 - powers[0])),
            "second_scale": f32(quotient(1.0, root(1.0 - powers[1]))), "epsilon": real(optimiser["epsilon"]),
            "keep": f32(1.0 - rate * decay)}


def moments(value, first, second, s):
    """ARITH-7: the new moments of a coefficient, and the direction."""
    gradient = f32(value * s["unit"]) if finite(value) else 0.0
    m = fma(s["beta1"], first, f32(s["first_share"] * gradient))
    v = fma(s["beta2"], second, f32(s["second_share"] * f32(gradient * gradient)))
    return m, v, f32(quotient(m, fma(f32(root(v)), s["second_scale"], s["epsilon"])))


def adamw(value, parameter, first, second, s):
    """ARITH-7: parameter and moments of one coefficient."""
    m, v, direction = moments(value, first, second, s)
    return fma(-s["rate"], direction, f32(parameter * s["keep"])), m, v


def global_norm(blocks, squares, exponents):
    """ARITH-47: of a shard's present blocks; `squares` has None for the others."""
    units = [double(1023 + 2 * exponents[tensor] << 52) for _, _, tensor in blocks]
    return root(ref.ordered_sum(square * unit for square, unit in zip(squares, units) if square is not None))


def clip_factor(most, norm):
    """ARITH-47"""
    return most / norm if most > 0.0 and norm > most else 1.0


def apply(manifest, state, values, present):
    """ARITH-47, ARITH-48: the state after a round; `present` says which blocks have a value."""
    model, optimiser, training = manifest["model"], manifest["optimiser"], manifest["training"]
    blocks = block_tensors(model)
    squares = [sum_of_squares(values[start:end]) if there else None for (start, end, _), there in zip(blocks, present)]
    shards, steps, layerwise, rates = [], [], [], []
    for shard, tensors in zip(state["shards"], shard_tensors(model)):
        own = [(block, square) for block, square in zip(blocks, squares) if block[2] in tensors]
        clip = clip_factor(real(optimiser["clip_norm"]), global_norm(*zip(*own), state["exponents"]))
        powers = [power * real(optimiser[beta]) for power, beta in zip(shard["beta_powers"], ("beta1", "beta2"))]
        rate = learning_rate(optimiser, training["rounds"], shard["step"])
        for tensor in tensors:
            decay = real(optimiser["weight_decay"]) if ref.tensors(model)[tensor][1] > 1 else 0.0
            steps.append(scalars(optimiser, powers, 2.0**state["exponents"][tensor] * clip, rate, decay))
            layerwise.append((f32(quotient(1.0, 1.0 - powers[0])), f32(decay)))
            rates.append(rate)
        shards.append({"step": shard["step"] + 1, "beta_powers": powers})
    vectors = [list(state[name]) for name in ("parameters", "first", "second")]
    there = [block for block, there in zip(blocks, present) if there]
    if optimiser["method"] == "AdamW":
        for start, end, tensor in there:
            for c in range(start, end):
                for vector, new in zip(vectors, adamw(values[c], *(vector[c] for vector in vectors), steps[tensor])):
                    vector[c] = new
    else:
        of_tensor = lambda tensor, squares: f32(rates[tensor] * trust(ref.tensors(model)[tensor][1], *squares))
        lamb_blocks(there, values, vectors, steps, layerwise, of_tensor)
    after = {"shards": shards}
    after["parameters"], after["first"], after["second"] = vectors
    after["exponents"] = next_exponents(model, training["grid_bits"], blocks, squares, state["exponents"])
    return after


def direction(parameter, first, second, s, first_scale, decay):
    """ARITH-67: of a coefficient, from its new moments."""
    adam = f32(quotient(f32(first * first_scale), fma(f32(root(second)), s["second_scale"], s["epsilon"])))
    return fma(decay, parameter, adam)


def trust(rows, parameters, directions):
    """ARITH-67: of a tensor, in f64, from the sums of squares of its parameters and of its directions."""
    return root(parameters) / root(directions) if rows > 1 and parameters > 0.0 and directions > 0.0 else 1.0


def lamb_blocks(blocks, values, vectors, steps, layerwise, rates):
    """ARITH-67: LAMB's step in these blocks.

    `layerwise` holds c₁ and the decay of each tensor; `rates` makes a tensor's rate of its sums of squares.
    """
    parameters, first, second = vectors
    along, squares = {}, [[0.0, 0.0] for _ in steps]
    for start, end, tensor in blocks:
        for c in range(start, end):
            first[c], second[c], _ = moments(values[c], first[c], second[c], steps[tensor])
            along[c] = direction(parameters[c], first[c], second[c], steps[tensor], *layerwise[tensor])
        squares[tensor][0] += sum_of_squares(parameters[start:end])
        squares[tensor][1] += sum_of_squares([along[c] for c in range(start, end)])
    for start, end, tensor in blocks:
        rate = rates(tensor, squares[tensor])
        for c in range(start, end):
            parameters[c] = fma(-rate, along[c], parameters[c])


def next_exponents(model, grid_bits, blocks, squares, exponents):
    """ARITH-48, GRID-5"""
    result = []
    for tensor, ((start, end), exponent) in enumerate(zip(tensor_ranges(model), exponents)):
        own = [square for (_, _, owner), square in zip(blocks, squares) if owner == tensor]
        if None in own:
            result.append(exponent)
            continue
        rms = root(ref.ordered_sum(own) / (end - start)) * 2.0**exponent
        result.append(ref.step_exponent(exponent, ref.exponent_of(bits64(rms), grid_bits, exponent)))
    return result


# ---------------------------------------------------------------- local updates (local.md)

def number_of_moment(v):
    """LOCAL-5"""
    if not finite(v) or v <= 0.0:
        return 0
    return min(max((bits32(v) >> 21) - 271, 1), 255)


def moment_of_number(number):
    """LOCAL-5"""
    return single((number + 271 << 21) + (1 << 20)) if number > 0 else 0.0


def chain(manifest, state, seed, slot, segments):
    """LOCAL-1 to LOCAL-5, GRID-7: integers of both planes and loss of each segment; `segments` are their numbers and windows."""
    model, optimiser, of = manifest["model"], manifest["optimiser"], manifest["exchange"]["Local"]
    count, most = manifest["training"]["leaf_windows"], 2 ** (manifest["training"]["grid_bits"] + 5) - 1
    blocks, ranges = block_tensors(model), list(tensor_ranges(model))
    words = ref.dither(seed, slot, 0, len(state["parameters"]))
    parameters, first, second = list(state["parameters"]), [0.0] * len(words), list(state["second"])
    powers = [[0.0, shard["beta_powers"][1]] for shard in state["shards"]]
    before = [0] * (2 * len(words))
    for number, windows in segments:
        losses = []
        for j in range(of["segment"]):
            loss, g = differentiate(model, parameters, windows[j * count:(j + 1) * count], seed, number * of["segment"] + j)
            losses.append(ref.fixed_loss(bits64(loss)))
            squares = [sum_of_squares(g[start:end]) for start, end, _ in blocks]
            for i, (shard, tensors) in enumerate(zip(state["shards"], shard_tensors(model))):
                own = [(block, square) for block, square in zip(blocks, squares) if block[2] in tensors]
                clip = clip_factor(real(optimiser["clip_norm"]), global_norm(*zip(*own), [0] * len(ranges)))
                powers[i] = [power * real(optimiser[beta]) for power, beta in zip(powers[i], ("beta1", "beta2"))]
                rate = learning_rate(optimiser, manifest["training"]["rounds"], shard["step"])
                for tensor in tensors:
                    decay = real(optimiser["weight_decay"]) if ref.tensors(model)[tensor][1] > 1 else 0.0
                    s = scalars(optimiser, powers[i], clip, rate, decay)
                    for c in range(*ranges[tensor]):
                        parameters[c], first[c], second[c] = adamw(g[c], parameters[c], first[c], second[c], s)
        now = []
        for exponent, (start, end) in zip(state["exponents"], ranges):
            moved = (bits32(f32(state["parameters"][c] - parameters[c])) for c in range(start, end))
            now += [min(max(ref.quantise(bits, exponent, words[c]), -most), most) for c, bits in zip(range(start, end), moved)]
        now += [number_of_moment(v) - number_of_moment(old) for v, old in zip(second, state["second"])]
        yield sum(losses) // of["segment"], [a - b for a, b in zip(now, before)]
        before = now


def local_exponent(manifest):
    """LOCAL-12"""
    rate = learning_rate(manifest["optimiser"], manifest["training"]["rounds"], 0)
    return ref.exponent_of(bits64(rate * manifest["exchange"]["Local"]["steps"] * 0.25), manifest["training"]["grid_bits"], -20)


def apply_local(manifest, state, values, present):
    """LOCAL-10, LOCAL-11: `values` and `present` are of both planes."""
    model, of, training = manifest["model"], manifest["exchange"]["Local"], manifest["training"]
    eta, mu = real(of["outer_rate"]), real(of["outer_momentum"])
    blocks, d = block_tensors(model), len(state["parameters"])
    moved, renewed = present[:len(blocks)], present[len(blocks):]
    parameters, momentum, second = (list(state[name]) for name in ("parameters", "first", "second"))
    for (start, end, tensor), there in zip(blocks, moved):
        for c in range(start, end) if there else ():
            delta = f32(values[c] * f32(2.0**state["exponents"][tensor])) if finite(values[c]) else 0.0
            momentum[c] = fma(mu, momentum[c], delta)
            parameters[c] = fma(-eta, fma(mu, momentum[c], delta), parameters[c])
    for (start, end, _), there in zip(blocks, renewed):
        for c in range(start, end) if there else ():
            steps = int(values[d + c]) if finite(values[d + c]) else 0
            second[c] = moment_of_number(min(max(number_of_moment(second[c]) + steps, 0), 255))
    shards = []
    for shard, tensors in zip(state["shards"], shard_tensors(model)):
        one, two = shard["beta_powers"]
        if any(there and block[2] in tensors for block, there in zip(blocks, renewed)):
            for _ in range(of["steps"]):
                two *= real(manifest["optimiser"]["beta2"])
        shards.append({"step": shard["step"] + 1, "beta_powers": [one, two]})
    squares = [sum_of_squares(values[start:end]) if there else None for (start, end, _), there in zip(blocks, moved)]
    exponents = next_exponents(model, training["grid_bits"], blocks, squares, state["exponents"])
    return {"shards": shards, "exponents": exponents, "parameters": parameters, "first": momentum, "second": second}


def state_root(model, state):
    """STATE-1 to STATE-3"""
    vector = lambda name, start, end: ref.vector_root([bits32(value) for value in state[name][start:end]]).hex()
    roots, start = [], 0
    for shard, tensors, (_, count) in zip(state["shards"], shard_tensors(model), ref.shards(model)):
        exponents = [state["exponents"][tensor] for tensor in tensors]
        vectors = [vector(name, start, start + count) for name in ("parameters", "first", "second")]
        powers = map(bits64, shard["beta_powers"])
        roots.append([shard["step"], *powers, ref.exponents_hash(exponents).hex(), *vectors])
        start += count
    return ref.state_root(roots)
