"""The vectors of spec/vectors: what goes in. What comes out, reference.py computes.

A case has a name, the rule that it is about, an operation with its inputs, what is expected, and why it is there.
Bytes are hexadecimal, 64-bit words and bits of reals are "0x…" strings, so that no reader of JSON rounds them.
"""

import json
import pathlib
import random
import struct

import channel
import manifest as manifest_rules
import reference as ref
import ticket

VECTORS = pathlib.Path(__file__).parent / "vectors"
OPERATIONS = {}


def operation(function):
    OPERATIONS[function.__name__] = function
    return function


def case(name, rule, why, op, /, **inputs):
    return {"name": name, "rule": rule, "why": why, "op": op, "inputs": inputs}


def un(text):
    return bytes.fromhex(text)


def word(value):
    return f"0x{value:016x}"


def wide(text):
    return int(text, 16)


def fill(byte, size=32):
    return bytes([byte] * size).hex()


# ---------------------------------------------------------------- operations: inputs to expectation

@operation
def roundtrip(type, bytes):
    """Decodes, encodes the same bytes; cut short at n, the error names the field: [n, path] from each n on."""
    data, ends = un(bytes), []
    assert ref.write(type, ref.decode(type, data)) == data
    for n in range(len(data)):
        try:
            ref.decode(type, data[:n])
        except ref.Malformed as error:
            if not ends or ends[-1][1] != error.path:
                ends.append([n, error.path])
        else:
            raise AssertionError("a prefix decodes")
    return {"cut": ends}


@operation
def slots(members):
    return {"bytes": ref.bitmap(members).hex()}


@operation
def rows_of_set(members):
    return {"bytes": ref.le(sum(1 << row for row in members), 8).hex()}


@operation
def malformed(type, bytes):
    try:
        ref.decode(type, un(bytes))
    except ref.Malformed as error:
        return {"path": error.path}
    raise AssertionError(f"{type} accepts {bytes}")


@operation
def hash(domain, parts):
    digest = ref.tagged(domain, *map(un, parts))
    return {"digest": digest.hex(), "number": word(ref.number(digest))}


@operation
def hash_bulk(domain, bytes_mod_251):
    return {"digest": ref.bulk(domain, bytes(i % 251 for i in range(bytes_mod_251))).hex()}


@operation
def below(uniform, n):
    return {"value": word(ref.below(wide(uniform), wide(n)))}


@operation
def stream(key, first, count):
    words = ref.chacha8(un(key), first, count)
    return {"words": words, "u64": [word(ref.chacha8_u64(un(key), i)) for i in range(3)]}


@operation
def sign(type, secret, run, body):
    data = ref.envelope(un(secret), un(run), type, un(body))
    digest = ref.signed_digest(ref.TAGS[type], un(run), un(body))
    return {"tag": ref.TAGS[type], "signer": ref.public_key(un(secret)).hex(), "signed_digest": digest.hex(),
            "envelope": data.hex(), "envelope_digest": ref.envelope_digest(data, type).hex()}


@operation
def verify(type, run, envelope):
    try:
        return {"signer": ref.verify_envelope(un(envelope), un(run), type)}
    except ref.Malformed:
        return {"refused": "malformed"}
    except ref.Refused as refused:
        return {"refused": str(refused)}


@operation
def key(public):
    try:
        ref.strong_key(un(public))
    except ref.Refused:
        return {"strong": False}
    return {"strong": True}


@operation
def line(ticket_bytes):
    """The line of an encoded Ticket."""
    text = ticket.line(ref.decode("Ticket", un(ticket_bytes)))
    assert ref.write("Ticket", ticket.read(text)).hex() == ticket_bytes
    return {"line": text}


@operation
def read_line(line):
    try:
        return {"ticket": ref.write("Ticket", ticket.read(line)).hex()}
    except ref.Refused:
        return {"ticket": None}


def end_of(run, suite, end):
    return channel.End(suite, un(run), un(end["identity"]), un(end["static"]), un(end["seed"]), end["expiry"])


def secrets(end):
    return un(end["identity"]), un(end["static"]), un(end["seed"]), end["expiry"]


@operation
def handshake(suite, run, dialler, answerer, says):
    """The three messages; the ephemeral secrets behind them; what the ends (0 the dialler) then say, as it is on the stream."""
    one, messages = channel.agreed(suite, un(run), secrets(dialler), secrets(answerer))
    keys, numbers, streams = one.symmetric.derive(b""), [0, 0], []
    for end, said in says:
        frames = channel.frames(suite, keys[end], numbers[end], un(said))
        numbers[end] += len(frames)
        streams.append(b"".join(ref.le(len(frame), 2) + frame for frame in frames).hex())
    return {"ephemerals": [channel.ephemeral(un(end["seed"])).hex() for end in (dialler, answerer)],
            "messages": [message.hex() for message in messages], "streams": streams}


@operation
def long_message(suite, run, dialler, answerer, bytes_mod_251):
    """The lengths of the frames of the dialler's first message, and the hash (domain `file`) of all their bytes."""
    one, _ = channel.agreed(suite, un(run), secrets(dialler), secrets(answerer))
    frames = channel.frames(suite, one.symmetric.derive(b"")[0], 0, bytes(i % 251 for i in range(bytes_mod_251)))
    return {"lengths": [len(frame) for frame in frames], "digest": ref.tagged("file", b"".join(frames)).hex()}


@operation
def answer_first(suite, run, answerer, first):
    """Whether an answerer goes on after this message 1; `suite` is what the answerer takes it for."""
    try:
        end_of(run, suite, answerer).second(un(first))
    except channel.Failed:
        return {"good": False}
    return {"good": True}


@operation
def dial(suite, run, dialler, second, now, expected):
    """Whom a dialler has found at the other end by message 2."""
    end = end_of(run, suite, dialler)
    end.first()
    try:
        end.third(un(second), now, expected)
    except channel.Failed:
        return {"peer": None}
    return {"peer": end.peer}


@operation
def accept(suite, run, answerer, first, third, now):
    """Whom an answerer has found at the other end by message 3."""
    end = end_of(run, suite, answerer)
    end.second(un(first))
    try:
        end.last(un(third), now)
    except channel.Failed:
        return {"peer": None}
    return {"peer": end.peer}


@operation
def open_frames(suite, run, dialler, answerer, frames):
    """What the answerer reads in the dialler's frames: messages, None amid one, False from the first error on."""
    one, _ = channel.agreed(suite, un(run), secrets(dialler), secrets(answerer))
    return {"read": channel.messages(suite, one.symmetric.derive(b"")[0], [un(frame) for frame in frames])}


def numbered_leaves(count):
    return [ref.merkle_leaf(i, bytes([i] * (i + 1))) for i in range(count)]


@operation
def tree(count):
    """Leaf i holds i + 1 bytes of value i."""
    leaves = numbered_leaves(count)
    proofs = [[s.hex() for s in ref.merkle_prove(leaves, i)] for i in range(count)]
    return {"leaves": [leaf.hex() for leaf in leaves], "root": ref.merkle_root(leaves).hex(), "proofs": proofs}


@operation
def proof(root, count, index, leaf, siblings):
    try:
        ref.merkle_verify(un(root), count, index, un(leaf), map(un, siblings))
    except ref.Refused:
        return {"accepted": False}
    return {"accepted": True}


