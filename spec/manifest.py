"""Which manifests a run may have (manifest.md): each rule gives its id, the field that it is about, and whether it holds."""

import struct

from reference import U32, decoder_of, le, tensors, token_bytes, variant_of

MILLION = 10**6


def faults(m):
    """MANIFEST-1: the broken rules, each with the field that a refusal names."""
    rules = reserved(m) + model(m["model"]) + text(m["data"], m["model"]) + profile(m) + tolerance(m)
    rules += training(m["training"]) + optimiser(m["optimiser"]) + aggregation(m["aggregation"], m["training"]["grid_bits"])
    rules += audit(m["audit"], m["retention"], m["timers"], m["delay"]) + admission(m["admission"], m["audit"])
    rules += rollback(m["rollback"], m["retention"]) + coins(m) + branch(m) + held(m) + router(m) + local(m)
    return sorted({(rule, field) for rule, field, holds in rules if not holds})


def real(bits):
    return struct.unpack("<f", le(int(bits, 16), 4))[0]


def among(rule, section, values, **bounds):
    """That fields of a section lie between two numbers, both included."""
    return [(rule, f"{section}.{field}", least <= values[field] <= most) for field, (least, most) in bounds.items()]


def reserved(m):
    """MANIFEST-2"""
    most = int("Mixture" not in m["model"]["family"])
    return [("MANIFEST-2", "version", m["version"] == 1), ("MANIFEST-2", "delay", m["delay"] <= most),
            ("MANIFEST-2", "groups", m["groups"] == 0)]


def model(m):
    """MANIFEST-3"""
    (family, of), = m["family"].items()
    size = 1 << 20
    rules = among("MANIFEST-3", "model", m, vocabulary=(2, size), hidden=(2, size), width=(1, size), heads=(1, size),
                  layers=(1, 256), sequence=(1, 1 << 16))
    divided = m["heads"] >= 1 and (family == "Variant" or m["width"] % m["heads"] == 0)
    own = albert(m, of) if family == "Albert" else decoder(m, divided)
    bounds = mixture(of) if family == "Mixture" else variant(m, of) if family == "Variant" else []
    sized = divided and all(holds for _, _, holds in rules + bounds)
    rules += [("MANIFEST-3", "model.norm_epsilon", real(m["norm_epsilon"]) > 0),
              ("MANIFEST-3", "model.initial_scale", 0 < real(m["initial_scale"]) <= 16),
              ("MANIFEST-3", "model.heads", divided),
              ("MANIFEST-3", "model", not sized or coefficients(m) <= 1 << 33),
              ("MANIFEST-14", "experts.columns", family != "Mixture" or not sized or len(tensors(m)) <= 16_384)]
    return rules + own + bounds


def coefficients(m):
    """Of the trunk and of all rows."""
    size = lambda of: sum(rows * columns for _, rows, columns in of)
    experts = [t for t in tensors(m) if ".mlp.experts." in t[0] or t[0].endswith(".mlp.gate.weight")]
    return size(tensors(m)) + (m["family"].get("Mixture", {"rows": 1})["rows"] - 1) * size(experts)


def decoder(m, divided):
    """MANIFEST-4"""
    of = decoder_of(m)
    groups = of["key_value_heads"]
    return [("MANIFEST-4", "model.key_value_heads", groups >= 1 and m["heads"] % groups == 0),
            ("MANIFEST-4", "model.heads", not divided or bool(variant_of(m)) or m["width"] // m["heads"] % 2 == 0),
            ("MANIFEST-4", "model.rope_base", real(of["rope_base"]) >= 1)]


def variant(m, of):
    """MANIFEST-18"""
    width, scaling = of["head_width"], of["scaling"]
    plain = width * m["heads"] == m["width"] and of["projection"] == "Plain" and scaling is None
    even = 2 <= width <= 1 << 16 and width % 2 == 0 and width * m["heads"] <= 1 << 20
    rules = [("MANIFEST-18", "model.head_width", even and not plain)]
    if scaling is not None:
        low, high = real(scaling["low"]), real(scaling["high"])
        rules += [("MANIFEST-18", "model.rope_factor", real(scaling["factor"]) > 1), ("MANIFEST-18", "model.rope_low", low > 0),
                  ("MANIFEST-18", "model.rope_high", low <= 0 or low < high),
                  ("MANIFEST-18", "model.rope_original", scaling["original"] >= 1)]
    return rules


def mixture(of):
    """MANIFEST-14: where there is no expert, no number of them can be active, and only the first rule is named."""
    rules = among("MANIFEST-14", "experts", of, columns=(1, 256), shared_hidden=(2, 1 << 20), active=(1, max(of["columns"], 1)),
                  rows=(1, 64))
    return rules + [("MANIFEST-14", "experts.balance", real(of["balance"]) >= 0),
                    ("MANIFEST-14", "experts.trust", real(of["trust"]) >= 1)]


def branch(m):
    """MANIFEST-14"""
    of = m["model"]["family"].get("Mixture")
    return [("MANIFEST-14", "experts.branch", of["branch"] < m["training"]["rounds"] and (of["rows"] != 1 or of["branch"] == 0))] if of else []


def held(m):
    """MANIFEST-16"""
    of = m["model"]["family"].get("Mixture")
    kept = m["retention"]
    window = max(1, min(kept["contributions"], kept["states"] - 1 - m["delay"]))
    return [("MANIFEST-16", "experts.held", of["held"] == 0 or of["held"] < of["few"]),
            ("MANIFEST-16", "experts.lag", of["held"] == 0 or of["lag"] > window),
            ("MANIFEST-16", "experts.lag", of["lag"] <= kept["contributions"])] if of else []


def router(m):
    """MANIFEST-15: nothing is said of numbers that are no number of rows."""
    rows = m["model"]["family"].get("Mixture", {"rows": 1})["rows"]
    routed = (m["data"]["router"] or {"rows": 1})["rows"]
    return [("MANIFEST-15", "data.router", rows == routed)] if 1 <= rows <= 64 and (routed == 1 or 2 <= routed <= 64) else []


def albert(m, of):
    """MANIFEST-5"""
    return [("MANIFEST-5", "model.embedding", 1 <= of["embedding"] <= 1 << 20),
            ("MANIFEST-5", "model.masked", 1 <= of["masked_ppm"] <= MILLION),
            ("MANIFEST-5", "model.mask_token", of["mask_token"] < m["vocabulary"])]


def text(data, m):
    """MANIFEST-6, DATA-4, DATA-6, DATA-8"""
    (tokeniser, file), = data["tokeniser"].items()
    (start, given), = data["start"].items()
    kinds = 256 if tokeniser == "Bytes" else file["tokens"]
    size = token_bytes(None if tokeniser == "Bytes" else kinds)
    rules = among("MANIFEST-6", "data", data, bytes=(0, 1 << 40), held_out_bytes=(0, 1 << 40))
    rules += [("MANIFEST-6", f"data.{field}", data[field] % size == 0) for field in ("bytes", "held_out_bytes")]
    rules += [("MANIFEST-6", "data.tokeniser", 2 <= kinds <= 1 << 20),
              ("MANIFEST-6", "model.vocabulary", kinds <= m["vocabulary"] <= kinds + 1023),
              ("MANIFEST-6", "model.sequence", data["bytes"] // size > m["sequence"])]
    if tokeniser == "File":
        rules.append(("DATA-4", "data.tokeniser.bytes", 1 <= file["bytes"] <= 1 << 26))
    if start == "Given":
        rules.append(("DATA-6", "data.start.bytes", given["bytes"] == 4 * coefficients(m)))
    return rules + among("DATA-8", "data.router", data["router"] or {"rows": 2, "tokens": 1}, rows=(2, 64), tokens=(1, 4096))


def profile(m):
    """MANIFEST-14"""
    return [("MANIFEST-14", "profile", "Mixture" not in m["model"]["family"] or m["profile"] == "Exact")]


def tolerance(m):
    """TOL-5"""
    bounds, loss = [real(bits) for bits in m["tolerance"]["groups"]], real(m["tolerance"]["loss"])
    if m["profile"] == "Exact":
        return [("TOL-5", "tolerance.groups", not bounds), ("TOL-5", "tolerance.loss", loss == 0)]
    sound = lambda bound: 0 < bound <= 0.125
    return [("TOL-5", "tolerance.groups", bool(bounds) and all(map(sound, bounds))), ("TOL-5", "tolerance.loss", sound(loss))]


def training(t):
    """MANIFEST-7"""
    return among("MANIFEST-7", "training", t, rounds=(1, 1 << 24), leaves=(1, 1 << 16), leaf_windows=(1, 1024), grid_bits=(1, 14))


def local(m):
    """MANIFEST-17"""
    (_, of), = m["exchange"].items()
    if of is None:
        return []
    rate, momentum = real(of["outer_rate"]), real(of["outer_momentum"])
    segment = of["segment"] if 1 <= of["segment"] <= 1024 else None
    segments = of["steps"] // segment if segment and of["steps"] % segment == 0 else 0
    return [("MANIFEST-17", "local.segment", segment is not None),
            ("MANIFEST-17", "local.steps", segment is None or 1 <= segments <= 64),
            ("MANIFEST-17", "local.moments_every", 1 <= of["moments_every"] <= 1 << 16),
            ("MANIFEST-17", "local.outer_rate", 0 < rate <= 16),
            ("MANIFEST-17", "local.outer_momentum", 0 <= momentum < 1),
            ("MANIFEST-17", "profile", m["profile"] == "Exact"),
            ("MANIFEST-17", "optimiser.method", m["optimiser"]["method"] == "AdamW"),
            ("MANIFEST-17", "training.leaves", not 1 <= segments <= 64 or m["training"]["leaves"] == segments)]


def optimiser(o):
    """MANIFEST-8"""
    rules = [("MANIFEST-8", f"optimiser.{name}", 0 <= real(o[name]) < 1) for name in ("beta1", "beta2")]
    rules += [("MANIFEST-8", f"optimiser.{name}", real(o[name]) > 0) for name in ("epsilon", "rate")]
    return rules + [("MANIFEST-8", f"optimiser.{name}", real(o[name]) >= 0)
                    for name in ("minimum_rate", "weight_decay", "clip_norm")]


def aggregation(a, grid_bits):
    """MANIFEST-9"""
    return [("MANIFEST-9", "aggregation.radius", real(a["radius"]) > 0)] + among(
        "MANIFEST-9", "aggregation", a, iterations=(0, 64), cap_ppm=(1, MILLION), assumed_ppm=(0, MILLION // 2 - 1),
        replicas=(1, 2), result_bits=(0, grid_bits))


def audit(a, kept, timers, delay):
    """MANIFEST-10"""
    last = a["final_rounds"] <= kept["contributions"] and a["final_rounds"] < kept["states"] - delay
    rules = among("MANIFEST-10", "audit", a, share_ppm=(0, MILLION), recheck_ppm=(0, MILLION), blocks_ppm=(0, MILLION), leaves=(1, 32),
                  coin_lead=(1, U32))
    rules += among("MANIFEST-10", "retention", kept, states=(2 + delay, U32)) + [("MANIFEST-10", "audit.final_rounds", last)]
    return rules + [("MANIFEST-10", f"timers.{name}", wait > 0) for name, wait in timers.items()]


def admission(a, audits):
    """MANIFEST-11, STAND-7"""
    (mode, listed), = a["mode"].items()
    keys = [key for group in (listed or {}).values() for key in group]
    rules = among("MANIFEST-11", "admission", a, start_nodes=(1, U32), per_round=(1, U32), halving=(1, U32), most_members=(1, 4096),
                  probation=(0, 1 << 24), vouchers=(1, 16), depth=(0, 16), newcomer_ppm=(0, MILLION))
    audited = a["newcomer_ppm"] > 0 or audits["share_ppm"] > 0
    return rules + [
        ("MANIFEST-11", "admission.most_members", a["start_nodes"] + a["start_verifiers"] <= a["most_members"]),
        ("MANIFEST-11", "admission.vouchers", a["probation"] == 0 or a["vouchers"] >= 2),
        ("MANIFEST-11", "admission.probation", a["probation"] == 0 or audited),
        ("STAND-7", "admission.probation", mode != "Open" or a["probation"] > 0),
        ("MANIFEST-11", "admission.mode", len(set(keys)) == len(keys))]


def coins(m):
    """MANIFEST-13"""
    audited = [m["audit"][name] for name in ("share_ppm", "blocks_ppm", "final_rounds")]
    audited += [m["admission"][name] for name in ("newcomer_ppm", "start_verifiers")]
    times, kept = 2 if real(m["rollback"]["limit"]) > 0 else 1, max(m["retention"]["contributions"], 1) + 1
    enough = lambda rounds: (rounds * times + kept) * (1 + min(m["admission"]["most_members"], 256)) <= 1 << 22
    # Where not even one round has coins, the contributions are kept for too long.
    field = "training.rounds" if enough(1) else "retention.contributions"
    return [("MANIFEST-13", field, enough(m["training"]["rounds"]) or not any(audited))]


def rollback(r, kept):
    """MANIFEST-12"""
    limit, most = real(r["limit"]), r["most_rounds"]
    return [("MANIFEST-12", "rollback.limit", limit >= 0),
            ("MANIFEST-12", "rollback.most_rounds", limit <= 0 or 1 <= most <= min(kept["states"], kept["contributions"])),
            ("MANIFEST-12", "rollback.spacing", limit <= 0 or r["spacing"] > most)]