@operation
def dataset(manifest, bytes_mod_251, sequence, numbers=None):
    """`manifest` with this size and sequence, and a tokeniser that knows so many numbers; its other fields do not matter."""
    data = bytes(i % 251 for i in range(bytes_mod_251))
    size = ref.token_bytes(numbers)
    count = ref.window_count(len(data) // size, sequence)
    found = {"root": ref.data_root(data).hex(), "windows": count, "last_window": [(count - 1) * sequence, count * sequence]}
    return found if numbers is None else {**found, "token_bytes": size, "last_tokens": ref.window(data, numbers, count - 1, sequence)}


@operation
def router(table, before, closed):
    """A row of the table is [[[bucket, entry], …], entry of all other buckets, bias]."""
    def row(some, others, bias):
        entries = dict(some)
        return [entries.get(bucket, others) for bucket in range(256)], bias

    table = [row(*numbers) for numbers in table]
    scores = ref.router_scores(table, before)
    ranked = ref.ranked_rows(scores)
    open_rows = [row for row in ranked if row not in closed]
    return {"digest": ref.tagged("router", ref.router_file(table)).hex(), "scores": scores, "ranked": ranked,
            "row": open_rows[0] if open_rows else None}


@operation
def manifest(bytes):
    ref.decode("Manifest", un(bytes))
    return {"run": ref.tagged("run", un(bytes)).hex()}


@operation
def permitted(bytes):
    """Whether there may be a run of this manifest; else the field that a refusal names: one rule is broken at most."""
    faults = manifest_rules.faults(ref.decode("Manifest", un(bytes)))
    assert len(faults) <= 1, faults
    return {"refused": faults[0][1] if faults else None}


@operation
def record(bytes):
    ref.decode("Record", un(bytes))
    return {"head": ref.tagged("ledger", un(bytes)).hex()}


@operation
def evidence(bytes):
    ref.decode("Evidence", un(bytes))
    return {"name": ref.tagged("evidence", un(bytes)).hex()}


@operation
def layout(model):
    shape = ref.decode("Model", un(model))
    blocks, chunks = ref.layout(shape)
    return {"shards": ref.shards(shape), "tensors": ref.tensors(shape), "blocks": blocks, "chunks": chunks}


@operation
def block_places(model, blocks):
    """The shard of each block and its place in a path, or null where there is none; first block and number of each shard's."""
    shape = ref.decode("Model", un(model))
    found = [ref.block_place(shape, block) for block in blocks]
    numbers = [list(ref.blocks_of(shape, shard)) for shard in range(len(ref.shards(shape)) - 1 + ref.rows_of(shape))]
    return {"places": [place and list(place) for place in found], "shards": [[own[0], len(own)] for own in numbers]}


@operation
def contribution_layout(model, blocks):
    """Of a run of local updates: all blocks and chunks of a path; the shard of each of these blocks and its place, or null."""
    shape = ref.decode("Model", un(model))
    ranges, chunks = ref.contribution_layout(shape)
    places = [ref.contribution_place(shape, block) for block in blocks]
    return {"blocks": ranges, "chunks": chunks, "places": [place and list(place) for place in places]}


@operation
def rows_after(model, updates):
    return {"rows": [ref.rows_after(ref.decode("Model", un(model)), count) for count in updates]}


@operation
def state(step, beta_powers, exponents, vectors):
    """`vectors` are parameters, first and second moments: [length, f32 bits of value 0, added for each next one]."""
    roots = shard_roots(step, beta_powers, exponents, vectors)
    return {"exponents": roots[3], "vectors": roots[4:], "root": ref.state_root([roots]).hex()}


def shard_roots(step, beta_powers, exponents, vectors):
    expand = lambda count, first, stride: [first + i * stride for i in range(count)]
    hashed = [ref.vector_root(expand(*vector)).hex() for vector in vectors]
    return [step, *map(wide, beta_powers), ref.exponents_hash(exponents).hex(), *hashed]


@operation
def shards_state(shards):
    """Of shards in the shape of `state`: their roots as they are sealed, and the root of the state."""
    roots = [shard_roots(*shard) for shard in shards]
    return {"sealed": ref.write("StateRoots", {"shards": roots}).hex(), "root": ref.state_root(roots).hex()}


@operation
def branched(shards, rows):
    """The same when the row, which is the second shard, has become several."""
    roots = ref.branched([shard_roots(*shard) for shard in shards], rows)
    return {"sealed": ref.write("StateRoots", {"shards": roots}).hex(), "root": ref.state_root(roots).hex()}


@operation
def contribution(model, multiplier):
    """Q[c] = (c·multiplier mod 8191) − 4095."""
    shape = ref.decode("Model", un(model))
    size = ref.layout(shape)[0][-1][1]
    return {"root": ref.commitment_root(shape, [c * multiplier % 8191 - 4095 for c in range(size)]).hex()}


@operation
def chunk(bytes, count):
    """`values` is null where the bytes are refused."""
    return {"values": ref.unpack(un(bytes), count)}


@operation
def seed(run, round, state):
    return {"seed": ref.round_seed(un(run), round, un(state)).hex()}


@operation
def calibration(run):
    """ASSIGN-2"""
    return {"seed": ref.round_seed(un(run), 2**32 - 1, bytes(32)).hex()}


@operation
def windows(seed, slot, seats, position, count, windows):
    leaf = slot + seats * position
    return {"leaf": leaf, "windows": ref.windows(un(seed), leaf, count, windows)}


@operation
def windows_of_segment(manifest, seed, segment):
    of = ref.decode("Manifest", un(manifest))
    steps, count = of["exchange"]["Local"]["segment"], of["training"]["leaf_windows"]
    windows = (of["data"]["bytes"] - 1) // of["model"]["sequence"]
    return {"windows": ref.segment_windows(un(seed), segment, steps, count, windows)}


@operation
def windows_of_row(seed, leaf, count, windows, rows, row, share):
    """Window w is of row ⌊w/`share`⌋ mod `rows`; of none where `share` is 0."""
    row_of = lambda window: window // share % rows if share else None
    return {"windows": ref.windows_of_row(un(seed), leaf, count, windows, rows, row, row_of)}


@operation
def masked(model, seed, leaf, window):
    """The tokens of the window are 0, 1, 2, … modulo 6."""
    shape = ref.decode("Model", un(model))
    tokens = [i % 6 for i in range(shape["sequence"] + 1)]
    inputs, places = ref.masked(shape, un(seed), leaf, window, tokens)
    return {"inputs": inputs, "places": places}


@operation
def parts(model, seed, aggregators, rows=None, planes=1, classes=None):
    """`rows`, if there, are those of the slots, on a state with several; `planes`, how many are exchanged; `classes`, if there, are
    the share classes of the slots, which otherwise are equal."""
    return {"parts": ref.parts(ref.decode("Model", un(model)), un(seed), aggregators, rows, planes, classes)}


@operation
def seconds(model, seed, aggregators, rows=None):
    return {"seconds": ref.seconds(ref.decode("Model", un(model)), un(seed), aggregators, rows)}


@operation
def reassign(model, seed, part, shard, failed, aggregators, rows=None, passed=()):
    """The model does not matter, but for whether there are rows; `passed` are those that were passed over."""
    return {"order": ref.reassignment(un(seed), part, shard, failed, aggregators, rows, passed)}


@operation
def timed_classes(times):
    """Each of `times` is a class and milliseconds."""
    return {"classes": ref.timed_classes(times)}


@operation
def dealt(head, nodes, rows):
    """The row of each node."""
    return {"rows": ref.dealt(un(head), [un(node) for node in nodes], rows)}


@operation
def drawn_rows(head, nodes, held, rows):
    """`held` has null for a node without a row; nodes are in order of admission."""
    return {"rows": ref.drawn_rows(un(head), [un(node) for node in nodes], held, rows)}


@operation
def moved_holder(head, holders, rows, few):
    """A holder is [member, row, whether it may have a seat there now]; `moved` is null where nobody moves."""
    return {"moved": ref.moved_holder(un(head), [(un(member), row, seatable) for member, row, seatable in holders], rows, few)}


@operation
def row_plan(few, held, round, rows):
    """A row is {seated, weighted, ripe}; `ripe` is the oldest round of which a ripe update waits, or null."""
    return ref.row_plan(few, held, round, rows)


@operation
def quantise(gradient, exponent, word):
    return {"q": ref.quantise(wide(gradient), exponent, wide(word))}


@operation
def dither(seed, leaf, first, count):
    return {"words": ref.dither(un(seed), leaf, first, count)}


@operation
def exponent(rms, grid_bits, fallback, last):
    wanted = ref.exponent_of(wide(rms), grid_bits, fallback)
    return {"wanted": wanted, "next": ref.step_exponent(last, wanted)}


@operation
def loss(mean):
    return {"fixed": ref.fixed_loss(wide(mean))}


@operation
def points(freeze):
    return {"points": list(map(word, ref.points(un(freeze))))}


@operation
def fingerprint(points, offset, q):
    return {"fingerprint": list(map(word, ref.fingerprint(list(map(wide, points)), q, offset)))}


@operation
def groups(model):
    return {"groups": ref.groups(ref.decode("Model", un(model)))}


@operation
def deviation(seed, groups, own, said):
    """Projections of the first vector, and how far the second one is from it."""
    found = ref.deviation(un(seed), groups, own, said)
    bits = lambda value: word(int.from_bytes(struct.pack("<d", value), "little"))
    return {"projections": ref.projections(un(seed), groups, own), "deviations": [bits(value) for value in found]}


@operation
def fingerprint_rule(points, count, multiplier, shift):
    """q[c] = (c·multiplier mod 2³²) − shift."""
    q = [c * multiplier % 2**32 - shift for c in range(count)]
    return {"fingerprint": list(map(word, ref.fingerprint(list(map(wide, points)), q)))}


def terms_and_opening(secret, first_round, rounds, leaf_coins, kind, round, k):
    leaves = ref.coin_leaves(un(secret), first_round, rounds, leaf_coins)
    terms = {"root": ref.merkle_root(leaves).hex(), "first_round": first_round, "rounds": rounds, "leaf_coins": leaf_coins}
    place = ref.coin_place(terms, kind, round, k)
    opening = {"kind": kind, "round": round, "k": k, "coin": ref.coin(un(secret), kind, round, k).hex(),
               "proof": {"siblings": [s.hex() for s in ref.merkle_prove(leaves, place)]}}
    return terms, opening


@operation
def coin(secret, first_round, rounds, leaf_coins, kind, round, k):
    terms, opening = terms_and_opening(secret, first_round, rounds, leaf_coins, kind, round, k)
    return {"coin": opening["coin"], "terms": ref.write("CoinTerms", terms).hex(),
            "opening": ref.write("CoinOpening", opening).hex()}


@operation
def open_coin(terms, opening):
    try:
        ref.verify_coin(ref.decode("CoinTerms", un(terms)), ref.decode("CoinOpening", un(opening)))
    except ref.Refused:
        return {"accepted": False}
    return {"accepted": True}


@operation
def select_block(terms, opening, freeze, blocks, blocks_ppm):
    value = un(ref.decode("CoinOpening", un(opening))["coin"])
    return {"selected": [ref.selects_block(value, un(freeze), block, blocks_ppm) for block in blocks]}


@operation
def block_inspector(outcome, blocks, verifiers):
    return {"places": [ref.block_inspector(un(outcome), block, verifiers) for block in blocks]}


@operation
def select(terms, opening, freeze, members, share_ppm):
    value = un(ref.decode("CoinOpening", un(opening))["coin"])
    return {"selected": [ref.selects(value, un(freeze), un(member), share_ppm) for member in members]}


@operation
def draw(terms, opening, freeze, table, m, a):
    value = un(ref.decode("CoinOpening", un(opening))["coin"])
    return {"positions": ref.draw(value, un(freeze), un(table), m, a)}


@operation
def jury(outcome, culprit, accuser, verifiers):
    """The places of the jurors."""
    return {"jury": ref.jury(un(outcome), un(culprit), un(accuser), [un(verifier) for verifier in verifiers])}


@operation
def inspector(outcome, slot, verifiers):
    """The place of the one drawn."""
    return {"inspector": ref.inspector(un(outcome), slot, [un(verifier) for verifier in verifiers])}


@operation
def recheck(terms, opening, verdicts, recheck_ppm, others):
    value = un(ref.decode("CoinOpening", un(opening))["coin"])
    return {"drawn": [ref.rechecks(value, un(verdict), recheck_ppm, others) for verdict in verdicts]}


@operation
def table(salt, rows):
    return {"seal": ref.tagged("table", un(salt), un(rows)).hex()}


@operation
def results(salt, results):
    return {"seal": ref.tagged("results", un(salt), un(results)).hex()}


@operation
def units(logits):
    """The integers of f32 bits, and their digest."""
    found = [ref.logit_units(int(bits, 16)) for bits in logits]
    return {"units": found, "digest": ref.logits_digest(found).hex()}


@operation
def askable(manifest, ask):
    return {"askable": ref.askable(ref.decode("Manifest", un(manifest)), ref.decode("Ask", un(ask)))}


@operation
def answer_fits(manifest, evidence):
    """Whether there is something to judge."""
    run = ref.tagged("run", un(manifest))
    call = ref.decode("Evidence", un(evidence))["Answer"]
    return {"fits": ref.answer_fits(ref.decode("Manifest", un(manifest)), run, call)}


@operation
def effective(probation, vouchers, credits, m):
    return {"vouched": ref.vouched(probation, vouchers, credits),
            "weights": [ref.effective(probation, vouchers, credits, leaves) for leaves in m]}


@operation
def audit_ppm(share_ppm, newcomer_ppm, halving, credits):
    return {"ppm": [ref.audit_ppm(share_ppm, newcomer_ppm, halving, credit) for credit in credits]}


@operation
def voucher_banned(probation, accused, credit, opened, doubt):
    credit, doubt = ref.voucher_banned(probation, accused, credit, opened, doubt)
    return {"credit": credit, "doubt": doubt}


@operation
def weights(m, cap_ppm):
    return {"weights": ref.weights(m, cap_ppm)}


@operation
def block(rule, radius, iterations, m, weights, q, assumed_ppm, mixing):
    values, factors = ref.aggregate(rule, q, m, weights, wide(radius), iterations, assumed_ppm, mixing)
    bits = lambda f: word(int.from_bytes(ref.struct.pack("<d", f), "little"))
    return {"values": [f"0x{v:08x}" for v in values], "factors": list(map(bits, factors))}


@operation
def objects(q, m, values, exponent, scale=None):
    """`scale`, if there, is M of LOCAL-6."""
    return {"objects": ref.objects(q, m, [wide(v) for v in values], exponent, 1.0 if scale is None else ref.f64(wide(scale)))}


@operation
def segments_taken(m, weights):
    bits = struct.unpack("<Q", struct.pack("<d", ref.scale(m, weights)))[0]
    return {"scale": word(bits)}


@operation
def trust(values, most, grid_bits):
    return {"values": [f"0x{v:08x}" for v in ref.trust([wide(v) for v in values], ref.f32(wide(most)), grid_bits)]}


@operation
def rounded(values, exponent, freeze, block):
    return {"values": [f"0x{v:08x}" for v in ref.rounded([wide(v) for v in values], exponent, un(freeze), block)]}


@operation
def values_of(bytes, exponent, count):
    values = ref.values_of(un(bytes), exponent, count)
    return {"values": values and [f"0x{v:08x}" for v in values]}


@operation
def part(blocks):
    return {"digest": ref.part_digest([[wide(v) for v in block] for block in blocks]).hex()}


# ---------------------------------------------------------------- samples of every type

class Sampler:
    """Values whose bytes differ from field to field, so that two exchanged fields show."""

    def __init__(self):
        self.next = 0

    def byte(self):
        self.next = self.next % 120 + 1
        return self.next

    def value(self, kind, variant=None):
        if isinstance(kind, str) and kind in ref.STRUCTS:
            return {name: self.value(item) for name, item in ref.STRUCTS[kind].items()}
        if isinstance(kind, str):
            name = variant or list(ref.ENUMS[kind])[0]
            payload = ref.ENUMS[kind][name]
            return {name: None if payload is None else self.value(payload)}
        form, *rest = kind
        if form in ("int", "signed"):
            return self.byte() * 256 ** (rest[0] - 1) + self.byte() if rest[0] > 1 else self.byte()
        if form == "raw":
            return bytes([self.byte()] * rest[0]).hex()
        if form == "bytes":
            return bytes([self.byte(), self.byte(), self.byte()]).hex()
        if form == "pair":
            return [self.value(item) for item in rest]
        if form == "text":
            return f"é{self.byte()}"
        if form == "real":
            return f"{0x3f000000 + self.byte():08x}"
        if form == "list":
            return [self.value(rest[0]), self.value(rest[0])]
        if form == "bool":
            return True
        if form == "option":
            return self.value(rest[0])
        if form == "choice":
            return rest[-1]
        name, payload = rest[-1]
        return name if payload is None else {name: self.value(payload)}


def sample(kind, variant=None, **change):
    value = Sampler().value(kind, variant)
    value.update(change)
    return ref.write(kind, value).hex()


DECODER = dict(key_value_heads=2, tied=True, rope_base="461c4000")
SMALL = dict(vocabulary=7, width=8, layers=2, heads=4, hidden=12, sequence=16, norm_epsilon="3727c5ac",
             initial_scale="3ca3d70a", family=dict(Decoder=DECODER))
SMALL_MODEL = ref.write("Model", SMALL).hex()
VARIANT = dict(decoder=DECODER, head_width=6, projection="Biased", scaling=None)
VARIANT_MODEL = ref.write("Model", {**SMALL, "width": 10, "layers": 1, "family": dict(Variant=VARIANT)}).hex()
NORMED_MODEL = ref.write("Model", {**SMALL, "width": 10, "layers": 1, "family": dict(Variant={**VARIANT, "projection": "Normed"})}).hex()
UNTIED_MODEL = ref.write("Model", {**SMALL, "layers": 1, "family": dict(Decoder={**DECODER, "tied": False})}).hex()
ALBERT = {**SMALL, "family": dict(Albert=dict(embedding=4, masked_ppm=300_000, mask_token=6))}
ALBERT_MODEL = ref.write("Model", ALBERT).hex()
MIXTURE = dict(decoder=DECODER, columns=3, active=2, shared_hidden=10, balance="3c23d70a", trust="40800000", rows=1, branch=0, few=0, held=0, lag=0)
MIXED_MODEL = ref.write("Model", {**SMALL, "family": dict(Mixture=MIXTURE)}).hex()
MIXED_UNTIED = dict(Mixture={**MIXTURE, "decoder": {**DECODER, "tied": False}, "columns": 1, "active": 1})
# Three rows, of which each is of another size than the trunk.
ROWS = {**SMALL, "layers": 1, "family": dict(Mixture={**MIXTURE, "rows": 3})}
ROWS_MODEL = ref.write("Model", ROWS).hex()
BLOCKY = {**SMALL, "vocabulary": 1100, "width": 64, "hidden": 260, "layers": 1}
BLOCKY_MODEL = ref.write("Model", BLOCKY).hex()
BLOCKY_MIXED = ref.write("Model", {**BLOCKY, "family": dict(Mixture={**MIXTURE, "shared_hidden": 1030})}).hex()
BLOCKY_ROWS = ref.write("Model", {**BLOCKY, "family": dict(Mixture={**MIXTURE, "shared_hidden": 1030, "rows": 2})}).hex()
RUN = fill(0x11)

def bits(value):
    return f"{struct.unpack('<I', struct.pack('<f', value))[0]:08x}"


# A manifest that keeps every rule: near its limits where that is cheap.
SOUND = dict(
    version=1, name="sound", organiser=fill(1), steward=fill(2), nonce=fill(3, 16),
    model=dict(vocabulary=256, width=64, layers=2, heads=4, hidden=96, sequence=32, norm_epsilon=bits(1e-5),
               initial_scale=bits(16.0), family=dict(Decoder=dict(key_value_heads=2, tied=True, rope_base=bits(1.0)))),
    profile="Exact", tolerance=dict(groups=[], loss=bits(0.0)),
    data=dict(root=fill(4), bytes=10_000, held_out_root=fill(5), held_out_bytes=1000, tokeniser=dict(Bytes=None),
              start=dict(Drawn=None), router=None),
    training=dict(rounds=349_520, leaves=1 << 16, leaf_windows=1024, grid_bits=14, recompute=False),
    optimiser=dict(method="AdamW", rate=bits(0.01), minimum_rate=bits(0.0), warmup=2, schedule="Cosine", beta1=bits(0.0),
                   beta2=bits(0.99), epsilon=bits(1e-8), weight_decay=bits(0.0), clip_norm=bits(0.0)),
    aggregation=dict(rule="CenteredClip", radius=bits(1.25), iterations=64, cap_ppm=10**6, assumed_ppm=499_999, mixing=False,
                     replicas=2, result_bits=4),
    audit=dict(share_ppm=10**6, leaves=32, coin_lead=1, final_rounds=7, recheck_ppm=10**6, blocks_ppm=10**6),
    admission=dict(start_nodes=3, start_verifiers=2, most_members=5, mode=dict(Invited=None), per_round=1, probation=1 << 24,
                   vouchers=16, member_invites=0, depth=16, newcomer_ppm=10**6, halving=1),
    timers=dict(commit=1, part=1, result=1, audit=1, final_audit=1), retention=dict(contributions=8, states=8),
    rollback=dict(limit=bits(0.5), most_rounds=8, spacing=9), delay=0, exchange=dict(Gradients=None), groups=0)


def changed_manifest(changes):
    """The sound manifest with other values at these paths."""
    manifest = json.loads(json.dumps(SOUND))
    for path, value in changes.items():
        *outer, last = path.split(".")
        section = manifest
        for name in outer:
            section = section[name]
        section[last] = value
    return manifest


# What no verifier has anything to do in.
UNAUDITED = {"audit.share_ppm": 0, "audit.blocks_ppm": 0, "audit.final_rounds": 0, "admission.start_verifiers": 0,
             "admission.newcomer_ppm": 0, "admission.probation": 0}


def masked(**change):
    return dict(Albert={**dict(embedding=8, masked_ppm=10**6, mask_token=255), **change})


def mixed(decoder={}, **change):
    decoder = {**dict(key_value_heads=2, tied=True, rope_base=bits(1.0)), **decoder}
    return dict(Mixture={**dict(decoder=decoder, columns=256, active=256, shared_hidden=1 << 20, balance=bits(0.0), trust=bits(1.0),
                          rows=1, branch=0, few=5, held=2, lag=8), **change})


def various(decoder={}, scaling=None, **change):
    decoder = {**dict(key_value_heads=2, tied=True, rope_base=bits(1.0)), **decoder}
    scaling = scaling and {**dict(factor=bits(8.0), low=bits(1.0), high=bits(4.0), original=8192), **scaling}
    return dict(Variant={**dict(decoder=decoder, head_width=16, projection="Plain", scaling=scaling), **change})


def numbered(bytes=1, tokens=256):
    return dict(File=dict(digest=fill(6), bytes=bytes, tokens=tokens))


def routed(rows=5, tokens=64):
    return dict(rows=rows, tokens=tokens, digest=fill(7))


def listing(*founders):
    return dict(Listed=dict(founders=list(founders), nodes=[fill(8)], verifiers=[]))


def locally(leaves=4, **change):
    local = {**dict(steps=16, segment=4, moments_every=3, outer_rate=bits(0.75), outer_momentum=bits(0.5)), **change}
    return {"exchange": dict(Local=local), "training.leaves": leaves}


PERMITTED = [
    ("sound, at its limits", "MANIFEST-1", "a run is refused that others train", {}),
    ("sound, masked", "MANIFEST-5", "", {"model.family": masked()}),
    ("sound, masked with an odd width of heads", "MANIFEST-5", "nothing is turned in pairs", {"model.family": masked(), "model.width": 36}),
    ("sound, a mixture", "MANIFEST-14", "", {"model.family": mixed()}),
    ("sound, a mixture of one expert", "MANIFEST-14", "",
     {"model.family": mixed(columns=1, active=1, shared_hidden=2, balance="7f7fffff")}),
    ("sound, a mixture of 16,383 tensors", "MANIFEST-14", "",
     {"model.family": mixed(dict(tied=False), columns=148, active=1, shared_hidden=2), "model.layers": 36}),
    ("sound, scaled positions", "MANIFEST-18", "", {"model.family": various(scaling=dict(factor=bits(1.0 + 2.0**-23), original=1))}),
    ("sound, biases", "MANIFEST-18", "", {"model.family": various(projection="Biased")}),
    ("sound, norms of queries and keys", "MANIFEST-18", "", {"model.family": various(projection="Normed")}),
    ("sound, narrow heads", "MANIFEST-18", "", {"model.family": various(head_width=2)}),
    ("sound, wide heads of a width that they do not divide", "MANIFEST-18", "",
     {"model.family": various(dict(key_value_heads=1), head_width=1 << 16), "model.width": 3, "model.heads": 16}),
    ("sound, nothing is held", "MANIFEST-16", "", {"model.family": mixed(few=0, held=0, lag=0)}),
    ("sound, nothing is held, but may wait", "MANIFEST-16", "", {"model.family": mixed(few=0, held=0)}),
    ("sound, two rows that come late", "MANIFEST-14", "", {"model.family": mixed(rows=2, branch=349_519), "data.router": routed(2)}),
    ("sound, as many rows as there may be", "MANIFEST-14", "", {"model.family": mixed(rows=64), "data.router": routed(64)}),
    ("sound, tokens of a file", "MANIFEST-6", "the vocabulary may be padded", {"data.tokeniser": numbered(), "model.vocabulary": 1279}),
    ("sound, the least router", "DATA-8", "", {"data.router": routed(2, 1), "model.family": mixed(rows=2)}),
    ("sound, the greatest router", "DATA-8", "", {"data.router": routed(64, 4096), "model.family": mixed(rows=64)}),
    ("sound, local updates", "MANIFEST-17", "", locally()),
    ("sound, local updates at their limits", "MANIFEST-17", "",
     locally(steps=65_536, segment=1024, moments_every=1 << 16, outer_rate=bits(16.0), outer_momentum=bits(0.0), leaves=64)),
    ("sound, a delay", "MANIFEST-2", "", {"delay": 1, "audit.final_rounds": 4}),
    ("sound, one step", "MANIFEST-17", "", locally(steps=1, segment=1, moments_every=1, leaves=1)),
    ("sound, with tolerance", "TOL-5", "", {"profile": "F32", "tolerance": dict(groups=[bits(0.125)], loss=bits(0.125))}),
    ("sound, one window", "MANIFEST-6", "", {"data.bytes": 33}),
    ("sound, listed", "MANIFEST-11", "", {"admission.mode": listing(fill(7))}),
    ("sound, never going back", "MANIFEST-12", "what is off has no bounds", {"rollback": dict(limit=bits(0.0), most_rounds=0, spacing=0)}),
]
PERMITTED.append(("sound, as many rounds as there may be", "MANIFEST-13", "who audits nothing needs no coins",
                  {**UNAUDITED, "training.rounds": 1 << 24}))
REFUSED = [
    ("another version", "MANIFEST-2", "rules that nobody here knows", {"version": 2}),
    ("a long delay", "MANIFEST-2", "", {"delay": 2, "audit.final_rounds": 4}),
    ("a delay of a mixture", "MANIFEST-2", "exponents of several shards", {"delay": 1, "audit.final_rounds": 4, "model.family": mixed()}),
    ("groups", "MANIFEST-2", "reserved", {"groups": 1}),
    ("no segment", "MANIFEST-17", "division by zero", locally(segment=0)),
    ("a long segment", "MANIFEST-17", "an audit that takes as long as a round", locally(steps=2050, segment=1025, leaves=2)),
    ("no step", "MANIFEST-17", "", locally(steps=0, leaves=1)),
    ("steps of half a segment", "MANIFEST-17", "steps that nobody recomputes", locally(steps=14)),
    ("many segments", "MANIFEST-17", "long tables", locally(steps=260, leaves=65)),
    ("moments that are never renewed", "MANIFEST-17", "division by zero", locally(moments_every=0)),
    ("no outer rate", "MANIFEST-17", "", locally(outer_rate=bits(0.0))),
    ("a great outer rate", "MANIFEST-17", "", locally(outer_rate=bits(16.5))),
    ("outer momentum of one", "MANIFEST-17", "a state that never stops", locally(outer_momentum=bits(1.0))),
    ("local steps with a tolerance", "MANIFEST-17", "roundings that grow over a chain",
     {**locally(), "profile": "F32", "tolerance": dict(groups=[bits(0.125)], loss=bits(0.125))}),
    ("local steps of LAMB", "MANIFEST-17", "", {**locally(), "optimiser.method": "Lamb"}),
    ("leaves that are no segments", "MANIFEST-17", "two names of one run", locally(leaves=5)),
    ("a vocabulary beyond", "MANIFEST-3", "sizes that overflow",
     {"model.vocabulary": (1 << 20) + 1, "data.tokeniser": numbered(tokens=1 << 20)}),
    ("too wide", "MANIFEST-3", "sizes that overflow", {"model.width": (1 << 20) + 8, "model.layers": 1, "model.hidden": 2, "model.family": masked(embedding=1)}),
    ("no layer", "MANIFEST-3", "", {"model.layers": 0}),
    ("too many layers", "MANIFEST-3", "", {"model.layers": 257}),
    ("no head", "MANIFEST-3", "division by zero", {"model.heads": 0}),
    ("heads that do not divide", "MANIFEST-3", "widths of heads that are rounded", {"model.heads": 3, "model.family": masked()}),
    ("narrow inside", "MANIFEST-3", "", {"model.hidden": 1}),
    ("no token in a window", "MANIFEST-3", "", {"model.sequence": 0}),
    ("long windows", "MANIFEST-3", "", {"model.sequence": 65_537, "data.bytes": 1 << 20}),
    ("epsilon of norms", "MANIFEST-3", "a row of zeros has no norm", {"model.norm_epsilon": bits(0.0)}),
    ("initial scale", "MANIFEST-3", "parameters that are no numbers after a round", {"model.initial_scale": bits(16.5)}),
    ("too many coefficients", "MANIFEST-3", "numbers of blocks that overflow", {"model.width": 1 << 16, "model.hidden": 1 << 16}),
    ("heads that share no keys", "MANIFEST-4", "", {"model.family": dict(Decoder=dict(key_value_heads=3, tied=True, rope_base=bits(1.0)))}),
    ("no keys", "MANIFEST-4", "division by zero", {"model.family": dict(Decoder=dict(key_value_heads=0, tied=True, rope_base=bits(1.0)))}),
    ("an odd width of heads", "MANIFEST-4", "positions turn pairs", {"model.width": 36}),
    ("base of positions", "MANIFEST-4", "angles beyond the domain of ARITH-26",
     {"model.family": dict(Decoder=dict(key_value_heads=2, tied=True, rope_base=bits(0.5)))}),
    ("no embedding", "MANIFEST-5", "", {"model.family": masked(embedding=0)}),
    ("nothing is masked", "MANIFEST-5", "", {"model.family": masked(masked_ppm=0)}),
    ("more than all is masked", "MANIFEST-5", "", {"model.family": masked(masked_ppm=10**6 + 1)}),
    ("the mask is no token", "MANIFEST-5", "a row beyond the embedding", {"model.family": masked(mask_token=256)}),
    ("a variant that is a plain decoder", "MANIFEST-18", "two names of one run", {"model.family": various()}),
    ("heads of a variant that share no keys", "MANIFEST-4", "", {"model.family": various(dict(key_value_heads=3), projection="Biased")}),
    ("base of a variant's positions", "MANIFEST-4", "angles beyond the domain of ARITH-26",
     {"model.family": various(dict(rope_base=bits(0.5)), projection="Biased")}),
    ("heads of no width", "MANIFEST-18", "division by zero", {"model.family": various(head_width=0)}),
    ("heads of an odd width of their own", "MANIFEST-18", "positions turn pairs", {"model.family": various(head_width=15)}),
    ("heads that are too wide", "MANIFEST-18", "sizes that overflow", {"model.family": various(head_width=(1 << 16) + 2)}),
    ("heads that are too wide together", "MANIFEST-18", "sizes that overflow",
     {"model.family": various(head_width=1 << 16), "model.heads": 32, "model.width": 2, "model.hidden": 2}),
    ("positions scaled by one", "MANIFEST-18", "two names of one run", {"model.family": various(scaling=dict(factor=bits(1.0)))}),
    ("slow turns of none", "MANIFEST-18", "", {"model.family": various(scaling=dict(low=bits(0.0)))}),
    ("fast turns that are slow", "MANIFEST-18", "division by zero", {"model.family": various(scaling=dict(high=bits(1.0)))}),
    ("windows of no tokens before", "MANIFEST-18", "", {"model.family": various(scaling=dict(original=0))}),
    ("no expert", "MANIFEST-14", "a choice among none", {"model.family": mixed(columns=0, active=1)}),
    ("too many experts", "MANIFEST-14", "", {"model.family": mixed(columns=257)}),
    ("no active expert", "MANIFEST-14", "division by zero", {"model.family": mixed(active=0)}),
    ("more active experts than there are", "MANIFEST-14", "", {"model.family": mixed(columns=8, active=9)}),
    ("a shared expert that is narrow inside", "MANIFEST-14", "", {"model.family": mixed(shared_hidden=1)}),
    ("a shared expert that is wide inside", "MANIFEST-14", "sizes that overflow", {"model.family": mixed(shared_hidden=(1 << 20) + 1)}),
    ("an experts' bound below what they learn", "MANIFEST-14", "experts that learn less in each round",
     {"model.family": mixed(trust=bits(0.99))}),
    ("a negative balance", "MANIFEST-14", "experts that drive each other out", {"model.family": mixed(balance=bits(-0.01))}),
    ("no row", "MANIFEST-14", "a state without experts", {"model.family": mixed(rows=0)}),
    ("too many rows", "MANIFEST-14", "more shards than a state may have", {"model.family": mixed(rows=65)}),
    ("rows that come after the last round", "MANIFEST-14", "a run that never has what its manifest says",
     {"model.family": mixed(rows=2, branch=349_520), "data.router": routed(2)}),
    ("rows without a router", "MANIFEST-15", "windows that are of no row", {"model.family": mixed(rows=2)}),
    ("a router of other rows", "MANIFEST-15", "rows that nobody trains", {"model.family": mixed(rows=3), "data.router": routed(2)}),
    ("a router for one row", "MANIFEST-15", "a table that nobody reads", {"data.router": routed(2)}),
    ("held rows that are not thin", "MANIFEST-16", "updates that nobody inspects wait for inspectors", {"model.family": mixed(held=5)}),
    ("held rows that cannot wait", "MANIFEST-16", "a row that never learns", {"model.family": mixed(lag=7)}),
    ("updates that wait longer than rounds are remembered", "MANIFEST-16", "", {"model.family": mixed(lag=1 << 20)}),
    ("one row that becomes one", "MANIFEST-14", "two run ids of one run", {"model.family": mixed(branch=1)}),
    ("too many tensors", "MANIFEST-14", "a state that nobody can send",
     {"model.family": mixed(columns=167, active=1, shared_hidden=2), "model.layers": 32}),
    ("a mixture of too many coefficients", "MANIFEST-3", "experts that are not counted",
     {"model.family": mixed(shared_hidden=2), "model.hidden": 1 << 17}),
    ("a mixture with tolerance", "MANIFEST-14", "honest members are convicted",
     {"model.family": mixed(), "profile": "F32", "tolerance": dict(groups=[bits(0.125)], loss=bits(0.125))}),
    ("a mixture's heads that share no keys", "MANIFEST-4", "", {"model.family": mixed(dict(key_value_heads=3))}),
    ("a mixture's odd width of heads", "MANIFEST-4", "positions turn pairs", {"model.family": mixed(), "model.width": 36}),
    ("a mixture's base of positions", "MANIFEST-4", "angles beyond the domain of ARITH-26",
     {"model.family": mixed(dict(rope_base=bits(0.5)))}),
    ("a long text", "MANIFEST-6", "", {"data.bytes": (1 << 40) + 1}),
    ("half a token", "MANIFEST-6", "", {"data.tokeniser": numbered(), "data.held_out_bytes": 999}),
    ("fewer rows than tokens", "MANIFEST-6", "a row beyond the embedding", {"model.vocabulary": 255}),
    ("many more rows than tokens", "MANIFEST-6", "another tokeniser's", {"model.vocabulary": 1280}),
    ("no window", "MANIFEST-6", "nothing to draw", {"data.bytes": 32}),
    ("an empty tokeniser", "DATA-4", "", {"data.tokeniser": numbered(bytes=0)}),
    ("parameters of another model", "DATA-6", "", {"data.start": dict(Given=dict(root=fill(9), bytes=4))}),
    ("a router of one row", "DATA-8", "what is one needs no choice", {"data.router": routed(rows=1)}),
    ("a router of too many rows", "DATA-8", "", {"data.router": routed(rows=65)}),
    ("a router that reads nothing", "DATA-8", "", {"data.router": routed(tokens=0), "model.family": mixed(rows=5)}),
    ("a router that reads too much", "DATA-8", "a long leaf", {"data.router": routed(tokens=4097), "model.family": mixed(rows=5)}),
    ("tolerance in exact", "TOL-5", "cheats that differ by little", {"tolerance": dict(groups=[], loss=bits(0.1))}),
    ("no tolerance", "TOL-5", "honest members are convicted", {"profile": "Bf16", "tolerance": dict(groups=[], loss=bits(0.1))}),
    ("a wide tolerance", "TOL-5", "", {"profile": "Bf16", "tolerance": dict(groups=[bits(0.126)], loss=bits(0.1))}),
    ("no round", "MANIFEST-7", "", {"training.rounds": 0}),
    ("too many rounds", "MANIFEST-7", "", {**UNAUDITED, "training.rounds": (1 << 24) + 1}),
    ("more rounds than a verifier has coins", "MANIFEST-13", "audits end without a word", {"training.rounds": 349_521}),
    ("contributions kept for longer than a verifier has coins", "MANIFEST-13", "the number of rounds is blamed, whatever it is",
     {"retention.contributions": 1 << 22}),
    ("too many leaves", "MANIFEST-7", "", {"training.leaves": 65_537}),
    ("too many windows of a leaf", "MANIFEST-7", "", {"training.leaf_windows": 1025}),
    ("no grid", "MANIFEST-7", "", {"training.grid_bits": 0, "aggregation.result_bits": 0}),
    ("a fine grid", "MANIFEST-7", "coefficients that saturate", {"training.grid_bits": 15}),
    ("beta of one", "MANIFEST-8", "moments that never move: ARITH divides by zero", {"optimiser.beta2": bits(1.0)}),
    ("a negative beta", "MANIFEST-8", "", {"optimiser.beta1": bits(-0.5)}),
    ("no epsilon", "MANIFEST-8", "0/0 of a coefficient without gradient", {"optimiser.epsilon": bits(0.0)}),
    ("no rate", "MANIFEST-8", "", {"optimiser.rate": bits(0.0)}),
    ("negative decay", "MANIFEST-8", "", {"optimiser.weight_decay": bits(-0.1)}),
    ("no radius", "MANIFEST-9", "", {"aggregation.radius": bits(0.0)}),
    ("many iterations", "MANIFEST-9", "", {"aggregation.iterations": 65}),
    ("no share", "MANIFEST-9", "", {"aggregation.cap_ppm": 0}),
    ("half of all lie", "MANIFEST-9", "", {"aggregation.assumed_ppm": 500_000}),
    ("three replicas", "MANIFEST-9", "", {"aggregation.replicas": 3}),
    ("results finer than contributions", "MANIFEST-9", "", {"training.grid_bits": 6, "aggregation.result_bits": 7}),
    ("more audits than contributions", "MANIFEST-10", "", {"audit.share_ppm": 10**6 + 1}),
    ("an audit of nothing", "MANIFEST-10", "", {"audit.leaves": 0}),
    ("coins of the round", "MANIFEST-10", "coins that are chosen after what they draw", {"audit.coin_lead": 0}),
    ("audits of what is forgotten with a delay", "MANIFEST-10", "", {"delay": 1, "audit.final_rounds": 7}),
    ("audits of what is forgotten", "MANIFEST-10", "the end waits for what nobody can answer", {"audit.final_rounds": 8}),
    ("a timer of zero", "MANIFEST-10", "", {"timers.part": 0}),
    ("nobody to start with", "MANIFEST-11", "", {"admission.start_nodes": 0}),
    ("more to start with than may come", "MANIFEST-11", "it never starts", {"admission.most_members": 4}),
    ("too many members", "MANIFEST-11", "", {"admission.most_members": 4097, "training.rounds": 100}),
    ("a probation without audits", "MANIFEST-11", "it never ends", {"audit.share_ppm": 0, "admission.newcomer_ppm": 0}),
    ("one verifier's word", "MANIFEST-11", "who lies alone ends a probation", {"admission.vouchers": 1}),
    ("a key twice", "MANIFEST-11", "", {"admission.mode": listing(fill(8))}),
    ("open, without a price", "STAND-7", "identities for nothing", {"admission.mode": dict(Open=None), "admission.probation": 0}),
    ("going back further than is kept", "MANIFEST-12", "", {"rollback.most_rounds": 9, "rollback.spacing": 10}),
    ("going back again and again", "MANIFEST-12", "a run without end", {"rollback.spacing": 8}),
    ("a negative limit", "MANIFEST-12", "", {"rollback.limit": bits(-0.5)}),
]


# ---------------------------------------------------------------- the families

def family_codec():
    for kind in ref.STRUCTS:
        yield case(f"{kind}", "CODEC-1", "fields in another order or width", "roundtrip", type=kind, bytes=sample(kind))
    for kind, variants in ref.ENUMS.items():
        for variant in variants:
            yield case(f"{kind}::{variant}", "CODEC-3", "variants counted otherwise", "roundtrip", type=kind,
                       bytes=sample(kind, variant))
    bad = lambda name, rule, why, kind, data: case(name, rule, why, "malformed", type=kind, bytes=data)
    echo, commit, request = sample("Echo"), sample("Commit"), sample("AuditRequest", coin=None)
    yield case("no coin", "CODEC-8", "an absent option takes one byte", "roundtrip", type="AuditRequest", bytes=request)
    yield bad("trailing byte", "CODEC-10", "one value would have many encodings, and many hashes", "Echo", echo + "00")
    yield bad("empty", "CODEC-10", "a missing value is no zero", "Echo", "")
    yield bad("profile tag", "CODEC-3", "an unknown variant taken for a known one", "Commit",
              commit[:-82] + "04" + commit[-80:])
    yield bad("body tag", "CODEC-3", "a later version's record taken for this one's", "Body", "13")
    yield bad("evidence tag", "CODEC-3", "a tag just past the last variant", "Evidence", "09")
    yield bad("family tag", "CODEC-3", "a later version's model taken for this one's", "Family", "03")
    yield bad("option tag", "CODEC-8", "2 taken for true gives two encodings", "AuditRequest", request[:-2] + "02")
    yield bad("bool", "CODEC-9", "2 taken for true gives two encodings", "Decoder", "01000000" + "02" + "0000803f")
    yield bad("file tag", "CODEC-3", "a sixth file taken for one of five", "DataQuery", "05" + "00" * 12)
    yield bad("list over its bound", "CODEC-4", "a count is believed before its items", "Proof", ref.le(49, 4).hex() + fill(1, 49 * 32))
    yield bad("list of 2³² − 1", "CODEC-4", "memory reserved on a stranger's word", "Freeze", fill(0, 36) + "ffffffff")
    yield bad("more shards than there may be", "CODEC-4", "a count is believed before its items", "StateOffer",
              fill(0, 4) + ref.le(66, 4).hex() + fill(0, 66 * 148))
    yield bad("notice tag", "CODEC-3", "a later version's notice taken for this one's", "Notice", "11")
    yield bad("route tag", "CODEC-8", "2 taken for true gives two encodings", "Commit", commit[:144] + "02" + commit[146:])
    yield bad("vector tag", "CODEC-3", "a fifth vector taken for one of four", "StateQuery", fill(0, 38) + "04" + fill(0, 12))
    for name, vector in (("parameters", "Parameters"), ("second moments", "Second")):
        yield case(f"query of {name}", "CODEC-3", "vectors counted otherwise", "roundtrip", type="StateQuery",
                   bytes=sample("StateQuery", vector=vector))
    yield bad("more proofs than runs may be", "CODEC-4", "a count is believed before its items", "StatePiece",
              fill(0, 4) + ref.le(33, 4).hex() + fill(0, 33 * 4))
    yield case("no route", "CODEC-8", "row 0 of a run with one row taken for a row of several", "roundtrip", type="Commit",
               bytes=sample("Commit", route=None))
    for name, number in (("a route to the last row", 2**64 - 1), ("a route to no row", 0)):
        yield case(name, "COMMIT-3", "rows counted from the other end", "roundtrip", type="Commit",
                   bytes=sample("Commit", route={"row": 63, "open": number}))
    yield bad("bytes over their bound", "CODEC-5", "memory reserved on a stranger's word", "Signed", fill(2, 128) + "01004000")
    yield bad("text over its bound", "CODEC-6", "the bound counts bytes, not characters", "Return",
              "00" * 8 + "01000000" + ref.le(258, 4).hex() + "é".encode().hex() * 129)
    for name, data in (("control", "0a"), ("delete", "7f"), ("C1 control", "c285"), ("cut UTF-8", "c3"),
                       ("overlong UTF-8", "c0af"), ("surrogate", "eda080"), ("right-to-left override", "e280ae"),
                       ("zero-width space", "e2808b"), ("isolate", "e281a6"), ("tag", "f3a08181")):
        yield bad(f"text: {name}", "CODEC-6", "a log or a terminal is steered, or one text has two encodings", "Return",
                  "00" * 8 + "01000000" + ref.le(len(data) // 2, 4).hex() + data)
    for name, text in (("beside those that are hidden", "\u200a\u2010\u2027\u202f\u205f\u2070\ufefe\ufffc"), ("from right to left", "שלום")):
        data = text.encode()
        yield case(f"text: {name}", "CODEC-6", "what is seen is refused", "roundtrip", type="Return",
                   bytes="00" * 8 + "01000000" + ref.le(len(data), 4).hex() + data.hex() + "00")
    head, tail = "00" * 24, "0000803f" + sample("Family")
    for name, bits in (("−0", "00000080"), ("NaN", "0000c07f"), ("signalling NaN", "010080ff"), ("infinity", "0000807f")):
        yield bad(f"real: {name}", "CODEC-7", "equal settings with two run ids, or a poisoned computation", "Model",
                  head + bits + tail)
    yield case("real: smallest", "CODEC-7", "subnormals are finite", "roundtrip", type="Model",
               bytes=head + "01000000" + tail)


    for members in ([], [0], [7, 8], [1, 2, 9, 130, 255]):
        yield case(f"slots {members}", "CODEC-11", "the highest bit taken for the first slot", "slots", members=members)
    for members in ([], [0], [7, 8], [1, 63]):
        yield case(f"rows {members}", "CODEC-11", "the highest bit taken for the first row", "rows_of_set", members=members)


def family_hash():
    for domain in ref.DOMAINS:
        yield case(domain, "HASH-1", "a domain is spelled otherwise", "hash", domain=domain, parts=["6d7573746572"])
    yield case("no part", "HASH-2", "the empty message", "hash", domain="run", parts=[])
    yield case("empty part", "HASH-2", "an empty part still has a frame", "hash", domain="run", parts=[""])
    yield case("ab, c", "HASH-2", "frames keep ab, c from a, bc", "hash", domain="run", parts=["6162", "63"])
    yield case("a, bc", "HASH-2", "frames keep ab, c from a, bc", "hash", domain="run", parts=["61", "6263"])
    for size in (0, 1, 64, 65, 1023, 1024, 1025, 2048, 3072, 3073, 5000, 8193):
        yield case(f"bulk of {size}", "HASH-3", "BLAKE3's tree at the edges of blocks and chunks", "hash_bulk",
                   domain="merkle-leaf", bytes_mod_251=size)
    for uniform, n in ((0, 10), (2**64 - 1, 10), (2**63, 3), (2**64 - 1, 2**64 - 1), (12345678901234567890, 1), (7, 0)):
        yield case(f"{uniform} below {n}", "HASH-5", "a remainder instead of the high half of the product", "below",
                   uniform=word(uniform), n=word(n))
    yield case("start", "HASH-6", "rounds, counter or word order", "stream", key=fill(0), first=0, count=20)
    yield case("across refills", "HASH-6", "an implementation that buffers four blocks loses its place", "stream",
               key=fill(0x5a), first=61, count=8)
    yield case("far", "HASH-6", "a 32-bit counter wraps", "stream", key=fill(0x5a), first=2**36 - 2, count=5)


def family_sign():
    secret, run = fill(7), RUN
    for kind in ("Echo", "Commit", "Leave", "Ready"):
        yield case(kind, "SIGN-1", "a tag, the run or the frame is missing from what is signed", "sign", type=kind,
                   secret=secret, run=run, body=sample(kind))
    good = ref.envelope(un(secret), un(run), "Echo", un(sample("Echo"))).hex()
    forged = lambda name, why, data, kind="Echo", rule="SIGN-2", run=run: case(
        name, rule, why, "verify", type=kind, run=run, envelope=data)
    yield forged("good", "", good, rule="SIGN-6")
    yield forged("another run", "a signature serves in two runs", good, run=fill(0x12), rule="SIGN-6")
    yield forged("run replaced", "the run is claimed but not signed", fill(0x12) + good[64:], run=fill(0x12))
    yield forged("another kind", "an echo passes for a leave", good, kind="Leave")
    yield forged("another kind of one size", "the tag alone keeps an echo from passing for a receipt", good, kind="CommitReceipt")
    flip = lambda place: good[:2 * place] + f"{int(good[2 * place:2 * place + 2], 16) ^ 1:02x}" + good[2 * place + 2:]
    yield forged("signer changed", "", flip(40))
    yield forged("R changed", "", flip(70))
    yield forged("s changed", "", flip(100))
    yield forged("body changed", "", flip(140))
    data = un(good)
    s = int.from_bytes(data[96:128], "little")
    yield forged("s plus the order", "a second signature of the same message: its name is not unique",
                 (data[:96] + ref.le(s + ref.ORDER, 32) + data[128:]).hex())
    body = un(sample("Echo")) + b"\0"
    yield forged("malformed body, well signed", "an author can sign anything; the decoder still decides",
                 ref.envelope(un(secret), un(run), "Echo", body).hex(), rule="SIGN-6")
    yield forged("trailing byte", "", good + "00", rule="SIGN-6")
    weak_signer = IDENTITY_SIGNED(run)
    yield forged("identity point as key", "under the identity point R = s·B verifies for every message", weak_signer, rule="SIGN-3")
    yield case("a key", "SIGN-3", "", "key", public=ref.public_key(un(secret)).hex())
    yield case("y = 2 is on no curve", "SIGN-3", "", "key", public="02" + "00" * 31)
    for name, public in WEAK_KEYS.items():
        yield case(f"weak: {name}", "SIGN-3", "one signature fits many messages", "key", public=public)


def family_ticket():
    steward, secret = ref.public_key(un(fill(1))), fill(9)
    swarm = lambda host, port, key=steward: ticket.text_of(ticket.ipaddress.ip_address(host), port, True, key)

    def some(addresses, uses=1, expires=ticket.EPOCH + 86_400, role="Node", founder=False, permit=True):
        body = ref.write("Invitation", dict(role=role, uses=uses, expires=expires, key=ref.public_key(un(secret)).hex(), founder=founder))
        signed = ref.decode("Signed", ref.envelope(un(fill(2)), un(RUN), "Invitation", body))
        return dict(run=RUN, steward=steward.hex(), addresses=addresses,
                    **{"pass": dict(invitation=signed, secret=secret) if permit else None})

    usual = ["192.168.178.123:65534", "127.0.0.1:65534", swarm("127.0.0.1", 65533), swarm("192.168.178.123", 65533)]
    tickets = [
        ("no pass, no address", "LINE-2", "", some([], permit=False)),
        ("a node's", "LINE-2", "", some(["example.org:7777"])),
        ("a verifier's, of many uses", "LINE-2", "flags exchanged, or numbers of more than one digit", some([], 2**32 - 1, 2**64 - 1, "Verifier")),
        ("a founder's, expired before 2026", "LINE-2", "the difference is not taken modulo 2⁶⁴", some([], 128, ticket.EPOCH - 1, founder=True)),
        ("as `muster host` has it", "LINE-3", "what repeats is not left out", some(usual)),
        ("hosts and ports that change", "LINE-3", "the last host is repeated, and not the first one",
         some(["10.0.0.1:1", "10.0.0.2:1", "10.0.0.1:2", "10.0.0.2:2", "[2001:db8::1]:2", "[::1]:2", "[2001:db8::1]:3"])),
        ("texts that are no numbers", "LINE-4", "a text comes back otherwise than it was signed for",
         some(["127.0.0.1:080", "[::0001]:80", "[2001:DB8::1]:80", swarm("10.0.0.1", 9, un(fill(3))), "/ip4/1.2.3.4/tcp/5", "[::ffff:1.2.3.4]:1", "[fe80::1%2]:1"])),
    ]
    for name, rule, why, one in tickets:
        yield case(name, rule, why, "line", ticket_bytes=ref.write("Ticket", one).hex())
    good = ticket.line(tickets[1][3])
    bare = ticket.pack(some(["10.0.0.1:5"], permit=False))
    again = lambda body: "muster1:" + ticket.base58(body + ticket.checksum(body))
    other = "2" if good[60] != "2" else "3"
    refused = [
        ("good", "", good), ("without its beginning", "", good[1:]), ("cut", "half a line is read", good[:-1]),
        ("another character", "a mistyped line is read", good[:60] + other + good[61:]),
        ("no base58", "0, O, I and l are no digits", good[:60] + "0" + good[61:]), ("nothing", "", "muster1:"),
        ("a byte too much", "two lines for one ticket", again(bare + b"\0")),
        ("a number as text", "two lines for one ticket", again(bare[:65] + b"\0\x0a10.0.0.1:5")),
        ("a verifier's without a pass", "two lines for one ticket", again(bare[:64] + bytes([bare[64] | 32]) + bare[65:])),
        ("the first host before there is one", "", again(bare[:65] + bytes([ticket.FIRST_HOST, 0, 5]))),
        ("the same port before there is one", "", again(bare[:65] + bytes([ticket.V4 | ticket.SAME_PORT, 10, 0, 0, 1]))),
    ]
    packed = ticket.pack(tickets[1][3])
    refused.append(("another secret", "the invitation is used by whoever has its public half", again(packed[:170] + bytes([packed[170] ^ 1]) + packed[171:])))
    for name, why, text in refused:
        yield case(f"read: {name}", "LINE-1", why, "read_line", line=text)


def family_channel():
    end = lambda identity, static, seed, expiry=2_000_000_000: dict(identity=fill(identity), static=fill(static), seed=fill(seed), expiry=expiry)
    one, two = end(1, 3, 5), end(2, 4, 6)
    for suite in (1, 2):
        yield case(f"suite {suite}", "CHAN-1", "byte order of nonces, prologue or key order", "handshake", suite=suite, run=RUN,
                   dialler=one, answerer=two, says=[[0, "00"], [1, "1b0000"], [0, ""], [0, "0102"], [1, fill(7)]])
        yield case(f"two frames of suite {suite}", "CHAN-7", "a message is cut elsewhere", "long_message", suite=suite, run=RUN,
                   dialler=one, answerer=two, bytes_mod_251=65_516)
    both, messages = channel.agreed(2, un(RUN), secrets(one), secrets(two))
    first, second, third = (message.hex() for message in messages)
    flip = lambda text, place: text[:2 * place] + f"{int(text[2 * place:2 * place + 2], 16) ^ 1:02x}" + text[2 * place + 2:]
    start = lambda name, rule, why, first, suite=2: case(f"message 1: {name}", rule, why, "answer_first", suite=suite, run=RUN,
                                                        answerer=two, first=first)
    yield start("good", "CHAN-1", "", first)
    yield start("another version", "CHAN-1", "a later version is taken for this one", flip(first, 6))
    yield start("no suite", "CHAN-1", "", flip(first, 7)[:14] + "03" + first[16:])
    yield start("a key of zeros", "CHAN-5", "a key that both ends and everybody know", first[:16] + fill(0))
    yield start("a key of order 8", "CHAN-5", "as above",
                first[:16] + "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800")
    yield start("a byte too much", "CHAN-1", "bytes that no handshake covers", first + "00")

    def found(name, rule, why, second=second, now=1_999_999_999, expected=None):
        return case(f"message 2: {name}", rule, why, "dial", suite=2, run=RUN, dialler=one, second=second, now=now, expected=expected)

    def said_by(other, run=RUN, change=lambda end: None):
        answerer = end_of(run, 2, other)
        change(answerer)
        return answerer.second(messages[0]).hex()

    def certified(static=None, signed_run=None, said=None):
        body = ref.write("Certificate", {"key": channel.public_of(un(static or fill(4))).hex(), "expiry": 2_000_000_000})
        data = ref.envelope(un(fill(2)), un(signed_run or RUN), said or "Certificate", body)
        return lambda end: setattr(end, "certificate", lambda: data)

    yield found("good", "CHAN-4", "", expected=ref.public_key(un(fill(2))).hex())
    yield found("of whoever it may be", "CHAN-4", "")
    yield found("another member", "CHAN-4", "an address decides who is trusted", expected=ref.public_key(un(fill(8))).hex())
    yield found("of another run", "CHAN-2", "a channel of one run serves in two", said_by(two, fill(0x12)))
    yield found("on the second of its expiry", "CHAN-3", "an old key serves for ever", now=2_000_000_000)
    yield found("a certificate of another key", "CHAN-3", "whoever saw a certificate can use it", said_by(two, change=certified(static=fill(9))))
    yield found("a certificate of another run", "CHAN-3", "", said_by(two, change=certified(signed_run=fill(0x12))))
    yield found("a certificate with another tag", "CHAN-3", "another statement of the member passes for one", said_by(two, change=certified(said="Return")))
    for place, what in ((0, "ephemeral key"), (40, "static key"), (100, "certificate"), (267, "tag")):
        yield found(f"a bit of the {what} changed", "CHAN-3", "", flip(second, place))
    yield found("cut", "CHAN-3", "", second[:-2])
    accepted = lambda name, rule, why, third=third, now=0: case(f"message 3: {name}", rule, why, "accept", suite=2, run=RUN,
                                                              answerer=two, first=first, third=third, now=now)
    yield accepted("good", "CHAN-4", "")
    yield accepted("expired", "CHAN-3", "", now=2_000_000_000)
    yield accepted("a bit changed", "CHAN-4", "", flip(third, 10))

    key = both.symmetric.derive(b"")[0]
    sealed = lambda *texts: [channel.seal(2, key, number, b"", text).hex() for number, text in enumerate(texts)]
    hello, again = sealed(ref.le(2, 4) + b"hi", ref.le(1, 4) + b"!")
    read = lambda name, why, frames: case(f"frames: {name}", "CHAN-7", why, "open_frames", suite=2, run=RUN, dialler=one, answerer=two,
                                          frames=frames)
    yield read("two messages", "", [hello, again])
    yield read("an empty message", "", sealed(ref.le(0, 4)))
    yield read("again", "a frame is played twice", [hello, hello])
    yield read("the second first", "frames are moved", [again, hello])
    yield read("a bit changed", "", [flip(hello, 3), again])
    yield read("over the limit", "memory is taken on a stranger's word", sealed(ref.le((4 << 20) + 1, 4) + b"hi"))
    yield read("a short frame that is not the last", "a message may take as many frames as its sender likes", sealed(ref.le(3, 4) + b"h", b"i!"))
    yield read("more than was announced", "what is over is taken for the next length", sealed(ref.le(1, 4) + b"hi"))
    yield read("less than a length", "", sealed(b"\1\0\0"))


def IDENTITY_SIGNED(run):
    scalar = 12345
    nonce = ref.compress(ref.times(scalar, ref.BASE))
    return (un(run) + ref.IDENTITY + nonce + ref.le(scalar, 32) + ref.le(36, 4) + un(sample("Echo"))).hex()


def small_order_points():
    """Multiples of a point of order 8: the order of the base times a point of full order."""
    for y in range(2, 100):
        point = ref.decompress(ref.le(y, 32))
        torsion = point and ref.times(ref.ORDER, point)
        if torsion and ref.compress(ref.times(4, torsion)) != ref.IDENTITY:
            return [ref.compress(ref.times(i, torsion)).hex() for i in range(8)]


WEAK_KEYS = {f"{i} · a point of order 8": public for i, public in enumerate(small_order_points())}
WEAK_KEYS["identity, y ≥ p"] = ref.le(ref.P + 1, 32).hex()
WEAK_KEYS["order 4, y = p"] = ref.le(ref.P, 32).hex()
WEAK_KEYS["identity, sign of zero set"] = ref.le(1 | 1 << 255, 32).hex()


def family_merkle():
    for count in (0, 1, 2, 3, 4, 5, 7, 8, 13, 33):
        yield case(f"{count} leaves", "MERKLE-2", "odd levels, or the trees of none and one", "tree", count=count)
    leaves = numbered_leaves(5)
    root = ref.merkle_root(leaves)
    prove = lambda name, rule, why, index=2, count=5, leaf=2, siblings=None, root=root: case(
        name, rule, why, "proof", root=root.hex(), count=count, index=index, leaf=numbered_leaves(8)[leaf].hex(),
        siblings=[s.hex() for s in (ref.merkle_prove(leaves, index % 5) if siblings is None else siblings)])
    third = ref.merkle_prove(leaves, 2)
    yield prove("good", "MERKLE-6", "")
    yield prove("wrong index", "MERKLE-6", "a chunk is passed off as another one", index=3, siblings=third)
    yield prove("wrong leaf", "MERKLE-6", "", leaf=3)
    yield prove("wrong count", "MERKLE-4", "a root means two sizes", count=6, siblings=third)
    yield prove("index past the end", "MERKLE-6", "", index=5, leaf=4)
    yield prove("a sibling too many", "MERKLE-6", "proofs are not unique", siblings=third + [bytes(32)])
    yield prove("a sibling too few", "MERKLE-6", "an inner node passes as a leaf", siblings=third[:-1])
    yield prove("siblings exchanged", "MERKLE-6", "", siblings=third[::-1])
    yield prove("last node, its twin spelled out", "MERKLE-3", "proofs are not unique", index=4, leaf=4,
                siblings=[leaves[4]] + ref.merkle_prove(leaves, 4))
    twice = leaves + [leaves[4]]
    yield prove("duplicated last leaf", "MERKLE-4", "CVE-2012-2459: a list and its doubled tail share a root", index=5,
                count=6, leaf=4, siblings=ref.merkle_prove(twice, 5))
    node = ref.merkle_levels(leaves)[1][0]
    yield case("inner node as leaf", "MERKLE-1", "second preimages across levels", "proof", root=root.hex(), count=3, index=0,
               leaf=node.hex(), siblings=[s.hex() for s in ref.merkle_prove(leaves, 0)[1:]])
    yield case("inner node as root", "MERKLE-4", "the top without its count", "proof",
               root=ref.merkle_levels(leaves)[-1][0].hex(), count=5, index=2, leaf=leaves[2].hex(), siblings=[s.hex() for s in third])


def family_dataset():
    for size, sequence in ((2, 1), (4096, 128), (4097, 128), (16385, 128), (16384, 128), (10000, 4096)):
        yield case(f"{size} bytes, windows of {sequence}", "DATA-2", "the last chunk is short; windows overlap by one byte",
                   "dataset", manifest=sample("Manifest"), bytes_mod_251=size, sequence=sequence)
    for numbers, size in ((1 << 16, 2), ((1 << 16) + 1, 4)):
        yield case(f"windows of tokens of {size} bytes", "DATA-4", "tokens are little-endian numbers, not bytes",
                   "dataset", manifest=sample("Manifest"), bytes_mod_251=1000, sequence=30, numbers=numbers)


    yield from routers()


def routers():
    least, most = -2**31, 2**31 - 1
    # Rows as packers make them: logarithms, all negative.
    texts = [[[[101, -2100], [32, -1800]], -9000, 40], [[[49, -1700], [48, -1650]], -8000, 900], [[[101, -2400], [49, -2300]], -7000, 0]]
    silent = [[], 0, 0]
    for name, why, table, before, closed in (
            ("words", "", texts, [101, 32, 101, 101], []),
            ("numbers", "", texts, [49, 48, 49], []),
            ("no text before", "the first window has no row: the biases alone are compared", texts, [], []),
            ("best row closed", "a window is lost while its row has no seat", texts, [101, 32, 101, 101], [0]),
            ("all rows but the worst closed", "", texts, [101, 32, 101, 101], [0, 2]),
            ("no row open", "a closed row is taken", texts, [101], [0, 1, 2]),
            ("tokens from 256 on", "a number beyond the table", texts, [256 + 49, 65_536 + 48, 2**32 - 207], []),
            ("equal scores", "the last of equals, or one at random", [[[[7, 5]], 0, 0], silent, [[[7, 4]], 0, 1]], [7], []),
            ("equal scores, the lowest row closed", "", [[[[7, 5]], 0, 0], silent, [[[7, 4]], 0, 1], [[[7, 3]], 0, 2]], [7], [0]),
            ("an empty row", "a score of 0 is above all logarithms", [*texts, silent], [101, 49], []),
            ("empty rows", "", [silent, silent], [1, 2, 3], []),
            ("negative biases", "a score below 0 taken for none", [[[], -1, -5], [[], -1, -4]], [0, 255], []),
            ("largest entries", "a sum of 32 bits overflows", [[[], least, least], [[], most, most]], [9] * 4096, []),
            ("largest entries, the larger closed", "", [[[], least, least], [[], most, most]], [9] * 4096, [1]),
            ("64 rows", "", [[[[3, row * 37 % 64]], 0, row * 11 % 64] for row in range(64)], [3, 3, 259], [])):
        yield case(f"router: {name}", "DATA-9", why, "router", table=table, before=before, closed=closed)
    yield case("router: order of entries and bias", "DATA-8", "a bias before its entries, or entries of all rows before the biases",
               "router", table=[[[[0, 1], [255, -2]], 3, -4], [[[1, 5]], -6, 7]], before=[0, 255, 1], closed=[])


def family_manifest():
    changed = sample("Manifest", nonce=fill(0xff, 16))
    yield case("sample", "CODEC-1", "two programs join two runs", "manifest", bytes=sample("Manifest"))
    yield case("another nonce", "CODEC-1", "equal settings make one run", "manifest", bytes=changed)
    for name, rule, why, changes in PERMITTED + REFUSED:
        data = ref.write("Manifest", changed_manifest(changes))
        assert all(fault[0] == rule for fault in manifest_rules.faults(ref.decode("Manifest", data))), name
        yield case(name, rule, why, "permitted", bytes=data.hex())


def family_ledger():
    for variant in ref.ENUMS["Body"]:
        body = Sampler().value("Body", variant)
        data = ref.write("Record", {"height": 3, "previous": fill(5), "body": body}).hex()
        yield case(f"record {variant}", "LEDGER-2", "heads differ: nobody agrees on R_t", "record", bytes=data)
    for variant in ref.ENUMS["Evidence"]:
        yield case(f"evidence {variant}", "AUDIT-9", "a ban names other evidence", "evidence", bytes=sample("Evidence", variant))


def family_layout():
    yield case("small, tied", "LAYOUT-1", "order or shape of tensors", "layout", model=SMALL_MODEL)
    yield case("small, untied", "LAYOUT-1", "the head comes last", "layout", model=UNTIED_MODEL)
    yield case("variant, wide heads and biases", "LAYOUT-8", "biases after their matrices, one by one", "layout", model=VARIANT_MODEL)
    yield case("variant, norms of queries and keys", "LAYOUT-8", "a norm for each head, or of all heads together", "layout",
               model=NORMED_MODEL)
    yield case("masked, shared layer", "LAYOUT-4", "order or shape of tensors", "layout", model=ALBERT_MODEL)
    yield case("tensors beyond a block", "LAYOUT-2", "blocks and chunks that cross a tensor's end", "layout", model=BLOCKY_MODEL)
    yield case("mixture, tied", "LAYOUT-5", "experts within their layer, and not after the trunk", "layout", model=MIXED_MODEL)
    yield case("mixture, untied, one expert", "LAYOUT-5", "the head comes last, and not before the row", "layout",
               model=ref.write("Model", {**SMALL, "family": MIXED_UNTIED}).hex())
    yield case("mixture, tensors beyond a block", "LAYOUT-5", "the shared expert as wide as the others", "layout", model=BLOCKY_MIXED)
    yield case("mixture, three rows", "LAYOUT-5", "a path with more than its own row", "layout", model=ROWS_MODEL)
    for name, model in (("tensors beyond a block", BLOCKY_MODEL), ("three rows", ROWS_MODEL)):
        shape = ref.decode("Model", un(model))
        count, all_of_them = ref.shard_blocks(shape)[0], ref.plane_blocks(shape)
        yield case(f"two planes, {name}", "LAYOUT-7", "a block of moments in another place than its parameters", "contribution_layout",
                   model=model, blocks=[0, count - 1, all_of_them - 1, all_of_them, all_of_them + 1, all_of_them + count,
                                        2 * all_of_them - 1, 2 * all_of_them])
    places = lambda name, why, model, *blocks: case(name, "LAYOUT-6", why, "block_places", model=model, blocks=list(blocks))
    last = 2**32 - 1
    yield places("blocks, no experts", "a block beyond the model", SMALL_MODEL, 0, 1, 19, 20, last)
    yield places("blocks, one row", "a block of a row that there is not", MIXED_MODEL, 0, 21, 22, 41, 42, last)
    yield places("blocks, three rows", "a row's block that is reduced as another's", ROWS_MODEL, *range(0, 46), last)
    yield places("blocks, rows of tensors beyond a block", "rows of as many blocks as the trunk", BLOCKY_ROWS, *range(0, 36))
    yield places("blocks, 64 rows", "a row in too few bits",
                 ref.write("Model", {**ROWS, "family": dict(Mixture={**MIXTURE, "rows": 64})}).hex(), 14, 23, 24, 643, 653, 654, 655)


def family_state():
    one = 0x3f800000
    yield case("small", "STATE-1", "order of the pieces", "state", step=3, beta_powers=[word(0x3fe0000000000000), word(1)],
               exponents=[-9, -10, 100, -120], vectors=[[5, one, 1], [5, 1, 1], [5, 0, 0]])
    yield case("two chunks", "STATE-2", "chunks of the state run across tensors, those of Q do not", "state", step=0,
               beta_powers=[word(0)] * 2, exponents=[0], vectors=[[16385, one, 3], [1, 1 << 31, 0], [0, 0, 0]])
    half, quarter = word(0x3fe0000000000000), word(0x3fd0000000000000)
    trunk = [4, [half, quarter], [-9, 3], [[7, one, 5], [7, 1, 2], [7, 9, 1]]]
    row = lambda step, first: [step, [word(0x3ff0000000000000), half], [-20, -20, 1], [[9, first, 1], [9, 2, 2], [9, 4, 0]]]
    several = lambda name, why, *shards: case(name, "STATE-1", why, "shards_state", shards=list(shards))
    yield several("trunk and row", "one step of all shards", trunk, row(3, one))
    yield several("trunk and three rows", "one hash of all shards' exponents, or one tree of all their vectors", trunk, row(3, one),
                  row(0, one + 64), row(2, one + 128))
    yield several("two rows, exchanged", "a set of rows, in which a root does not tell which is which", trunk, row(0, one + 64), row(3, one),
                  row(2, one + 128))
    yield several("rows longer than a run", "runs across two shards", [1, [half] * 2, [0], [[16385, one, 1]] * 3],
                  *[[1, [half] * 2, [0], [[16386, one + n, 1]] * 3] for n in range(2)])
    for rows in (1, 2, 3, 64):
        yield case(f"{rows} of one row", "STATE-8", "rows without moments, or that count their updates anew", "branched",
                   shards=[trunk, row(4, one)], rows=rows)
    late = ref.write("Model", {**ROWS, "family": dict(Mixture={**MIXTURE, "rows": 3, "branch": 5})}).hex()
    for name, model in (("three rows from the beginning", ROWS_MODEL), ("three rows after five updates", late), ("one row", MIXED_MODEL),
                        ("no experts", SMALL_MODEL)):
        yield case(name, "STATE-8", "rows that come to be a round too early or too late", "rows_after", model=model,
                   updates=[0, 1, 4, 5, 6, 2**32 - 1])


def family_experts():
    nodes = [fill(n) for n in range(1, 12)]
    deal = lambda name, why, count, rows, head=0x51: case(name, "ROW-1", why, "dealt", head=fill(head), nodes=nodes[:count], rows=rows)
    yield deal("dealt among eleven", "rows in order of admission, which the steward has in its hand", 11, 3)
    yield deal("another head", "", 11, 3, 0x52)
    yield deal("as many rows as nodes", "", 4, 4)
    yield deal("more rows than nodes", "a row that nobody computes on is no error", 2, 5)
    yield deal("64 rows", "", 11, 64)
    yield deal("dealt among none", "", 0, 2)
    draw = lambda name, why, held, rows, head=0x53: case(name, "ROW-2", why, "drawn_rows", head=fill(head), nodes=nodes[:len(held)], held=held,
                                                         rows=rows)
    for head in (0x53, 0x54, 0x55):
        yield draw(f"one of two candidates, head {head:02x}", "a newcomer that chooses among all rows", [0, 1, 2, 2, None], 4, head)
    yield draw("all rows tie", "another order among equals", [0, 1, 2, 3, 4, None], 5)
    yield draw("an odd number of rows", "half of them, rounded down", [0, 0, 1, None, None, None], 3)
    yield draw("two rows", "the one with fewer holders is no choice", [0, 0, 1, None], 2)
    yield draw("several at once", "those drawn before do not count as holders", [0, 1, None, None, None, None, None, None], 4)
    yield draw("holders that came later", "only those who came before count", [None, 3, 3, 2, None, 0], 4)
    yield draw("nobody holds anything", "", [None] * 5, 3)
    yield draw("everybody holds something", "", [2, 1, 0], 3)
    yield draw("64 rows, one node", "", [None], 64)
    move = lambda name, why, held, few=3, rows=3, head=0x56, away=(): case(
        name, "ROW-7", why, "moved_holder", head=fill(head), rows=rows, few=few,
        holders=[[nodes[n], row, n not in away] for n, row in enumerate(held)])
    yield move("a row without holders", "the row waits for newcomers", [0, 0, 0, 1, 1])
    yield move("another head moves another one", "whoever was admitted first", [0, 0, 0, 1, 1], head=0x57)
    yield move("of two rows the first", "", [1, 1, 1])
    yield move("two equally large rows", "", [2, 2, 2, 0, 0, 0])
    yield move("one more is not enough", "two rows that change places for ever", [0, 1])
    yield move("no row is short", "rows that are never at rest", [0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2])
    yield move("nobody there may move", "one that is away, or fetches its row, moves on", [0, 0, 1], away=(0, 1))
    yield move("only one there may move", "", [0, 0, 0, 1], away=(0, 2))
    yield move("who is away drives nobody out", "a row from which its honest holders are moved", [0, 0, 0, 1, 2], few=5, away=(2,))
    yield move("nobody holds anything", "", [])
    row = lambda weighted, ripe=None, seated=True: dict(seated=seated, weighted=weighted, ripe=ripe)
    plan = lambda name, rule, why, rows, few=5, held=2: case(name, rule, why, "row_plan", few=few, held=held, round=9, rows=rows)
    counts = [row(n) for n in range(7)]
    yield plan("one to six contributions", "STAND-10", "a row of `few` is thin, or one of `held` is not held", counts)
    yield plan("nothing is held", "ROW-5", "0 at most is no contribution, and so a row of newcomers would wait", counts, held=0)
    yield plan("nothing is thin", "STAND-10", "", counts, few=0, held=0)
    yield plan("closed rows", "ROW-6", "a row without a seat is thin, or takes a step by nothing", [row(0, seated=False), row(6)])
    yield plan("ripe updates", "ROW-6", "two steps of one row, or the newer one first", [row(6, 7), row(1, 8), row(0, 5, seated=False), row(1), row(3, 8)])


def family_contribution():
    yield case("small", "COMMIT-1", "the tree follows the layout's chunks", "contribution", model=SMALL_MODEL, multiplier=37)
    chunk = lambda name, why, data, count: case(name, "COMMIT-6", why, "chunk", bytes=data, count=count)
    least = "two encodings would be two commitments to one Q"
    yield chunk("nothing", "", "", 0)
    yield chunk("zeros", "", "00", 5)
    yield chunk("one bit", "the sign is the only bit", "0105", 3)
    yield chunk("two bits", "the lowest bits come first; an integer does not begin a byte", "023901", 5)
    yield chunk("three bits", "an integer crosses a byte", "03e301", 3)
    yield chunk("four bits", "sign extension", "0487", 2)
    yield chunk("eight bits", "sign extension", "087f80ff", 3)
    yield chunk("nine bits", "sign extension", "097f0100", 2)
    yield chunk("31 bits", "an integer crosses 64 bits", "1fffffff3f000000e0ffffff0f", 3)
    yield chunk("32 bits", "the smallest integer", "20ffffff7f00000080", 2)
    yield chunk("33 bits", "a width beyond the integers", "21000000000100000000", 1)
    yield chunk("two packs", "a width holds for 64 integers", "02" + "55" * 16 + "0a2c01", 65)
    yield chunk("two packs, whole", "a width holds for 64 integers", "02" + "55" * 16 + "0303", 66)
    yield chunk("a second pack of zeros", "", "04" + "f7" * 32 + "00", 100)
    yield chunk("zeros in one bit", least, "0100", 2)
    yield chunk("ones in three bits", least, "0309", 2)
    yield chunk("a second pack too wide", least, "02" + "55" * 16 + "0409", 65)
    yield chunk("a bit after the last integer", least, "022141", 3)
    yield chunk("empty", "no width", "", 1)
    yield chunk("no second width", "a pack is missing", "02" + "55" * 16, 65)
    yield chunk("short", "an integer is missing", "08010203", 4)
    yield chunk("long", "an integer too many", "08010203", 2)
    yield case("tensors beyond a block", "COMMIT-1", "a chunk ends with its block", "contribution", model=BLOCKY_MODEL,
               multiplier=4099)


def family_assignment():
    state, run = fill(0x22), RUN
    for number in (0, 1, 2**32 - 1):
        yield case(f"seed of round {number}", "ASSIGN-1", "everyone draws other data", "seed", run=run, round=number, state=state)
    yield case("calibration", "ASSIGN-2", "first exponents differ", "calibration", run=run)
    seed = ref.round_seed(un(run), 7, un(state)).hex()
    for slot, seats, position, total in ((0, 1, 0, 1), (3, 4, 5, 1000), (255, 256, 255, 2**40), (1, 4, 0, 3)):
        yield case(f"leaf {position} of slot {slot} of {seats}", "ASSIGN-3", "a member picks its data", "windows",
                   seed=seed, slot=slot, seats=seats, position=position, count=6, windows=total)
    for name, why, leaf, total, rows, row, share in (
            ("two rows", "the first candidate is taken though it is another row's", 0, 1000, 2, 1, 1),
            ("the first of five rows", "", 3, 1000, 5, 0, 1),
            ("the last of five rows", "", 3, 1000, 5, 4, 1),
            ("rows of neighbouring windows", "", 9, 2**30, 5, 2, 17),
            ("64 rows", "many draws for one window", 2**40, 100_000, 64, 63, 1),
            ("a small row", "a window of another row though there is one", 7, 301, 3, 1, 200),
            ("a row without windows", "a draw without end, or no window: the last candidate is taken", 7, 1000, 3, 1, 1000),
            ("no row open", "", 7, 1000, 3, 1, 0),
            ("one window, of the row", "", 7, 1, 2, 0, 1),
            ("one window, of another row", "", 7, 1, 2, 1, 1),
            ("one row", "other windows than those of a run without rows", 7, 1000, 1, 0, 1)):
        yield case(f"windows of a row: {name}", "ASSIGN-10", why, "windows_of_row", seed=seed, leaf=leaf, count=6, windows=total,
                   rows=rows, row=row, share=share)
    for leaf, window in ((0, 0), (0, 1), (9, 0), (2**40, 3)):
        yield case(f"mask of window {window} of leaf {leaf}", "ASSIGN-8", "a member picks what is easy to predict", "masked",
                   model=ALBERT_MODEL, seed=seed, leaf=leaf, window=window)
    for slots in ([], [4], [0, 1], [0, 1, 2, 5, 7], list(range(40))):
        yield case(f"{len(slots)} aggregators", "ASSIGN-5", "values do not depend on it, addresses do", "parts",
                   model=SMALL_MODEL, seed=seed, aggregators=slots)
    for segment, steps in ((0, 1), (7, 3), ((1 << 40) + 1, 2)):
        yield case(f"segment {segment} of {steps} steps", "ASSIGN-11", "leaves of another slot", "windows_of_segment", seed=seed, segment=segment,
                   manifest=ref.write("Manifest", changed_manifest({**locally(segment=steps), "training.leaf_windows": 2})).hex())
    yield case("two planes", "LOCAL-9", "moments that nobody reduces", "parts", model=BLOCKY_MODEL, seed=seed, aggregators=[1, 4, 6], planes=2)
    yield case("large blocks", "ASSIGN-5", "ties go to the lowest block and part", "parts", model=BLOCKY_MODEL, seed=seed,
               aggregators=[0, 1, 2])
    for slots in ([], [4], [0, 1], [0, 1, 2, 5, 7], list(range(40))):
        yield case(f"second ones of {len(slots)} aggregators", "ASSIGN-9", "a pair is arranged", "seconds", model=SMALL_MODEL, seed=seed,
                   aggregators=slots)
    for part, failed, slots in ((0, 2, [0, 1, 2, 5, 7]), (2, 7, [0, 1, 2, 5, 7]), (3, 0, [0, 1, 2, 5, 7]), (9, 4, [4]), (3, 9, [1, 2, 3])):
        yield case(f"part {part} without {failed}", "ASSIGN-7", "the steward picks the next one", "reassign", model=SMALL_MODEL, seed=seed,
                   part=part, shard=0, failed=failed, aggregators=slots)
    six, eleven = list(range(6)), list(range(11))
    # Name, why, model, the row of each slot, aggregators.
    seated = (
        ("one row, a mixture", "rows that are not there yet", MIXED_MODEL, None, six),
        ("three rows that come later", "parts of rows that are not there yet", ROWS_MODEL, None, six),
        ("three rows", "whoever contributes to a row reduces it", ROWS_MODEL, [0, 1, 2, 0, 1, 2], six),
        ("three rows, one closed", "a part of a row without a contribution", ROWS_MODEL, [0, 2, 2, 0, 0, 2], six),
        ("three rows, two closed", "a trunk as light as the one row", ROWS_MODEL, [1] * 6, six),
        ("fewer aggregators than shards", "a shard without a part", ROWS_MODEL, [0, 1, 2, 0, 1, 2], [1, 3]),
        ("one aggregator", "nobody is able", ROWS_MODEL, [0, 1, 2, 0], [2]),
        ("all aggregators in one row", "the other rows' parts on one of them", ROWS_MODEL, [0, 1, 1, 2, 1, 1], [1, 2, 4, 5]),
        ("one aggregator outside", "a part's second one is its first", ROWS_MODEL, [0, 0, 0, 0, 1], [0, 1, 2, 3, 4]),
        ("no aggregator", "", ROWS_MODEL, [0, 1, 2], []),
        ("as many aggregators as a part has blocks", "a part without a block", ROWS_MODEL, [n % 3 for n in range(120)], list(range(120))),
        ("rows of large blocks", "loads by numbers of blocks", BLOCKY_ROWS, [n * n % 2 for n in eleven], eleven),
    )
    for name, why, model, rows, slots in seated:
        inputs = dict(model=model, seed=seed, aggregators=slots, **({} if rows is None else dict(rows=rows)))
        yield case(f"parts, {name}", "ASSIGN-5", why, "parts", **inputs)
        yield case(f"second ones, {name}", "ASSIGN-9", why, "seconds", **inputs)
    # Name, why, aggregators, the class of each slot.
    uneven = (
        ("three fast ones", "a slow line has a part", [0, 1, 2, 3], [8, 8, 2, 8]),
        ("one slow one", "as many parts as aggregators", [0, 1, 2, 3], [8, 6, 8, 8]),
        ("classes of odd numbers", "speeds that are no powers of two", [0, 2, 3, 4, 6], [0, 16, 7, 5, 6, 0, 3]),
        ("equal aggregators among others", "more parts for members that reduce none", [1, 2, 4], [0, 9, 9, 16, 9]),
        ("two", "one of them has more than half", [0, 1], [16, 0]),
        ("one that is far faster", "more than half for one member", [0, 1, 2], [16, 0, 0]),
        ("one that is faster than eleven", "more than a third for one of twelve", list(range(12)), [16] + [0] * 11),
        ("sixty-four", "classes that do not count yet", list(range(64)), [n * 7 % 17 for n in range(64)]),
        ("sixty-five", "parts too coarse for classes", list(range(65)), [n * 7 % 17 for n in range(65)]),
    )
    for name, why, slots, classes in uneven:
        yield case(f"uneven parts, {name}", "ASSIGN-12", why, "parts", model=BLOCKY_MODEL, seed=seed, aggregators=slots, classes=classes)
    for name, times in (
            ("equal lines", [[8, 5000], [8, 5400], [8, 4900], [8, 5100]]), ("one slow line", [[8, 5000], [8, 30000], [8, 4900], [8, 5100]]),
            ("one fast line", [[8, 5000], [8, 5400], [8, 1], [8, 5100]]), ("short times", [[8, 1], [8, 999], [8, 1413], [8, 20]]),
            ("edges", [[8, 14142], [8, 14143], [8, 10000], [8, 7071], [8, 7072], [8, 10001], [8, 9999], [8, 19999], [8, 20000], [8, 1]]),
            ("an odd number", [[8, 9000], [8, 3000], [8, 30000]]), ("lowest and highest", [[0, 90000], [1, 90000], [16, 1], [16, 2], [9, 3000], [9, 3000]]),
            ("two", [[8, 1000], [8, 90000]]), ("nobody", [])):
        yield case(f"classes by time, {name}", "ROUND-40", "members that fall or rise by chance", "timed_classes", times=times)
    yield case("part 2 again, of uneven ones", "ASSIGN-7", "a slow line before others", "reassign", model=SMALL_MODEL, seed=seed, part=2,
               shard=0, failed=7, aggregators=[0, 1, 2, 5, 7], passed=[1, 5])
    rows = [0, 1, 2, 0, 1, 2]
    for name, part, shard, failed, slots, of in (
            ("of the trunk", 1, 0, 2, six, rows), ("of row 0", 5, 1, 4, six, rows), ("of row 2", 7, 3, 0, six, rows),
            ("of row 1 with nobody outside", 4, 2, 1, [1, 3, 4], [0, 1, 1, 1, 1]), ("of row 0 with one outside", 3, 1, 5, [0, 1, 3], [0, 0, 1, 2, 0, 1]),
            ("of row 0 of a state with one", 3, 1, 4, six, None)):
        yield case(f"part {name} again", "ASSIGN-7", "members of the row before others, or another order among equals", "reassign",
                   model=ROWS_MODEL, seed=seed, part=part, shard=shard, failed=failed, aggregators=slots,
                   **({} if of is None else dict(rows=of)))


def family_grid():
    q = lambda name, why, gradient, exponent=0, dither="0x00000000": case(
        name, "GRID-2", why, "quantise", gradient=f"0x{gradient:08x}", exponent=exponent, word=dither)
    half, most = "0x80000000", "0xffffffff"
    yield q("zero", "", 0)
    yield q("−0 with most dither", "", 1 << 31, dither=most)
    yield q("just below a half", "", 0x3f000000, dither="0x7fffffff")
    yield q("a half", "", 0x3f000000, dither=half)
    yield q("−¼ rounds down", "truncation instead of floor biases towards zero", 0xbe800000)
    yield q("−¼ and most dither", "", 0xbe800000, dither=most)
    yield q("low 8 bits of the word do not count", "a dither of 32 bits", 0x3f7fffff, dither="0x000000ff")
    yield q("a tiny negative", "", 0x80000001, -149 + 29)
    yield q("smallest subnormal, step 2^−120", "subnormals flushed to zero", 1, -120)
    yield q("largest, step 2^100", "", 0x7f7fffff, 100)
    yield q("saturates above", "", 0x7f7fffff)
    yield q("saturates below", "", 0xff7fffff)
    yield q("2²² is kept", "", 0x4a800000)
    yield q("2²² with dither", "", 0x4a800000, dither=most)
    yield q("just inside −2²²", "", 0xca7fffff, dither=half)
    yield q("NaN", "a poisoned sum", 0x7fc00000, dither=most)
    yield q("−infinity", "a poisoned sum", 0xff800000)
    for i in range(12):
        source = random.Random(i)
        yield q(f"random {i}", "", source.getrandbits(31) % 0x43000000 + (i % 2 << 31), source.randint(-20, 4),
                f"0x{source.getrandbits(32):08x}")
    seed = fill(0x33)
    yield case("dither", "GRID-1", "", "dither", seed=seed, leaf=5, first=0, count=18)
    yield case("dither, later", "GRID-1", "position is the coefficient, not the call", "dither", seed=seed, leaf=5, first=63, count=4)
    yield case("dither of another leaf", "GRID-1", "", "dither", seed=seed, leaf=2**33, first=0, count=2)
    for name, rms, bits, last in (
            ("one", 0x3ff0000000000000, 8, -8), ("just below one", 0x3fefffffffffffff, 8, -8),
            ("zero", 0, 8, 3), ("subnormal", 1, 8, 3), ("smallest normal", 1 << 52, 8, 3),
            ("negative", 0xbff0000000000000, 8, 3), ("NaN", 0x7ff8000000000000, 8, 3),
            ("infinite", 0x7ff0000000000000, 8, 3), ("huge", 0x7fefffffffffffff, 1, 99), ("tiny", 0x3c00000000000000, 14, -20)):
        yield case(f"exponent: {name}", "GRID-4", "a logarithm in the library instead of the exponent field", "exponent",
                   rms=word(rms), grid_bits=bits, fallback=3, last=last)
    for name, bits in (("zero", 0), ("−0", 1 << 63), ("2.5 units", 0x3e84000000000000), ("3.5 units", 0x3e8c000000000000),
                       ("−2.5 units", 0xbe84000000000000), ("1.7 nats", 0x3ffb333333333333), ("NaN", 0x7ff8000000000000),
                       ("infinite", 0x7ff0000000000000), ("2¹⁶ nats", 0x40f0000000000000), ("just below 2¹⁶", 0x40efffffffffffff),
                       ("−2¹⁶", 0xc0f0000000000000), ("overflows", 0x7fefffffffffffff)):
        yield case(f"loss: {name}", "GRID-6", "ties, or losses that are no numbers", "loss", mean=word(bits))


def family_fingerprint():
    freeze = fill(0x44)
    for byte in (0, 0x44, 0xff):
        yield case(f"points of {byte:02x}", "SKETCH-1", "0 and 1 are no points", "points", freeze=fill(byte))
    at = list(map(word, ref.points(un(freeze))))
    f = lambda name, why, q, offset=0, points=at: case(name, "SKETCH-2", why, "fingerprint", points=points, offset=offset, q=q)
    yield f("of nothing", "", [])
    yield f("of one", "r⁰ comes first", [5])
    yield f("negatives", "a negative is p − |q|, not its 64-bit complement", [-1, -2, 3, -(2**31), 2**31 - 1])
    yield f("a piece at 1", "", [-1, 7], 1)
    yield f("a piece at 2³³ − 2", "offsets beyond 32 bits", [9, -9], 2**33 - 2)
    yield f("adds to p", "results below p", [1, -1], points=[word(1), word(ref.GOLDILOCKS - 1)])
    edge = [word(2), word(ref.GOLDILOCKS - 1)]
    yield f("edge points", "", [-(2**31)] * 5 + [2**31 - 1] * 5, points=edge)
    for count in (1023, 1024, 1025, 2500):
        yield case(f"{count} large ones", "SKETCH-2", "sums that overflow before they are reduced", "fingerprint_rule",
                   points=at, count=count, multiplier=2654435761, shift=2**31)


def family_tolerance():
    for name, model in (("small", SMALL_MODEL), ("of blocks", BLOCKY_MODEL), ("masked", ALBERT_MODEL)):
        yield case(f"groups of a model: {name}", "TOL-1", "figures of one group are held against another's bound", "groups",
                   model=model)
    q = [(7919 * c) % 4001 - 2000 for c in range(300)]
    near = [v + (c % 9 == 0) for c, v in enumerate(q)]
    far = [-v for v in q]
    d = lambda name, why, own, said, ranges=((0, 100), (100, 300)): case(
        name, "TOL-3", why, "deviation", seed=fill(0x33), groups=[list(r) for r in ranges], own=own, said=said)
    yield d("itself", "", q, q)
    yield d("off by one in places", "what is nobody's fault is held against somebody", q, near)
    yield d("the opposite", "a lie seems small", q, far)
    yield d("of nothing", "division by zero", [0] * 300, near)
    large = [2**31 - 1 if c % 2 else -(2**31) for c in range(300)]
    yield d("the largest", "sums that overflow", large, [v // 2 for v in large])
    verifiers = [fill(byte) for byte in range(0x40, 0x4a)]
    yield case("a jury of ten", "DUTY-11", "parties judge, or too many do", "jury", outcome=fill(0xaa), culprit=fill(0x01),
               accuser=verifiers[3], verifiers=verifiers)
    yield case("a jury of three", "DUTY-11", "parties judge", "jury", outcome=fill(0xab), culprit=verifiers[0],
               accuser=verifiers[1], verifiers=verifiers[:3])


def family_coins():
    secret = fill(0x55)
    shape = dict(secret=secret, first_round=10, rounds=3, leaf_coins=4)
    for kind, number, k in (("Node", 10, 0), ("Leaf", 10, 0), ("Leaf", 11, 3), ("Node", 12, 0), ("Leaf", 12, 3)):
        yield case(f"{kind} {number}/{k}", "COIN-2", "place in the tree", "coin", **shape, kind=kind, round=number, k=k)
    yield case("the only one", "COIN-2", "a tree of one", "coin", secret=secret, first_round=0, rounds=1, leaf_coins=0,
               kind="Node", round=0, k=0)
    terms, opening = terms_and_opening(**shape, kind="Leaf", round=11, k=3)
    pack = lambda terms, opening: dict(terms=ref.write("CoinTerms", terms).hex(), opening=ref.write("CoinOpening", opening).hex())
    show = lambda name, why, terms=terms, opening=opening: case(name, "COIN-3", why, "open_coin", **pack(terms, opening))
    yield show("good", "")
    yield show("another coin", "a coin is chosen after the fact", opening={**opening, "coin": fill(1)})
    yield show("of another round", "a coin serves twice", opening={**opening, "round": 12})
    yield show("of another number", "a coin serves twice", opening={**opening, "k": 2})
    yield show("as a node coin", "a coin serves twice", opening={**opening, "kind": "Node", "k": 0})
    yield show("node coin 1", "another name of leaf coin 0", opening={**opening, "kind": "Node", "k": 1})
    yield show("past the last number", "another name of the next round's node coin", opening={**opening, "k": 4})
    yield show("before the first round", "", opening={**opening, "round": 9})
    yield show("past the last round", "", opening={**opening, "round": 13})
    yield show("another root", "", terms={**terms, "root": fill(1)})
    yield show("another shape", "", terms={**terms, "leaf_coins": 5})
    yield show("no rounds", "", terms={**terms, "rounds": 0})
    yield show("too many coins", "", terms={**terms, "rounds": 2**22})
    yield show("past the last round number", "", terms={**terms, "first_round": 2**32 - 2})
    node = pack(*terms_and_opening(**shape, kind="Node", round=11, k=0))
    members, freeze = [fill(i) for i in range(1, 13)], fill(0x66)
    for ppm in (0, 1, 250_000, 500_000, 999_999, 1_000_000):
        yield case(f"selects at {ppm} ppm", "COIN-4", "verifier and steward disagree on who is audited", "select", **node,
                   freeze=freeze, members=members, share_ppm=ppm)
    for ppm in (0, 50_000, 500_000, 1_000_000):
        yield case(f"selects blocks at {ppm} ppm", "COIN-20", "who accuses cannot show that it was drawn", "select_block", **node,
                   freeze=freeze, blocks=list(range(24)), blocks_ppm=ppm)
    for verifiers in (1, 2, 7):
        yield case(f"a block's inspector of {verifiers}", "COIN-21", "a block is inspected twice, or by nobody",
                   "block_inspector", outcome=fill(0xaa), blocks=list(range(24)), verifiers=verifiers)
    leaf = pack(terms, opening)
    for m, a in ((1, 1), (8, 0), (8, 1), (8, 3), (8, 7), (8, 8), (8, 9), (9, 1), (64, 1), (64, 9), (255, 1), (256, 1), (256, 32), (2, 1)):
        yield case(f"{a} of {m}", "COIN-5", "verifier and steward disagree on what is recomputed", "draw", **leaf,
                   freeze=freeze, table=fill(0x77), m=m, a=a)
    for count in (0, 1, 2, 3, 12):
        for slot in (0, 1, 255):
            yield case(f"inspector of slot {slot} among {count}", "DUTY-1", "work is done twice, or by nobody", "inspector",
                       outcome=fill(0xaa), slot=slot, verifiers=members[:count])
    gone = members[:4] + members[5:]
    yield case("inspector of slot 0 without the fifth", "DUTY-6", "who goes on moves what others inspect", "inspector",
               outcome=fill(0xaa), slot=0, verifiers=gone)
    for ppm, others in ((0, 1), (100_000, 1), (500_000, 1), (500_000, 3), (1_000_000, 1), (1_000_000, 2)):
        yield case(f"rechecks at {ppm} ppm among {others}", "DUTY-7", "nobody can tell which rechecks were due", "recheck",
                   **node, verdicts=members, recheck_ppm=ppm, others=others)


def family_audit():
    rows = [{"sketch": {"Fingerprint": [5 << 40, 6]}, "loss": -7},
            {"sketch": {"Projections": [-(2**63), 3]}, "loss": 2**40}]
    kinds = {name: ref.STRUCTS["TableOpening"]["rows"] if name == "rows" else ref.STRUCTS["Verdict"]["results"] for name in ("rows", "results")}
    results = [{"position": i, "row": row} for i, row in enumerate(rows)]
    for count in (0, 1, 2):
        yield case(f"table of {count}", "AUDIT-3", "the seal binds nothing", "table", salt=fill(0x88),
                   rows=ref.write(kinds["rows"], rows[:count]).hex())
        yield case(f"results of {count}", "AUDIT-5", "the seal binds nothing", "results", salt=fill(0x99),
                   results=ref.write(kinds["results"], results[:count]).hex())


def family_calls():
    u = lambda name, rule, why, logits: case(name, rule, why, "units", logits=logits)
    unit = 2.0**-16
    reals = lambda *values: [bits(value) for value in values]
    yield u("ties", "CALL-2", "halves rounded away from zero", reals(*(unit * half / 2 for half in (1, 3, 5, 7, -1, -3, -5))))
    yield u("near ties", "CALL-2", "rounded twice", ["36ffffff", "37000001", "b7000001", "b6ffffff", "37bfffff", "37c00001"])
    yield u("ordinary", "CALL-2", "", reals(0.0, 1.0, -1.0, 0.1, -3.75, 17.03125, 32767.5))
    yield u("signs of zero, subnormals", "CALL-2", "the sign of zero kept", ["00000000", "80000000", "00000001", "807fffff", "00800000"])
    yield u("saturation", "CALL-2", "an integer that wraps", reals(32767.998, 32768.0, -32768.0, 1e30, -1e30))
    yield u("infinities", "CALL-2", "an infinity taken for no number", ["7f800000", "ff800000"])
    yield u("no numbers", "CALL-2", "payload or sign of a NaN kept", ["7fc00000", "ffc00000", "7f800001", "ffffffff"])
    yield u("none", "CALL-3", "", [])
    yield u("two", "CALL-3", "order or width of the integers", reals(1.0, -2.0))
    yield u("two, exchanged", "CALL-3", "the digest binds no order", reals(-2.0, 1.0))
    sound, albert, tolerant = (ref.write("Manifest", changed_manifest(changes)) for changes in (
        {}, {"model.family": masked()}, {"profile": "F32"}))
    ask = lambda tokens=(1, 2, 3), positions=1, row=0: dict(round=5, root=fill(9), row=row, tokens=list(tokens), positions=positions)
    a = lambda name, why, value, manifest=sound: case(name, "CALL-1", why, "askable", manifest=manifest.hex(),
                                                      ask=ref.write("Ask", value).hex())
    yield a("one token", "", ask([255]))
    yield a("a whole window", "", ask(range(32), 32))
    yield a("no token", "a pass over nothing", ask([], 0))
    yield a("more than a window", "positions that the model has not", ask(range(33)))
    yield a("an unknown token", "a row beyond the embedding", ask([1, 256]))
    yield a("no position", "an answer without logits", ask(positions=0))
    yield a("more positions than tokens", "", ask(positions=4))
    yield a("another row", "", ask(row=1))
    yield a("masked tokens", "", ask(), albert)
    yield a("a profile with tolerance", "two honest machines contradict each other", ask(), tolerant)
    run = ref.tagged("run", sound)

    def answered(asked, author=7, shown=None, run=run):
        question = ref.envelope(un(fill(30)), run, "Ask", ref.write("Ask", asked))
        said = dict(ask=ref.envelope_digest(question, "Ask").hex(), logits=fill(8))
        answer = ref.envelope(un(fill(author)), run, "Answer", ref.write("Answer", said))
        parts = [ref.decode("Signed", part) for part in (shown or question, answer)]
        return ref.write("Evidence", dict(Answer=dict(zip(("ask", "answer"), parts)))).hex()

    e = lambda name, why, evidence: case(name, "CALL-6", why, "answer_fits", manifest=sound.hex(), evidence=evidence)
    other_words = ref.envelope(un(fill(30)), run, "Ask", ref.write("Ask", ask([1, 2, 4])))
    other_asker = ref.envelope(un(fill(31)), run, "Ask", ref.write("Ask", ask()))
    yield e("question and answer", "", answered(ask()))
    yield e("another question of the asker", "a true answer beside a question that it was not given to", answered(ask(), shown=other_words))
    yield e("the question of another asker", "likewise", answered(ask(), shown=other_asker))
    yield e("a question that cannot be asked", "a pass that the judge cannot make", answered(ask(row=1)))
    yield e("of another run", "", answered(ask(), run=un(fill(0x11))))
    good = answered(ask())
    yield e("the answer's signature changed", "somebody else's word", good[:-140] + f"{int(good[-140:-138], 16) ^ 1:02x}" + good[-138:])


def family_standing():
    w = lambda name, why, probation, vouchers, credits, m=(1, 7, 256): case(
        name, "STAND-3", why, "effective", probation=probation, vouchers=vouchers, credits=credits, m=list(m))
    yield w("no probation", "everyone counts at once", 0, 2, [])
    yield w("nobody has recomputed anything", "an identity that cost nothing has weight", 100, 2, [])
    yield w("one verifier, however much", "a colluding verifier makes its friends weighty", 100, 2, [2**32 - 1])
    yield w("one verifier and a crumb", "a colluding verifier needs only one leaf of another one", 100, 2, [99, 1])
    yield w("two halves", "", 100, 2, [50, 50])
    yield w("a leaf short", "", 100, 2, [50, 49])
    yield w("three of two", "more verifiers than needed", 100, 2, [40, 40, 20])
    yield w("more than its weight", "weight beyond what was recomputed", 100, 2, [60, 70])
    yield w("an odd probation", "the share rounds up, or two verifiers never end it", 7, 2, [4, 3])
    yield w("one is enough", "", 7, 1, [7])
    rate = lambda name, why, *settings: case(name, "STAND-4", why, "audit_ppm", share_ppm=settings[0], newcomer_ppm=settings[1],
                                             halving=settings[2], credits=[0, 1, 99, 100, 199, 200, 1000, 3200, 6400, 2**31])
    yield rate("halves", "verifier and steward disagree on who is audited", 100_000, 500_000, 100)
    yield rate("no newcomer's rate", "", 500_000, 0, 1)
    yield rate("each leaf", "a shift by 32 or more", 0, 1_000_000, 1)
    yield rate("down to nothing", "below the run's rate", 3, 1_000_000, 50)
    b = lambda name, rule, why, accused, credit, opened, doubt=0, probation=100: case(
        name, rule, why, "voucher_banned", probation=probation, accused=accused, credit=credit, opened=opened, doubt=doubt)
    yield b("a false accusation", "STAND-1", "a hostile verifier takes from others what they have earned", True, 60, 6)
    yield b("a false acquittal", "STAND-11", "what a liar has passed is not examined by others", False, 60, 6)
    yield b("a false accusation, nothing is open again", "STAND-1", "likewise", True, 60, 0)
    yield b("more is open than was credited", "STAND-1", "credit below zero", True, 2, 6)
    yield b("in doubt before", "STAND-11", "", True, 10, 4, 95)
    yield b("more than a probation", "STAND-11", "one convict has all others audited for ever", False, 4000, 0, 2**32 - 1)
    yield b("no probation", "STAND-11", "", False, 4000, 8, 0, 0)


def family_aggregation():
    w = lambda name, m, cap, why="": case(name, "AGG-1", why, "weights", m=m, cap_ppm=cap)
    yield w("equal", [3, 3, 3, 3, 3], 200_000)
    yield w("one giant", [256, 1, 1, 1, 1, 1], 200_000, "the cap is a share of the capped total, not of the first one")
    yield w("two giants", [200, 100, 3, 2, 1, 7, 9, 1], 200_000)
    yield w("few members", [10, 1, 1], 200_000, "with n members nobody can stay below 1/n")
    yield w("alone", [9], 1)
    yield w("some absent", [5, 0, 7, 0, 90], 200_000, "who summed nothing is no member")
    yield w("no cap", [1, 2, 3], 1_000_000)
    yield w("none", [0, 0], 200_000)
    yield w("nobody", [], 200_000)
    yield w("primes", [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 256], 150_000, "flooring")
    source = random.Random(5)
    honest = [4, 4, 3, 8, 1]
    q = [[source.randint(-50, 50) * m + 20 * m for _ in range(19)] for m in honest]
    attacked = q[:4] + [[-10 * v for v in q[4]]]
    equal, by_work = [65536] * 5, [m << 16 for m in honest]
    def b(name, rule, why, values, weight, kind="CenteredClip", iterations=5, m=honest, radius="0x3fa00000", assumed=250_000, mixing=False):
        return case(name, rule, why, "block", rule=kind, radius=radius, iterations=iterations, m=m, weights=weight, q=values,
                    assumed_ppm=assumed, mixing=mixing)
    for kind in ("CenteredClip", "Mean", "Median"):
        yield b(f"{kind}, honest", "AGG-3", "order of sums, contraction, rounding", q, by_work, kind)
        yield b(f"{kind}, one flipped ×10", "AGG-3", "", attacked, equal, kind)
    yield b("no iteration", "AGG-6", "", q, by_work, iterations=0)
    yield b("one iteration", "AGG-6", "", q, by_work, iterations=1)
    yield b("alone", "AGG-2", "s = 0 leaves v₀", q[:1], [65536], m=[4])
    yield b("all alike", "AGG-5", "0/0", [q[0]] * 3, [65536] * 3, m=[4] * 3)
    yield b("half alike", "AGG-5", "s = 0 leaves v₀ though others differ", [q[0]] * 3 + [q[1]], [65536] * 4, m=[4] * 4)
    yield b("two of equal weight", "AGG-2", "the lower of two medians", q[:2], [65536] * 2, m=[4] * 2)
    yield b("ties of weight", "AGG-2", "half is reached, not passed", q[:3], [3, 1, 2], m=honest[:3])
    wide_q = [[source.randint(-(2**22), 2**22) for _ in range(300)] for _ in range(7)]
    yield b("many coefficients", "AGG-4", "eight partial sums, also across strips", wide_q, [9, 8, 7, 6, 5, 4, 3], m=[1, 2, 3, 4, 5, 6, 7])
    others = {"TrimmedMean": "AGG-13", "GeometricMedian": "AGG-14", "Krum": "AGG-15", "MultiKrum": "AGG-15", "FixedRadiusClip": "AGG-16"}
    for kind, rule in others.items():
        radius = "0x43480000" if kind == "FixedRadiusClip" else "0x3dcccccd"  # 200, 0.1
        yield b(f"{kind}, honest", rule, "order of sums, contraction, rounding", q, by_work, kind, radius=radius)
        yield b(f"{kind}, one flipped ×10", rule, "the flipped one is left", attacked, equal, kind, radius=radius)
        yield b(f"{kind}, alone", rule, "", q[:1], [65536], kind, m=[4], radius=radius)
        yield b(f"{kind}, all alike", rule, "ties, 0/0", [q[0]] * 3, [65536] * 3, kind, m=[4] * 3, radius=radius)
        yield b(f"{kind}, one without weight", "AGG-11", "who has no weight is a neighbour, or moves n", attacked, equal[:4] + [0], kind, radius=radius)
        yield b(f"{kind}, nobody assumed", rule, "", q, by_work, kind, assumed=0, radius=radius)
        yield b(f"{kind}, most assumed", rule, "", attacked, equal, kind, assumed=499_999, radius=radius)
        yield b(f"{kind}, many coefficients", rule, "", wide_q, [9, 8, 7, 6, 5, 4, 3], kind, m=[1, 2, 3, 4, 5, 6, 7], radius=radius, assumed=300_000)
    for kind in ("CenteredClip", "Mean", "Median", *others):
        yield b(f"mixed, {kind}", "AGG-17", "", attacked, by_work, kind, mixing=True)
        yield b(f"mixed, {kind}, one without weight", "AGG-17", "", attacked, [0] + equal[1:], kind, mixing=True)
    yield b("mixed, all alike", "AGG-17", "ties", [q[0]] * 3, [65536] * 3, m=[4] * 3, assumed=400_000, mixing=True)
    yield b("trimmed in part", "AGG-13", "a value is cut off in part", q, [3, 1, 2, 5, 4], "TrimmedMean", assumed=400_000)
    bits = lambda values: [f"0x{v:08x}" for v in values]
    o = lambda name, why, q, m, values, exponent=0: case(name, "AGG-20", why, "objects", q=q, m=m, values=bits(values), exponent=exponent)
    near, four, more = [0x40400000, 0xbfc00000], [0x41580000, 0xc0900000], [0x41580001, 0xc0900001]
    yield o("its own", "", [6, -3], 2, near)
    yield o("three lengths away", "the bound itself is near", [6, -3], 2, four)
    yield o("far by a step of 2", "", [6, -3], 2, [0x41700000, 0xc0c00000], 1)
    yield o("near by a step of 4", "an objection to what was rounded", [6, -3], 2, [0x41700000, 0xc0c00000], 2)
    yield o("a little more", "", [6, -3], 2, more)
    yield o("no number", "a comparison that is false for what is no number", [6, -3], 2, [0x7fc00000, 0xbfc00000])
    yield o("infinite", "", [6, -3], 2, [0x7f800000, 0xbfc00000])
    yield o("nothing from nothing", "", [0, 0], 3, [0, 0x80000000])
    yield o("three steps from nothing", "", [0, 0], 3, [0x40400000, 0xc0400000])
    yield o("four steps from nothing", "", [0, 0], 3, [0x40800000, 0xc0400000])
    l = lambda name, rule, why, **inputs: case(name, rule, why, "objects", exponent=0, **{"m": 4, "scale": word(struct.unpack("<Q", struct.pack("<d", 7.25))[0]),
                                                                                       **inputs})
    yield l("own segments, stretched", "LOCAL-6", "a contributor that compares a segment with a round", q=[24, -12], values=bits([0x422e0000, 0xc1ae0000]))
    yield l("own segments, not stretched", "LOCAL-6", "", q=[24, -12], values=bits([0xc2f00000, 0x42700000]))
    once = dict(m=1, scale=word(struct.unpack("<Q", struct.pack("<d", 1.0))[0]))
    yield l("moments a little apart", "LOCAL-7", "an objection to every step of their grid", q=[0, 0, 1], values=bits([0x40000000, 0xbf800000, 0]), **once)
    yield l("moments far apart", "LOCAL-7", "moments that are poisoned", q=[0, 0, 1], values=bits([0xc1c00000, 0, 0]), **once)
    for m, weights in (([4], [65536]), ([1, 4, 64], [65536, 262144, 1000000]), ([3, 3, 0], [5, 7, 0]), ([64, 1], [1 << 40, 1])):
        yield case(f"segments taken, {len(m)} of {weights[0]}", "LOCAL-6", "a mean that is not by weight", "segments_taken", m=m, weights=weights)
    t = lambda name, why, values, grid_bits=1, most="0x40200000": case(name, "AGG-22", why, "trust", values=bits(values), most=most,
                                                                       grid_bits=grid_bits)
    wide_row = [0x3f800000 + 0x00123457 * c for c in range(19)]
    yield t("what an expert is trusted with", "", [0x41200000, 0xc1200000])
    yield t("a little more", "", [0x41200001, 0xc1200000])
    yield t("a million times more", "second moments that are filled", [0x4b189680, 0xbf800000, 0, 0x80000000])
    yield t("sums in lanes", "squares added in another order", wide_row, 2)
    yield t("as fine as may be", "", wide_row, 14)
    yield t("the largest of f32", "squares of f32 that overflow", [0x7f7fffff, 0xff7fffff, 0x7f7fffff])
    yield t("nothing", "0 over 0", [0, 0x80000000])
    r = lambda name, why, values, exponent=2, block=3: case(name, "AGG-23", why, "rounded", values=bits(values), exponent=exponent,
                                                            freeze=fill(9), block=block)
    yield r("many", "words in another order", wide_row)
    yield r("many, of another block", "one dither for all blocks", wide_row, block=4)
    yield r("many, finer", "", wide_row, 0)
    yield r("multiples", "what is on the grid moves", [0x40800000, 0xc1000000, 0, 0x42c80000])
    yield r("beyond", "no saturation, or another one", [0x7f7fffff, 0xff7fffff, 0x4b800000, 0xcb800000])
    yield r("zeros", "−0", [0, 0x80000000])
    yield r("no number", "", [0x3f99999a, 0x7fc00000, 0x7f800000])
    v = lambda name, why, data, count, exponent=2: case(name, "AGG-24", why, "values_of", bytes=data, exponent=exponent, count=count)
    yield v("multiples", "", "032b", 2)
    yield v("the same, larger", "", "032b", 2, 14)
    yield v("a width too large", "two encodings", "04f3", 2)
    yield v("the largest", "", "18000040", 1)
    yield v("beyond the largest", "a value that saturates nothing", "18010040", 1)
    yield v("nothing", "", "", 1)
    yield v("more", "values that nobody asked for", "032b00", 2)
    yield case("digest", "AGG-9", "", "part", blocks=[bits([0x3f800000, 0x80000000]), bits([1])])
    yield case("digest, cut elsewhere", "AGG-9", "blocks are framed", "part", blocks=[bits([0x3f800000]), bits([0x80000000, 1])])
    yield case("digest of nothing", "AGG-9", "", "part", blocks=[])


import arithmetic_cases  # uses what stands above

FAMILIES = {name[len("family_"):]: family for chapters in (globals(), vars(arithmetic_cases))
            for name, family in list(chapters.items()) if name.startswith("family_")}


# ---------------------------------------------------------------- checking and writing

def self_test():
    """Known answers published with BLAKE3, RFC 8439, RFC 8032, ChaCha8, RFC 7748, FIPS 197 and GCM."""
    assert ref.blake3(ref.IV, b"", 0).hex() == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    context = "BLAKE3 2019-12-27 16:29:52 test vectors context"
    assert ref.derive_key(context, b"").hex() == "2cc39783c223154fea8dfb7c1b1660f2ac2dcbd1c1de8277b0b0dd39b7e50d7d"
    first = ref.struct.pack("<16I", *ref.chacha_block(bytes(32), 0, 20)).hex()
    assert first.startswith("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7")
    first = ref.struct.pack("<16I", *ref.chacha_block(bytes(32), 0, 8)).hex()
    assert first.startswith("3e00ef2f895f40d67f5bb8e81f09a5a12c840ec3ce9a7f3b181be188ef711a1e")
    secret = un("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    public = un("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
    signature = ref.ed25519_sign(secret, b"")
    assert ref.public_key(secret) == public and signature.hex().startswith("e5564300c360ac729086e2cc806e828a84877f1eb8e5d974")
    ref.ed25519_verify(public, b"", signature)
    scalar = un("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    point = un("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    assert channel.x25519(scalar, point).hex() == "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"
    assert channel.aes_block(channel.aes_key(bytes(range(32))), un("00112233445566778899aabbccddeeff")).hex() == "8ea2b7ca516745bfeafc49904b496089"
    assert channel.seal(1, bytes(32), 0, b"", b"").hex() == "530f8afbc74536b9a963b4f1c4cb738b"


def answer(one, golden=()):
    """What is expected; of a golden case, which takes minutes, what it was where `golden` has the same inputs."""
    known = [other["expect"] for other in golden if other["inputs"] == one["inputs"]]
    return known[0] if known else json.loads(json.dumps(OPERATIONS[one["op"]](**one["inputs"])))


def golden_of(path):
    family = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"cases": []}
    return [one for one in family["cases"] if one["op"] == "golden"]


def write():
    VECTORS.mkdir(exist_ok=True)
    for name, family in FAMILIES.items():
        path = VECTORS / f"{name}.json"
        golden = golden_of(path)
        written = [{**one, "expect": answer(one, golden)} for one in family()]
        lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in written)
        path.write_text(f'{{"family": "{name}", "cases": [\n{lines}\n]}}\n', encoding="utf-8")


def check(golden_too=False):
    failures = 0
    for path in sorted(VECTORS.glob("*.json")):
        family = json.loads(path.read_text(encoding="utf-8"))
        golden = [] if golden_too else golden_of(path)
        wrong = [one["name"] for one in family["cases"] if answer(one, golden) != one["expect"]]
        known = family["family"] == path.stem and path.stem in FAMILIES and family["cases"]
        failures += len(wrong) + (not known)
        print(f"{path.stem}: {len(family['cases']) - len(wrong)} of {len(family['cases'])} cases" + "".join(f"\n  wrong: {name}" for name in wrong)
              + (f", {len(golden)} of them golden: not recomputed here" if golden else ""))
    lacking = [name for name in FAMILIES if not (VECTORS / f"{name}.json").exists()]
    print("".join(f"{name}: no file\n" for name in lacking), end="")
    return 1 if failures or lacking else 0


def main(arguments):
    if arguments not in (["--check"], ["--check-golden"], ["--write"]):
        print("python3 spec/reference.py --check | --check-golden | --write")
        return 2
    self_test()
    print("known answers of BLAKE3, ChaCha and Ed25519: good")
    if differing := ref.schema_differences():
        print("schema() differs from schema.json in " + ", ".join(differing))
        return 1
    print("schema.json: equal")
    if arguments == ["--write"]:
        write()
    return check(arguments == ["--check-golden"])
