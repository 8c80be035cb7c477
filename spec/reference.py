#!/usr/bin/env python3
"""The rules of Muster, once more, in plain Python: slow, readable, one function a rule.

    python3 spec/reference.py --check          recomputes every vector in spec/vectors but golden ones
    python3 spec/reference.py --check-golden   those, too: minutes
    python3 spec/reference.py --write          writes them anew from spec/cases.py

Only the standard library. Nothing here is shared with the Rust crates: where both agree, a rule was understood twice.
A docstring starts with the id of its rule in the chapters beside this file.
"""

import hashlib
import json
import math
import pathlib
import struct
import sys
from fractions import Fraction

U32, U64 = 2**32 - 1, 2**64 - 1


class Refused(Exception):
    """What a reader must not accept; carries the reason."""


class Malformed(Refused):
    """Bytes that are not the one encoding of a value; carries the path of the field."""

    def __init__(self, path):
        super().__init__("malformed")
        self.path = path


# ---------------------------------------------------------------- BLAKE3, derive-key mode (blake3.pdf, section 2)

IV = [0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19]
PERMUTATION = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8]
LANES = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
         (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]
CHUNK_START, CHUNK_END, PARENT, ROOT, DERIVE_CONTEXT, DERIVE_MATERIAL = 1, 2, 4, 8, 32, 64


def blake3_compress(chaining, block, counter, length, flags):
    words = list(struct.unpack("<16I", block.ljust(64, b"\0")))
    v = chaining + IV[:4] + [counter & U32, counter >> 32, length, flags]
    for _ in range(7):
        for lane, (a, b, c, d) in enumerate(LANES):
            for word, turns in ((words[2 * lane], (16, 12)), (words[2 * lane + 1], (8, 7))):
                v[a] = (v[a] + v[b] + word) & U32
                x = v[d] ^ v[a]
                v[d] = (x >> turns[0] | x << 32 - turns[0]) & U32
                v[c] = (v[c] + v[d]) & U32
                x = v[b] ^ v[c]
                v[b] = (x >> turns[1] | x << 32 - turns[1]) & U32
        words = [words[place] for place in PERMUTATION]
    return [v[i] ^ v[i + 8] for i in range(8)]


def blake3(key, data, flags):
    """The 32-byte hash of `data` under eight key words."""
    def subtree(start, data, root):
        if len(data) <= 1024:
            blocks = [data[i:i + 64] for i in range(0, len(data), 64)] or [b""]
            chaining = key
            for i, block in enumerate(blocks):
                mark = (CHUNK_START if i == 0 else 0) | (CHUNK_END | root if i == len(blocks) - 1 else 0)
                chaining = blake3_compress(chaining, block, start, len(block), flags | mark)
            return chaining
        chunks = (len(data) - 1) // 1024
        left = 1 << (chunks.bit_length() - 1)  # the largest power of two that leaves something to the right
        cut = left * 1024
        both = subtree(start, data[:cut], 0) + subtree(start + left, data[cut:], 0)
        return blake3_compress(key, struct.pack("<16I", *both), 0, 64, flags | PARENT | root)
    return struct.pack("<8I", *subtree(0, data, ROOT))


def derive_key(context, data):
    key = list(struct.unpack("<8I", blake3(IV, context.encode(), DERIVE_CONTEXT)))
    return blake3(key, data, DERIVE_MATERIAL)


# ---------------------------------------------------------------- hashing (encoding.md)

DOMAINS = ("run sign ledger round-seed windows dither aggregators place mask tokeniser router initial state exponents "
           "merkle-leaf merkle-node "
           "merkle-root sketch project coin select select-block inspector-block draw inspector recheck jury table results evidence "
           "answer part file gossip rounding relay").split()


def le(number, size):
    return number.to_bytes(size, "little")


def tagged(domain, *parts):
    """HASH-1, HASH-2: a hash of framed parts in a domain of its own."""
    assert domain in DOMAINS, domain
    return derive_key("muster 1 " + domain, b"".join(le(len(part), 8) + part for part in parts))


def bulk(domain, data):
    """HASH-3: a hash without frames, for data whose tail has a fixed length."""
    assert domain in DOMAINS, domain
    return derive_key("muster 1 " + domain, data)


def number(digest):
    """HASH-4: the first eight bytes of a hash, little-endian."""
    return int.from_bytes(digest[:8], "little")


def below(uniform, n):
    """HASH-5: a uniform 64-bit number mapped to 0..n."""
    return uniform * n >> 64


def chacha8(key, first, count):
    """HASH-6: words `first` and later of the ChaCha8 stream of a key, block counter from 0, nonce 0."""
    words = []
    for block in range(first // 16, (first + count + 15) // 16):
        words += chacha_block(key, block, 8)
    start = first % 16
    return words[start:start + count]


def chacha_block(key, counter, rounds):
    start = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574, *struct.unpack("<8I", key), counter & U32, counter >> 32, 0, 0]
    v = list(start)
    for _ in range(rounds // 2):
        for a, b, c, d in LANES:
            for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                v[x] = (v[x] + v[y]) & U32
                w = v[z] ^ v[x]
                v[z] = (w << turn | w >> 32 - turn) & U32
    return [(a + b) & U32 for a, b in zip(v, start)]


def chacha8_u64(key, index):
    """HASH-7: 64-bit number `index` of a stream is words 2·index and 2·index + 1, the lower half first."""
    low, high = chacha8(key, 2 * index, 2)
    return high << 32 | low


# ---------------------------------------------------------------- canonical bytes (encoding.md)

def schema():
    """The types of the wire. A name stands for an entry, a tuple for something built in."""
    digest, member, run, text = ("raw", 32), ("raw", 32), ("raw", 32), lambda most: ("text", most)
    u8, u16, u32, u64, i64 = ("int", 1), ("int", 2), ("int", 4), ("int", 8), ("signed", 8)
    listed = lambda item, most: ("list", item, most)
    maybe = lambda item: ("option", item)
    sketch = "Sketch"
    signed = "Signed"
    addresses = listed(text(256), 8)
    profile, role, kind = ("choice", "Exact", "F32", "Tf32", "Bf16"), ("choice", "Node", "Verifier"), ("choice", "Node", "Leaf")
    engagement = ("choice", "Trains", "Supports", "Rests")
    guilt = ("choice", "Equivocation", "SumMismatch", "LeafMismatch", "TotalMismatch", "StewardMisconduct",
             "FalseAccusation", "FalseAcquittal", "AggregationMismatch", "FalseAnswer")
    bitmap, salt, nonce = ("raw", 32), ("raw", 32), ("raw", 16)
    block_ids = listed(u32, 1024)
    structs = {
        "Manifest": dict(version=u16, name=text(64), organiser=member, steward=member, nonce=nonce, model="Model",
                         profile=profile, tolerance="Tolerance", data="Data", training="Training", optimiser="Optimiser",
                         aggregation="Aggregation", audit="Audit", admission="Admission", timers="Timers",
                         retention="Retention", rollback="Rollback", delay=u8, exchange="Exchange", groups=u8),
        "Local": dict(steps=u32, segment=u32, moments_every=u32, outer_rate=("real",), outer_momentum=("real",)),
        "Tolerance": dict(groups=listed(("real",), 16), loss=("real",)),
        "Model": dict(vocabulary=u32, width=u32, layers=u32, heads=u32, hidden=u32, sequence=u32,
                      norm_epsilon=("real",), initial_scale=("real",), family="Family"),
        "Decoder": dict(key_value_heads=u32, tied=("bool",), rope_base=("real",)),
        "Variant": dict(decoder="Decoder", head_width=u32, projection=("choice", "Plain", "Biased", "Normed"), scaling=maybe("Scaling")),
        "Scaling": dict(factor=("real",), low=("real",), high=("real",), original=u32),
        "Mixture": dict(decoder="Decoder", columns=u16, active=u16, shared_hidden=u32, balance=("real",), trust=("real",),
                        rows=u16, branch=u32, few=u16, held=u16, lag=u32),
        "Albert": dict(embedding=u32, masked_ppm=u32, mask_token=u32),
        "Data": dict(root=digest, bytes=u64, held_out_root=digest, held_out_bytes=u64, tokeniser="Tokeniser", start="Start",
                     router=maybe("Router")),
        "TokeniserFile": dict(digest=digest, bytes=u32, tokens=u32),
        "Router": dict(rows=u16, tokens=u16, digest=digest),
        "CommittedFile": dict(root=digest, bytes=u64),
        "Training": dict(rounds=u32, leaves=u32, leaf_windows=u32, grid_bits=u8, recompute=("bool",)),
        "Optimiser": dict(method=("choice", "AdamW", "Lamb"), rate=("real",), minimum_rate=("real",), warmup=u32,
                          schedule=("choice", "Constant", "Linear", "Cosine"), beta1=("real",), beta2=("real",),
                          epsilon=("real",), weight_decay=("real",), clip_norm=("real",)),
        "Aggregation": dict(rule=("choice", "CenteredClip", "Mean", "Median", "TrimmedMean", "GeometricMedian", "Krum",
                                  "MultiKrum", "FixedRadiusClip"),
                            radius=("real",), iterations=u8, cap_ppm=u32, assumed_ppm=u32, mixing=("bool",),
                            replicas=u8, result_bits=u8),
        "Audit": dict(share_ppm=u32, leaves=u8, coin_lead=u32, final_rounds=u32, recheck_ppm=u32, blocks_ppm=u32),
        "Admission": dict(start_nodes=u16, start_verifiers=u16, most_members=u16, mode="Mode", per_round=u16, probation=u32,
                          vouchers=u8, member_invites=u16, depth=u8, newcomer_ppm=u32, halving=u32),
        "Listed": dict(founders=listed(member, 512), nodes=listed(member, 512), verifiers=listed(member, 512)),
        "Timers": dict(commit=u32, part=u32, result=u32, audit=u32, final_audit=u32),
        "Retention": dict(contributions=u32, states=u32),
        "Rollback": dict(limit=("real",), most_rounds=u32, spacing=u32),
        "Signed": dict(run=run, signer=member, signature=("raw", 64), body=("bytes", 4 << 20)),
        "Proof": dict(siblings=listed(digest, 48)),
        "CoinTerms": dict(root=digest, first_round=u32, rounds=u32, leaf_coins=u16),
        "CoinOpening": dict(kind=kind, round=u32, k=u16, coin=digest, proof="Proof"),
        "Invitation": dict(role=role, uses=u32, expires=u64, key=member, founder=("bool",)),
        "Possession": dict(newcomer=member),
        "Presented": dict(invitation=signed, possession=signed),
        "Enrol": dict(invitation=maybe("Presented"), addresses=addresses, coins=maybe("CoinTerms"), name=text(32),
                      engagement=engagement),
        "Return": dict(height=u64, addresses=addresses, engagement=engagement),
        "Leave": dict(height=u64),
        "Ready": dict(round=u32, row=u16, root=digest),
        "CloseTree": dict(member=member),
        "Pass": dict(invitation=signed, secret=("raw", 32)),
        "Ticket": dict(run=run, steward=member, addresses=addresses, **{"pass": maybe("Pass")}),
        "Route": dict(row=u16, open=u64),
        "Commit": dict(round=u32, head=digest, state=digest, slot=u16, seats=u16, route=maybe("Route"), leaves=u32,
                       profile=profile, loss=i64, root=digest),
        "CommitReceipt": dict(commit=digest, round=u32),
        "Echo": dict(round=u32, freeze=digest),
        "Receipt": dict(round=u32, part=u16, attempt=u8, sender=member, root=digest),
        "Delivered": dict(round=u32, attempt=u8, receipts=listed(signed, 1024)),
        "DeliveryReceipt": dict(delivered=digest, round=u32, attempt=u8),
        "PartResult": dict(round=u32, part=u16, attempt=u8, freeze=digest, inputs=bitmap, digest=digest),
        "Checked": dict(round=u32, attempt=u8, parts=listed(u16, 512), objections=listed(u32, 4096)),
        "Record": dict(height=u64, previous=digest, body="Body"),
        "Seat": dict(member=member, quota=u32, row=u16),
        "Freeze": dict(round=u32, state=digest, commits=listed(signed, 256)),
        "Inputs": dict(round=u32, attempt=u8, parts=listed(bitmap, 512)),
        "Late": dict(round=u32, slots=bitmap),
        "Shares": dict(round=u32, moves=listed("ShareMove", 256)),
        "ShareMove": dict(slot=u16, **{"class": u8}),
        "Reassign": dict(round=u32, parts=listed("Reassigned", 512)),
        "Reassigned": dict(part=u16, aggregator=u16),
        "Outcome": dict(round=u32, results=listed(maybe(signed), 512), echoes=listed(signed, 256), state="StateRoots",
                        seats=listed("Seat", 256), credits=listed("Credit", 1024), seconds=listed(signed, 512),
                        steps=listed("RowStep", 64)),
        "RowStep": dict(row=u16, round=u32),
        "Credit": dict(verdict=digest, round=u32, member=member, verifier=member, leaves=u32),
        "Ban": dict(culprit=member, effective=u32, round=u32, finding=guilt, evidence=digest, accuser=member,
                    jury=listed(signed, 7)),
        "Rewind": dict(to=u32, state="StateRoots", evidence=digest),
        "StateRoots": dict(shards=listed(("pair", u32, u64, u64, digest, digest, digest, digest), 65)),
        "Idle": dict(verifier=member, round=u32),
        "AuditRequest": dict(round=u32, freeze=digest, target=member, coin=maybe("CoinOpening")),
        "Duty": dict(round=u32, freeze=digest, coin="CoinOpening"),
        "Recheck": dict(verdict=digest),
        "Recomputation": dict(round=u32, freeze=digest, target=member,
                              finding=("tagged", ("Pass", None), ("Guilty", guilt))),
        "Opinion": dict(evidence=digest, guilty=("bool",)),
        "Withheld": dict(request=digest),
        "TableSeal": dict(request=digest, round=u32, freeze=digest, root=digest, seal=digest),
        "ResultsSeal": dict(request=digest, table=digest, seal=digest),
        "TableRow": dict(sketch=sketch, loss=i64),
        "TableOpening": dict(request=digest, results=digest, salt=salt, rows=listed("TableRow", 256)),
        "LeafResult": dict(position=u32, row="TableRow"),
        "Verdict": dict(request=digest, opening=digest, coin="CoinOpening", salt=salt, results=listed("LeafResult", 32),
                        total=sketch, finding=("tagged", ("Pass", None), ("Guilty", guilt))),
        "Transcript": dict(freeze=signed, request=signed, table=signed, results=signed, opening=signed, verdict=signed),
        "Equivocation": dict(first=signed, second=signed),
        "Total": dict(freeze=signed, culprit=member),
        "OmittedCommit": dict(commit=signed, receipt=signed, freeze=signed),
        "OmittedDelivery": dict(delivered=signed, receipt=signed, freeze=signed, reassign=maybe(signed), inputs=signed),
        "TwoSeals": dict(first="Seal", second="Seal"),
        "WrongRoot": dict(freeze=signed, outcome=signed, before="StateRoots", shard=u16, earlier=maybe("SealedRound")),
        "SealedRound": dict(freeze=signed, outcome=signed),
        "FalseVerdict": dict(admit=signed, transcript="Transcript"),
        "FalseRecomputation": dict(freeze=signed, recomputation=signed),
        "Reduction": dict(freeze=signed, inputs=signed, result=signed),
        "Ask": dict(round=u32, root=digest, row=u16, tokens=listed(u32, 65536), positions=u16),
        "Answer": dict(ask=digest, logits=digest),
        "Answered": dict(answer=signed, logits=listed(("signed", 4), 1 << 19)),
        "FalseAnswer": dict(ask=signed, answer=signed),
        "TwoResults": dict(first=signed, second=signed),
        "Certificate": dict(key=("raw", 32), expiry=u64),
        "Head": dict(height=u64, head=digest),
        "Whereabouts": dict(addresses=addresses, time=u64),
        "Statement": dict(height=u64, head=digest, recomputed=u64, counted=u64, note=text(64), steward=member,
                          addresses=addresses),
        "Follow": dict(height=u64, board=u64, notice=u64),
        "News": dict(records=listed(signed, 256), newest=u64, board=u64, first_notice=u64, notices=listed("Notice", 256)),
        "BlockData": dict(block=u32, chunks=listed(("bytes", 65792), 4), proofs=listed("Proof", 4)),
        "PutBlocks": dict(round=u32, attempt=u8, blocks=listed("BlockData", 1024)),
        "BlockQuery": dict(round=u32, blocks=block_ids),
        "InputQuery": dict(round=u32, member=member, blocks=block_ids),
        "StateOffer": dict(round=u32, roots="StateRoots"),
        "StateQuery": dict(round=u32, root=digest, shard=u16, vector=("choice", "Parameters", "First", "Second", "Exponents"),
                           first=u64, count=u32),
        "StatePiece": dict(bytes=("bytes", 2 << 20), proofs=listed("Proof", 32)),
        "DataQuery": dict(file=("choice", "Training", "HeldOut", "Tokeniser", "Parameters", "Router"), first=u64, count=u32),
        "RelayTerms": dict(certificate=("bytes", 1024), port=u16),
    }
    enums = {
        "Family": dict(Decoder="Decoder", Albert="Albert", Mixture="Mixture", Variant="Variant"),
        "Exchange": dict(Gradients=None, Local="Local"),
        "Sketch": dict(Fingerprint=("pair", u64, u64), Projections=listed(i64, 1024)),
        "Tokeniser": dict(Bytes=None, File="TokeniserFile"),
        "Start": dict(Drawn=None, Given="CommittedFile"),
        "Mode": dict(Invited=None, Listed="Listed", Open=None),
        "Body": dict(Open="StateRoots", Admit=signed, Begin=listed("Seat", 256), Freeze="Freeze", Inputs="Inputs",
                     Reassign="Reassign", Outcome="Outcome", Silence=signed, Answered=digest, Ban="Ban", Return=signed,
                     Leave=signed, Rewind="Rewind", Close=digest, Idle="Idle", CloseTree=signed, Ready=signed,
                     Late="Late", Shares="Shares"),
        "Evidence": dict(Equivocation="Equivocation", Audit="Transcript", Total="Total", Misconduct="Misconduct",
                         Verdict="FalseVerdict", Aggregation="Reduction", Results="TwoResults",
                         Recomputation="FalseRecomputation", Answer="FalseAnswer"),
        "Seal": dict(Record=signed, Head=signed),
        "Misconduct": dict(Commit="OmittedCommit", Delivery="OmittedDelivery", Split="TwoSeals", Record=signed,
                           Root="WrongRoot"),
        "Gossiped": dict(Record=signed, Head=signed, Commit=signed),
        "Notice": dict(Echo=signed, Result=signed, Request=signed, Table=signed, Results=signed, Opening=signed,
                       Verdict=signed, Return=signed, Leave=signed, Duty=signed, Recheck=signed,
                       Charge="Evidence", Opinion=signed, Withheld=signed, Obtained=digest, Recomputation=signed,
                       Ready=signed),
        "Request": dict(Manifest=None, Follow="Follow", Enrol=signed, Commit=signed, Delivered=signed, Notice="Notice",
                        Accuse="Evidence", PutBlocks="PutBlocks", ResultBlocks="BlockQuery", InputBlocks="InputQuery",
                        StateOffer=None, State="StateQuery", Data="DataQuery", Checked=signed, CloseTree=signed,
                        Evidence=digest, Ask=signed, Outline="DataQuery", Relay=digest),
        "Response": dict(Done=None, Refused=text(256), Manifest=("bytes", 65536), News="News", Committed=signed,
                         Receipt=signed, Bytes=("bytes", 2 << 20), Blocks=listed("BlockData", 1024), State="StateOffer",
                         Delivered=signed, Evidence="Evidence", Answer="Answered", Piece="StatePiece",
                         Relay="RelayTerms"),
    }
    return structs, enums


STRUCTS, ENUMS = schema()
TAGS = {"Commit": "commit", "CommitReceipt": "commit-receipt", "DeliveryReceipt": "delivery-receipt", "Echo": "echo",
        "Receipt": "receipt", "Delivered": "delivered", "PartResult": "part-result", "Checked": "checked",
        "Record": "record", "AuditRequest": "audit-request",
        "TableSeal": "table-seal", "ResultsSeal": "results-seal", "TableOpening": "table-opening", "Verdict": "verdict",
        "Duty": "duty", "Recheck": "recheck", "Recomputation": "recomputation", "Opinion": "opinion", "Withheld": "withheld",
        "Invitation": "invitation", "Possession": "possession", "Enrol": "enrol", "Return": "return", "Leave": "leave",
        "Ready": "ready",
        "CloseTree": "close-tree",
        "Ask": "ask", "Answer": "answer",
        "Certificate": "channel-certificate", "Head": "head", "Whereabouts": "whereabouts", "Statement": "statement"}


def schema_differences():
    """The types whose bytes the program describes otherwise in schema.json, which is written from its own types."""
    theirs = json.loads((pathlib.Path(__file__).parent / "schema.json").read_text())
    ours = dict(structs=STRUCTS, enums=ENUMS, tags=TAGS)
    # As lists: the order of fields and variants counts, too.
    in_order = lambda entry: [list(item) for item in entry.items()] if isinstance(entry, dict) else entry
    plain = {part: {name: json.loads(json.dumps(in_order(entry))) for name, entry in table.items()} for part, table in ours.items()}
    names = lambda part: plain[part].keys() | theirs[part].keys()
    return sorted(name for part in ours for name in names(part) if plain[part].get(name) != theirs[part].get(name))


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        if self.at + count > len(self.data):
            raise Malformed([])
        self.at += count
        return self.data[self.at - count:self.at]

    def integer(self, size):
        return int.from_bytes(self.take(size), "little")

    def length(self, most):
        """CODEC-4: a length is refused before anything after it is read."""
        length = self.integer(4)
        if length > most:
            raise Malformed([])
        return length


def within(step, kind, reader):
    try:
        return read(kind, reader)
    except Malformed as error:
        raise Malformed([step] + error.path) from None


def read(kind, reader):
    """CODEC-1 to CODEC-9: one value of a type, or Malformed with the path of the field."""
    if isinstance(kind, str) and kind in STRUCTS:
        return {name: within(f"{kind}.{name}", item, reader) for name, item in STRUCTS[kind].items()}
    if isinstance(kind, str):
        tag = within(f"{kind} tag", ("int", 1), reader)
        variants = list(ENUMS[kind].items())
        if tag >= len(variants):
            raise Malformed([kind])
        name, payload = variants[tag]
        return {name: None if payload is None else within(f"{kind}::{name}", payload, reader)}
    form, *rest = kind
    if form == "int":
        return reader.integer(rest[0])
    if form == "signed":
        return int.from_bytes(reader.take(rest[0]), "little", signed=True)
    if form == "raw":
        return reader.take(rest[0]).hex()
    if form == "bytes":
        return reader.take(reader.length(rest[0])).hex()
    if form == "pair":
        return [read(item, reader) for item in rest]
    if form == "text":
        return read_text(reader.take(reader.length(rest[0])))
    if form == "real":
        return read_real(reader.integer(4))
    if form == "list":
        return [within(f"[{i}]", rest[0], reader) for i in range(reader.length(rest[1]))]
    tag = reader.integer(1)
    if tag >= (2 if form in ("bool", "option") else len(rest)):
        raise Malformed([])
    if form == "bool":
        return bool(tag)
    if form == "option":
        return read(rest[0], reader) if tag else None
    if form == "choice":
        return rest[tag]
    assert form == "tagged"
    name, payload = rest[tag]
    return name if payload is None else {name: read(payload, reader)}


HIDDEN = [(0, 0x1f), (0x7f, 0x9f), (0xad, 0xad), (0x61c, 0x61c), (0x180e, 0x180e), (0x200b, 0x200f), (0x2028, 0x202e),
          (0x2060, 0x206f), (0xfeff, 0xfeff), (0xfff9, 0xfffb), (0xe0000, 0xe007f)]


def bitmap(slots):
    """CODEC-11"""
    data = bytearray(32)
    for slot in slots:
        data[slot // 8] |= 1 << slot % 8
    return bytes(data)


def read_text(data):
    """CODEC-6: valid UTF-8 without characters that people do not see."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise Malformed([]) from None
    if any(first <= ord(c) <= last for c in text for first, last in HIDDEN):
        raise Malformed([])
    return text


def read_real(bits):
    """CODEC-7: a finite f32 other than −0, as its bits."""
    if bits >> 23 & 255 == 255 or bits == 1 << 31:
        raise Malformed([])
    return f"{bits:08x}"


def write(kind, value):
    """CODEC-1 to CODEC-9, the writer's side."""
    if isinstance(kind, str) and kind in STRUCTS:
        return b"".join(write(item, value[name]) for name, item in STRUCTS[kind].items())
    if isinstance(kind, str):
        (name, payload), = value.items()
        tag = bytes([list(ENUMS[kind]).index(name)])
        return tag if ENUMS[kind][name] is None else tag + write(ENUMS[kind][name], payload)
    form, *rest = kind
    if form == "int":
        return le(value, rest[0])
    if form == "signed":
        return value.to_bytes(rest[0], "little", signed=True)
    if form in ("raw", "bytes"):
        return (le(len(value) // 2, 4) if form == "bytes" else b"") + bytes.fromhex(value)
    if form == "pair":
        return b"".join(write(item, part) for item, part in zip(rest, value))
    if form == "text":
        return le(len(value.encode()), 4) + value.encode()
    if form == "real":
        return le(int(value, 16), 4)
    if form == "list":
        return le(len(value), 4) + b"".join(write(rest[0], item) for item in value)
    if form == "bool":
        return bytes([value])
    if form == "option":
        return b"\0" if value is None else b"\1" + write(rest[0], value)
    if form == "choice":
        return bytes([rest.index(value)])
    names = [name for name, _ in rest]
    if isinstance(value, str):
        return bytes([names.index(value)])
    (name, payload), = value.items()
    return bytes([names.index(name)]) + write(rest[names.index(name)][1], payload)


def decode(kind, data):
    """CODEC-10: a value fills its bytes exactly."""
    reader = Reader(data)
    value = read(kind, reader)
    if reader.at != len(data):
        raise Malformed(["Not all bytes read"])
    return value


def hashed(domain, kind, value):
    return tagged(domain, write(kind, value))


# ---------------------------------------------------------------- signatures (encoding.md; RFC 8032)

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
CURVE_D = -121665 * pow(121666, -1, P) % P


def recover_x(y, sign):
    square = (y * y - 1) * pow(CURVE_D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    if (x * x - square) % P or (x == 0 and sign):
        return None
    return P - x if x & 1 != sign else x


def decompress(data):
    y = int.from_bytes(data, "little")
    sign, y = y >> 255, y & (2**255 - 1)
    x = recover_x(y, sign) if y < P else None
    return None if x is None else (x, y, 1, x * y % P)


def compress(point):
    x, y, z, _ = point
    inverse = pow(z, -1, P)
    x, y = x * inverse % P, y * inverse % P
    return le(y | (x & 1) << 255, 32)


def point_add(p, q):
    a, b = (p[1] - p[0]) * (q[1] - q[0]) % P, (p[1] + p[0]) * (q[1] + q[0]) % P
    c, d = 2 * p[3] * q[3] * CURVE_D % P, 2 * p[2] * q[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def times(scalar, point):
    result = (0, 1, 1, 0)
    while scalar:
        if scalar & 1:
            result = point_add(result, point)
        point = point_add(point, point)
        scalar >>= 1
    return result


BASE_Y = 4 * pow(5, -1, P) % P
BASE = (recover_x(BASE_Y, 0), BASE_Y, 1, recover_x(BASE_Y, 0) * BASE_Y % P)
IDENTITY = compress((0, 1, 1, 0))


def sha512(*parts):
    return int.from_bytes(hashlib.sha512(b"".join(parts)).digest(), "little")


def key_of(secret):
    half = int.from_bytes(hashlib.sha512(secret).digest()[:32], "little")
    return half & (2**254 - 8) | 2**254, hashlib.sha512(secret).digest()[32:]


def public_key(secret):
    return compress(times(key_of(secret)[0], BASE))


def ed25519_sign(secret, message):
    scalar, prefix = key_of(secret)
    public = compress(times(scalar, BASE))
    r = sha512(prefix, message) % ORDER
    nonce = compress(times(r, BASE))
    return nonce + le((r + sha512(nonce, public, message) * scalar) % ORDER, 32)


def strong_key(public):
    """SIGN-3: a public key is a point whose order is not small; here its encoding is canonical, too."""
    point = decompress(public)
    if point is None or compress(times(8, point)) == IDENTITY:
        raise Refused("bad-signature")
    return point


def ed25519_verify(public, message, signature):
    """SIGN-2: the strict, cofactorless check."""
    key = strong_key(public)
    nonce, scalar = signature[:32], int.from_bytes(signature[32:], "little")
    strong_key(nonce)
    if scalar >= ORDER:
        raise Refused("bad-signature")
    negative = (P - key[0], key[1], 1, P - key[3])
    expected = point_add(times(scalar, BASE), times(sha512(nonce, public, message) % ORDER, negative))
    if compress(expected) != nonce:
        raise Refused("bad-signature")


def signed_digest(tag, run, body):
    """SIGN-1: what a signature covers."""
    return tagged("sign", tag.encode(), run, body)


def envelope(secret, run, kind, body):
    """SIGN-4: a signed message as bytes."""
    signature = ed25519_sign(secret, signed_digest(TAGS[kind], run, body))
    return run + public_key(secret) + signature + le(len(body), 4) + body


def verify_envelope(data, run, kind):
    """SIGN-6: run, key, signature, encoding, in this order."""
    signed = decode("Signed", data)
    if bytes.fromhex(signed["run"]) != run:
        raise Refused("wrong-run")
    body = bytes.fromhex(signed["body"])
    digest = signed_digest(TAGS[kind], run, body)
    ed25519_verify(bytes.fromhex(signed["signer"]), digest, bytes.fromhex(signed["signature"]))
    decode(kind, body)
    return signed["signer"]


def envelope_digest(data, kind):
    """SIGN-5: the name of a signed message."""
    return tagged("sign", TAGS[kind].encode(), data)


# ---------------------------------------------------------------- Merkle trees (merkle.md)

def merkle_leaf(index, data):
    """MERKLE-1"""
    return bulk("merkle-leaf", data + le(index, 8))


def merkle_levels(leaves):
    """MERKLE-2, MERKLE-3: the levels from the leaves up; an odd level pairs its last node with itself."""
    levels = [list(leaves)]
    while len(levels[-1]) > 1:
        level = levels[-1] + levels[-1][-1:] * (len(levels[-1]) % 2)
        levels.append([tagged("merkle-node", level[i], level[i + 1]) for i in range(0, len(level), 2)])
    return levels


def merkle_commit(count, top):
    """MERKLE-4"""
    return tagged("merkle-root", le(count, 8), top)


def merkle_root(leaves):
    top = merkle_levels(leaves)[-1][0] if leaves else bytes(32)
    return merkle_commit(len(leaves), top)


def merkle_prove(leaves, index):
    """MERKLE-5: siblings, lowest first; a last node without a neighbour brings none."""
    siblings = []
    for level in merkle_levels(leaves)[:-1]:
        if index ^ 1 < len(level):
            siblings.append(level[index ^ 1])
        index //= 2
    return siblings


def merkle_verify(root, count, index, leaf, siblings):
    """MERKLE-6: count and index fix the shape; every sibling is used, none is left."""
    if index >= count:
        raise Refused("bad-proof")
    siblings, top, width = list(siblings), leaf, count
    while width > 1:
        if index ^ 1 >= width:
            pair = (top, top)
        elif not siblings:
            raise Refused("bad-proof")
        else:
            pair = (siblings.pop(0), top) if index & 1 else (top, siblings.pop(0))
        top = tagged("merkle-node", *pair)
        index, width = index // 2, (width + 1) // 2
    if siblings or merkle_commit(count, top) != root:
        raise Refused("bad-proof")


# ---------------------------------------------------------------- data, layout, state (dataset.md, layout.md, state.md)

def data_root(data):
    """DATA-1"""
    chunks = [data[i:i + 4096] for i in range(0, len(data), 4096)]
    return merkle_root([merkle_leaf(i, chunk) for i, chunk in enumerate(chunks)])


def token_bytes(numbers):
    """DATA-4; without `numbers`, tokens are bytes."""
    return 1 if numbers is None else 2 if numbers <= 1 << 16 else 4


def window_count(tokens, sequence):
    """DATA-3"""
    return max(tokens - 1, 0) // sequence


def window(data, numbers, index, sequence):
    """DATA-2"""
    size = token_bytes(numbers)
    first = index * sequence
    return [int.from_bytes(data[i * size:(i + 1) * size], "little") for i in range(first, first + sequence + 1)]


def router_file(table):
    """DATA-8: of each row 256 entries and a bias."""
    assert all(len(entries) == 256 for entries, _ in table)
    return b"".join(struct.pack("<257i", *entries, bias) for entries, bias in table)


def router_scores(table, before):
    """DATA-9: `before` are the tokens that the router reads."""
    return [bias + sum(entries[token % 256] for token in before) for entries, bias in table]


def ranked_rows(scores):
    """DATA-9: the best row first, the lowest among equals."""
    return sorted(range(len(scores)), key=lambda row: (-scores[row], row))


def cut(start, end, most):
    return [(i, min(i + most, end)) for i in range(start, end, most)]


def tensors(model):
    """LAYOUT-1, LAYOUT-4, LAYOUT-5"""
    if "Albert" in model["family"]:
        return albert_tensors(model, model["family"]["Albert"]["embedding"])
    width, vocabulary, decoder = model["width"], model["vocabulary"], decoder_of(model)
    mixture = model["family"].get("Mixture")
    query, key_value = (head_width(model) * heads for heads in (model["heads"], decoder["key_value_heads"]))
    swiglu = lambda name, hidden: [(name + ".gate_proj", hidden, width), (name + ".up_proj", hidden, width),
                                   (name + ".down_proj", width, hidden)]
    feed, row = swiglu("mlp", model["hidden"]), []
    if mixture:
        feed = swiglu("mlp.shared_expert", mixture["shared_hidden"]) + [("mlp.shared_expert_gate", 1, width)]
        experts = [swiglu(f"mlp.experts.{j}", model["hidden"]) for j in range(mixture["columns"])]
        row = [("mlp.gate", mixture["columns"], width)] + [tensor for expert in experts for tensor in expert]
    joint = [(f"self_attn.{x}_proj", rows) for x, rows in zip("qkv", (query, key_value, key_value))]
    projection = variant_of(model).get("projection")
    own = {"Biased": [(name + ".bias", 1, rows) for name, rows in joint],
           "Normed": [(f"self_attn.{x}_norm", 1, head_width(model)) for x in "qk"]}.get(projection, [])
    attention = ([("input_layernorm", 1, width)] + [(name, rows, width) for name, rows in joint] + own
                 + [("self_attn.o_proj", width, query), ("post_attention_layernorm", 1, width)])
    layers = lambda shapes: [(f"model.layers.{layer}.{name}", rows, columns) for layer in range(model["layers"])
                             for name, rows, columns in shapes]
    head = [] if decoder["tied"] else [("lm_head", vocabulary, width)]
    shapes = ([("model.embed_tokens", vocabulary, width)] + layers(attention + feed) + [("model.norm", 1, width)] + head
              + layers(row))
    return [(name if name.endswith(".bias") else name + ".weight", rows, columns) for name, rows, columns in shapes]


def decoder_of(model):
    """MANIFEST-4, MANIFEST-14: what a decoder and a mixture share."""
    (_, of), = model["family"].items()
    return of.get("decoder", of)


def variant_of(model):
    """MANIFEST-18: what only a variant has."""
    return model["family"].get("Variant", {})


def head_width(model):
    """LAYOUT-1"""
    return variant_of(model).get("head_width", model["width"] // model["heads"])


def albert_tensors(model, narrow):
    """LAYOUT-4"""
    width, hidden, vocabulary = model["width"], model["hidden"], model["vocabulary"]
    matrix = lambda name, rows, columns: [(name + ".weight", rows, columns), (name + ".bias", 1, rows)]
    norm = lambda name, columns: [(name + ".weight", 1, columns), (name + ".bias", 1, columns)]
    layer = "albert.encoder.albert_layer_groups.0.albert_layers.0."
    return ([("albert.embeddings.word_embeddings.weight", vocabulary, narrow),
             ("albert.embeddings.position_embeddings.weight", model["sequence"], narrow)]
            + norm("albert.embeddings.LayerNorm", narrow)
            + matrix("albert.encoder.embedding_hidden_mapping_in", width, narrow)
            + [(layer + f"attention.{name}.weight", width, width) for name in ("query", "key", "value")]
            + [(layer + f"attention.{name}.bias", 1, width) for name in ("query", "value")]
            + matrix(layer + "attention.dense", width, width) + norm(layer + "attention.LayerNorm", width)
            + matrix(layer + "ffn", hidden, width) + matrix(layer + "ffn_output", width, hidden)
            + norm(layer + "full_layer_layer_norm", width)
            + matrix("predictions.dense", narrow, width) + norm("predictions.LayerNorm", narrow)
            + [("predictions.bias", 1, vocabulary)])


def shards(model):
    """STATE-7: numbers of tensors and of coefficients, of a mixture those of the trunk and of the row."""
    every = tensors(model)
    trunk = len([name for name, _, _ in every if not is_of_row(name)])
    return [(len(own), sum(rows * columns for _, rows, columns in own)) for own in (every[:trunk], every[trunk:]) if own]


def is_of_row(name):
    """LAYOUT-5"""
    return name.endswith(".mlp.gate.weight") or ".mlp.experts." in name


def layout(model):
    """LAYOUT-2, LAYOUT-3: blocks of at most 65,536 within a tensor, chunks of at most 16,384 within a block."""
    blocks, chunks, offset = [], [], 0
    for _, rows, columns in tensors(model):
        blocks += cut(offset, offset + rows * columns, 65_536)
        offset += rows * columns
    for start, end in blocks:
        chunks += cut(start, end, 16_384)
    return blocks, chunks


def rows_of(model):
    """MANIFEST-14: rows of a run whose state has all of them; elsewhere there is one."""
    return model["family"]["Mixture"]["rows"] if "Mixture" in model["family"] else 1


def shard_blocks(model):
    """LAYOUT-6: how many blocks the trunk has, and how many a row; without experts there are none of a row."""
    trunk, blocks = shards(model)[0][1], layout(model)[0]
    count = len([end for _, end in blocks if end <= trunk])
    return count, len(blocks) - count


def block_place(model, block):
    """LAYOUT-6: the shard of a block, and where the block is among those of a path; None where there is no such block."""
    trunk, own = shard_blocks(model)
    if block < trunk:
        return 0, block
    if own == 0 or (block - trunk) // own >= rows_of(model):
        return None
    return 1 + (block - trunk) // own, trunk + (block - trunk) % own


def blocks_of(model, shard):
    """LAYOUT-6: the blocks of a shard with their lengths."""
    ranges, (trunk, own) = layout(model)[0], shard_blocks(model)
    numbers = range(trunk) if shard == 0 else range(trunk + (shard - 1) * own, trunk + shard * own)
    return {n: ranges[block_place(model, n)[1]][1] - ranges[block_place(model, n)[1]][0] for n in numbers}


def plane_blocks(model):
    """LAYOUT-7: how many blocks a plane has, of all rows."""
    trunk, own = shard_blocks(model)
    return trunk + rows_of(model) * own


def contribution_layout(model):
    """LAYOUT-7: blocks and chunks of a path in a run of local updates, those of the second plane behind those of the first."""
    blocks, chunks = layout(model)
    d = blocks[-1][1]
    behind = lambda ranges: [[start + d, end + d] for start, end in ranges]
    return blocks + behind(blocks), chunks + behind(chunks)


def contribution_place(model, block):
    """LAYOUT-7: the shard of a block of either plane, and where it is among those of a path; None where there is no such block."""
    plane, number = divmod(block, plane_blocks(model))
    place = block_place(model, number) if plane < 2 else None
    return place and (place[0], place[1] + plane * len(layout(model)[0]))


def groups(model):
    """TOL-1: runs of whole tensors, of a sixteenth of all coefficients and 10,000 at least; the rest joins the last."""
    ends = [0]
    for _, rows, columns in tensors(model):
        ends.append(ends[-1] + rows * columns)
    least, found, start = max(-(-ends[-1] // 16), 10_000), [], 0
    for end in ends[1:]:
        if end - start >= least:
            found.append([start, end])
            start = end
    if not found:
        return [[0, ends[-1]]]
    found[-1][1] = ends[-1]
    return found


def vector_root(values):
    """STATE-2: Merkle root over runs of 16,384 values of the flat vector; `values` are f32 bit patterns."""
    runs = [values[start:end] for start, end in cut(0, len(values), 16_384)]
    return merkle_root([merkle_leaf(i, b"".join(le(v, 4) for v in run)) for i, run in enumerate(runs)])


def exponents_hash(exponents):
    """STATE-3"""
    return tagged("exponents", b"".join(e.to_bytes(2, "little", signed=True) for e in exponents))


def state_root(shards):
    """STATE-1: of each shard step, β powers' bits, exponents, parameters, first and second moments."""
    return tagged("state", b"".join(write(STRUCTS["StateRoots"]["shards"][1], roots) for roots in shards))


def rows_after(model, updates):
    """STATE-8: rows of a state whose trunk has so many updates."""
    return 1 if "Mixture" in model["family"] and updates < model["family"]["Mixture"]["branch"] else rows_of(model)


def branched(shards, rows):
    """STATE-8: trunk and rows, as copies of the one row that there is."""
    trunk, row = shards
    return [trunk] + [row] * rows


# ---------------------------------------------------------------- who holds which row (experts.md)

def dealt(head, nodes, rows):
    """ROW-1: the row of each of these nodes, which have not gone."""
    order = sorted(range(len(nodes)), key=lambda i: tagged("place", head, nodes[i]))
    found = [None] * len(nodes)
    for turn, i in enumerate(order):
        found[i] = turn % rows
    return found


def drawn_rows(head, nodes, held, rows):
    """ROW-2: the rows of these nodes, in order of admission, once those without one have one."""
    held, half = list(held), -(-rows // 2)
    for i, node in enumerate(nodes):
        if held[i] is None:
            candidates = sorted(range(rows), key=lambda row: (held.count(row), row))[:half]
            held[i] = candidates[below(number(tagged("place", head, node)), half)]
    return held


def moved_holder(head, holders, rows, few):
    """ROW-7: who moves to which row; holders have weight, and are (member, row, whether it may have a seat there now)."""
    count = [sum(row == of for _, of, _ in holders) for row in range(rows)]
    able = [[member for member, row, seatable in holders if row == of and seatable] for of in range(rows)]
    p, q = min(range(rows), key=lambda row: (count[row], row)), min(range(rows), key=lambda row: (-len(able[row]), row))
    if count[p] >= few or len(able[q]) < count[p] + 2:
        return None
    return {"member": min(able[q], key=lambda member: tagged("place", head, member)).hex(), "row": p}


def row_plan(few, held, round, rows):
    """STAND-10, ROW-5, ROW-6: which rows are thin, which are held, and by the results of which round each takes a step."""
    thin = [row["seated"] and row["weighted"] < few for row in rows]
    waits = [row["seated"] and 0 < held and row["weighted"] <= held for row in rows]
    own = lambda row, wait: round if row["seated"] and not wait else None
    step = [row["ripe"] if own(row, wait) is None else own(row, wait) for row, wait in zip(rows, waits)]
    return {"thin": thin, "held": waits, "steps": step}


# ---------------------------------------------------------------- assignment (assignment.md)

def round_seed(run, number, state):
    """ASSIGN-1"""
    return tagged("round-seed", run, le(number, 4), state)


def windows(seed, leaf, count, total):
    """ASSIGN-3"""
    return [below(number(tagged("windows", seed, le(leaf, 8), le(b, 4))), total) for b in range(count)]


def windows_of_row(seed, leaf, count, total, rows, row, row_of):
    """ASSIGN-10"""
    if rows == 1:
        return windows(seed, leaf, count, total)

    def drawn(b):
        for j in range(64 * rows):
            window = below(number(tagged("windows", seed, le(leaf, 8), le(b, 4), le(j, 4))), total)
            if row_of(window) == row:
                break
        return window

    return [drawn(b) for b in range(count)]


def segment_windows(seed, segment, steps, count, total):
    """ASSIGN-11: those of its leaves, one after the other."""
    return [window for leaf in range(segment * steps, (segment + 1) * steps) for window in windows(seed, leaf, count, total)]


def masked(model, seed, leaf, window, tokens):
    """ASSIGN-8: what a masked language model reads of a window, and the places that it is to predict."""
    albert, sequence, vocabulary = model["family"]["Albert"], model["sequence"], model["vocabulary"]
    key = tagged("mask", seed, le(leaf, 8), le(window, 4))
    drawn = 0

    def draw(most):
        nonlocal drawn
        drawn += 1
        return below(chacha8_u64(key, drawn - 1), most)

    inputs, places = list(tokens[:sequence]), list(range(sequence))
    count = min(max(sequence * albert["masked_ppm"] // 1_000_000, 1), sequence)
    for first in range(count):
        other = first + draw(sequence - first)
        places[first], places[other] = places[other], places[first]
    places = sorted(places[:count])
    for place in places:
        what, token = draw(10), draw(vocabulary)
        if what < 9:
            inputs[place] = albert["mask_token"] if what < 8 else token
    return inputs, places


def open_shards(model, rows):
    """STATE-9: the shards that take a step; `rows` are those of the slots, or None where the state has one row."""
    return list(range(len(shards(model)))) if rows is None else [0] + [1 + row for row in sorted(set(rows))]


def part_counts(model, rows, divisor):
    """ASSIGN-5: the shards that take a step, and how many parts each has."""
    sizes, taking = shards(model), open_shards(model, rows)
    opened = max(len(taking) - 1, 1)
    loads = [sizes[0][1] * opened if shard == 0 else sizes[1][1] for shard in taking]
    count = lambda shard, load: min(max(1, divisor * load // sum(loads)), len(blocks_of(model, shard)))
    return [(shard, count(shard, load) if divisor else 0) for shard, load in zip(taking, loads)]


def divided(blocks, count):
    """ASSIGN-5: the blocks of a shard, given with their lengths, in so many parts."""
    shares = [[] for _ in range(count)]
    for block in sorted(blocks, key=lambda b: (-blocks[b], b)):
        lightest = min(range(count), key=lambda p: (sum(blocks[b] for b in shares[p]), p))
        shares[lightest].append(block)
    return [sorted(share) for share in shares]


def able(slots, shard, rows):
    """ASSIGN-6: which of all aggregators, in this order, are able to reduce a part of a shard."""
    if shard == 0 or rows is None:
        return list(slots)
    others = [slot for slot in slots if rows[slot] != shard - 1]
    return others or list(slots)


def counted(aggregators, classes, rows):
    """ASSIGN-12: the class of each aggregator, which is 8 where classes do not count."""
    counts = classes is not None and rows is None and 3 <= len(aggregators) <= 64
    return {slot: classes[slot] if counts else 8 for slot in aggregators}


def divisor(aggregators, classes):
    """ASSIGN-12: for how many aggregators blocks are divided."""
    return len(aggregators) if len(set(classes.values())) <= 1 else 4 * len(aggregators)


def parts(model, seed, aggregators, rows=None, planes=1, classes=None):
    """ASSIGN-5, ASSIGN-6: the shard and the blocks of each part, and who reduces it; `classes` are those of all slots."""
    classes = counted(aggregators, classes, rows)
    order, found = shuffled(seed, aggregators), []
    behind = lambda blocks: {block + plane * plane_blocks(model): size for plane in range(planes) for block, size in blocks.items()}
    split = [(shard, blocks) for shard, count in part_counts(model, rows, divisor(aggregators, classes))
             for blocks in (divided(behind(blocks_of(model, shard)), count) if count else [])]
    has = {slot: 0 for slot in aggregators}
    speed = {slot: math.isqrt(2 ** (16 + classes[slot])) for slot in aggregators}
    for shard, blocks in split:
        fit = able(order, shard, rows)
        most = max(1, min(len(split) // 2, 4 * len(split) // len(order)))
        fit = [slot for slot in fit if has[slot] < most] or fit
        # `min` takes the first one among equals.
        taker = min(fit, key=lambda slot: Fraction(has[slot] + 1, speed[slot]))
        has[taker] += 1
        found.append({"shard": shard, "blocks": blocks, "aggregator": taker})
    return found


def shuffled(seed, aggregators):
    """ASSIGN-6"""
    drawn, key = list(aggregators), tagged("aggregators", seed)
    for turn, last in enumerate(range(len(drawn) - 1, 0, -1)):
        other = below(chacha8_u64(key, turn), last + 1)
        drawn[last], drawn[other] = drawn[other], drawn[last]
    return drawn


def seconds(model, seed, aggregators, rows=None):
    """ASSIGN-9: the second aggregator of each part."""
    order, found = shuffled(seed, aggregators), []
    split = parts(model, seed, aggregators, rows)
    for part in split:
        place = order.index(part["aggregator"])
        following = order[place + 1:] + order[:place]
        fit = [slot for slot in following if slot in able(order, part["shard"], rows)] or following
        found.append(fit[0] if fit else None)
    return found


def reassignment(seed, part, shard, failed, aggregators, rows=None, passed=()):
    """ASSIGN-7"""
    others = [slot for slot in aggregators if slot != failed]
    turn = below(number(tagged("aggregators", seed, le(part, 2))), len(others))
    order = others[turn:] + others[:turn]
    inside = lambda slot: shard > 0 and (rows is None or rows[slot] == shard - 1)
    # `sorted` keeps the order of equals.
    return sorted(order, key=lambda slot: (inside(slot), slot in passed))


def timed_classes(times):
    """ROUND-40: the new class of each aggregator, given with its class and its time in milliseconds."""
    counted = sorted(max(time, 1000) for _, time in times)
    if len(counted) < 3:
        return [before for before, _ in times]
    usual = counted[-(-len(counted) // 2) - 1]

    def after(before, time):
        if time >= 2 * usual:
            return max(before - 2, 0)
        if time * time >= 2 * usual * usual:
            return max(before - 1, 0)
        return min(before + 1, 16) if 2 * time * time <= usual * usual else before

    return [after(before, max(time, 1000)) for before, time in times]


# ---------------------------------------------------------------- the grid (grid.md)

def f32(bits):
    return struct.unpack("<f", le(bits, 4))[0]


def f64(bits):
    return struct.unpack("<d", le(bits, 8))[0]


def quantise(gradient, exponent, word):
    """GRID-2: floor(g·2^−e + u), u the upper 24 bits of the word as a fraction."""
    g = f32(gradient)
    if not math.isfinite(g):
        return 0
    return min(max(math.floor(g * 2.0**-exponent + (word >> 8) / 2**24), -(2**22)), 2**22)


def dither(seed, leaf, first, count):
    """GRID-1: word c of the stream belongs to coefficient c."""
    return chacha8(tagged("dither", seed, le(leaf, 8)), first, count)


def exponent_of(rms, grid_bits, fallback):
    """GRID-4: the exponent field of the rms, less grid_bits, clamped."""
    field = rms >> 52
    if not 1 <= field <= 2046:  # zero, subnormal, negative, infinite or not a number
        return fallback
    return min(max(field - 1023 - grid_bits, -120), 100)


def step_exponent(last, wanted):
    """GRID-5"""
    return last + min(max(wanted - last, -1), 1)


def fixed_loss(mean):
    """GRID-6: nats as 2⁻²⁴ units, to nearest, ties to even."""
    scaled = f64(mean) * 2**24
    return round(scaled) if math.isfinite(scaled) and abs(scaled) < 2**40 else 2**40


def pack(values):
    """COMMIT-6: of each 64 integers a width, then one number whose digits in base 2^w they are."""
    data = b""
    for start in range(0, len(values), 64):
        own = values[start:start + 64]
        width = max(0 if v == 0 else (v if v > 0 else ~v).bit_length() + 1 for v in own)
        number = sum((v % (1 << width)) << width * i for i, v in enumerate(own))
        data += bytes([width]) + number.to_bytes((width * len(own) + 7) // 8, "little")
    return data


def unpack(data, count):
    """COMMIT-6: the integers, or None where the bytes are no encoding of so many."""
    values, at = [], 0
    while len(values) < count:
        n = min(64, count - len(values))
        if at == len(data) or data[at] > 32:
            return None
        width, packed = data[at], data[at + 1:at + 1 + (data[at] * n + 7) // 8]
        at += 1 + (width * n + 7) // 8
        digits = [int.from_bytes(packed, "little") >> width * i & (1 << width) - 1 for i in range(n)]
        values += [d - (d >> width - 1 << width) if width else 0 for d in digits]
    # Whatever else is wrong with the bytes, they are not the encoding of these integers.
    return values if pack(values) == data else None


def commitment_root(model, q):
    """COMMIT-1: Merkle root over the layout's chunks of Q."""
    chunks = layout(model)[1]
    return merkle_root([merkle_leaf(i, pack(q[start:end])) for i, (start, end) in enumerate(chunks)])


def part_digest(blocks):
    """AGG-9: what an aggregator signs; `blocks` are lists of f32 bit patterns."""
    return tagged("part", *(b"".join(le(v, 4) for v in block) for block in blocks))


# ---------------------------------------------------------------- fingerprints, coins (sketch.md, coins.md)

GOLDILOCKS = 2**64 - 2**32 + 1


def points(freeze):
    """SKETCH-1"""
    digest = tagged("sketch", freeze)
    return [2 + below(int.from_bytes(digest[8 * j:8 * j + 8], "little"), GOLDILOCKS - 2) for j in (0, 1)]


def fingerprint(at, q, offset=0):
    """SKETCH-2: Σ q[c]·r^c modulo p."""
    return [sum(v * pow(r, offset + c, GOLDILOCKS) for c, v in enumerate(q)) % GOLDILOCKS for r in at]


def projections(seed, ranges, q):
    """TOL-2: 64 sums of each group under the signs of the seed's stream."""
    wrap = lambda value: (value + 2**63) % 2**64 - 2**63
    words = {c: chacha8_u64(seed, c) for start, end in ranges for c in range(start, end)}
    signed = lambda c, bit: -q[c] if words[c] >> bit & 1 else q[c]
    return [wrap(sum(signed(c, bit) for c in range(start, end))) for start, end in ranges for bit in range(64)]


def relative(count, norm, distance):
    """TOL-3: the ε that solves ε·√n·N + ε²·N² = D² − 16; from N² and D², as IEEE 754 has it."""
    excess = distance - 16.0
    if excess <= 0.0:
        return 0.0
    if norm == 0.0:
        return math.inf
    return 2.0 * excess / (math.sqrt(norm) * (math.sqrt(count + 4.0 * excess) + math.sqrt(float(count))))


def deviation(seed, ranges, own, said):
    """TOL-3: the deviation of each group, by projections of two vectors."""
    pairs = zip(projections(seed, ranges, own), projections(seed, ranges, said))
    pairs, found = list(pairs), []
    for place, (start, end) in enumerate(ranges):
        norm = distance = 0.0
        for a, b in pairs[64 * place:64 * place + 64]:
            norm += float(a) * float(a)
            distance += float(a - b) * float(a - b)
        found.append(relative(end - start, norm / 64.0, distance / 64.0))
    return found


COIN_KINDS = ("Node", "Leaf")


def coin(secret, kind, round_number, k):
    """COIN-1"""
    return tagged("coin", secret, bytes([COIN_KINDS.index(kind)]), le(round_number, 4), le(k, 2))


def coin_leaves(secret, first, rounds, leaf_coins):
    """COIN-2: each round its node coin, then its leaf coins."""
    kinds = [("Node", 0)] + [("Leaf", k) for k in range(leaf_coins)]
    coins = [coin(secret, kind, first + past, k) for past in range(rounds) for kind, k in kinds]
    return [merkle_leaf(place, value) for place, value in enumerate(coins)]


def coin_place(terms, kind, round_number, k):
    """COIN-2, COIN-3: where a coin stands; coins outside what was registered do not exist."""
    if not 1 <= terms["rounds"] <= 2**32 - terms["first_round"] or terms["rounds"] * (1 + terms["leaf_coins"]) > 1 << 22:
        raise Refused("rule")
    past = round_number - terms["first_round"]
    inside = 0 <= past < terms["rounds"] and (k == 0 if kind == "Node" else k < terms["leaf_coins"])
    if not inside:
        raise Refused("rule")
    return past * (1 + terms["leaf_coins"]) + (0 if kind == "Node" else 1 + k)


def verify_coin(terms, opening):
    """COIN-3"""
    place = coin_place(terms, opening["kind"], opening["round"], opening["k"])
    count = terms["rounds"] * (1 + terms["leaf_coins"])
    siblings = [bytes.fromhex(s) for s in opening["proof"]["siblings"]]
    merkle_verify(bytes.fromhex(terms["root"]), count, place, merkle_leaf(place, bytes.fromhex(opening["coin"])), siblings)


def selects(value, freeze, member, share_ppm):
    """COIN-4"""
    return number(tagged("select", value, freeze, member)) < share_ppm * 2**64 // 10**6


def selects_block(value, freeze, block, blocks_ppm):
    """COIN-20"""
    return number(tagged("select-block", value, freeze, le(block, 4))) < blocks_ppm * 2**64 // 10**6


def block_inspector(outcome, block, verifiers):
    """COIN-21"""
    return below(number(tagged("inspector-block", outcome, le(block, 4))), verifiers)


def draw(value, freeze, table, m, a):
    """COIN-5: a partial Fisher–Yates shuffle from the front; the first a, ascending. Here a is what the run draws at least."""
    places = list(range(m))
    a = min(32, max(a, -(-m // 8)))
    if a >= m:
        return places
    for i in range(a):
        other = i + below(number(tagged("draw", value, freeze, table, le(i, 4))), m - i)
        places[i], places[other] = places[other], places[i]
    return sorted(places[:a])


def inspector(outcome, slot, verifiers):
    """DUTY-1: the verifier with the smallest number; the first one among equals."""
    numbers = [number(tagged("inspector", outcome, le(slot, 2), verifier)) for verifier in verifiers]
    return numbers.index(min(numbers)) if verifiers else None


def jury(outcome, culprit, accuser, verifiers):
    """DUTY-11: the seven with the smallest numbers, the parties left out."""
    others = [place for place, verifier in enumerate(verifiers) if verifier not in (culprit, accuser)]
    return sorted(others, key=lambda place: number(tagged("jury", outcome, culprit, verifiers[place])))[:7]


def rechecks(value, verdict, recheck_ppm, others):
    """DUTY-7"""
    return number(tagged("recheck", value, verdict)) < recheck_ppm * 2**64 // (10**6 * others)


def sealed(domain, salt, kind, items):
    """AUDIT-3, AUDIT-5: a salted hash of a table or of results."""
    return tagged(domain, salt, write(kind, items))


# ---------------------------------------------------------------- calls (calls.md)

def logit_units(bits):
    """CALL-2: a logit in units of 2^-16, from the bits of an f32, by integers alone."""
    sign, exponent, fraction = bits >> 31, bits >> 23 & 255, bits & 0x7fffff
    if exponent == 255 and fraction:
        return -2**31
    most = 2**31 - 1
    if exponent == 255:
        size = most
    else:
        # |x| = mantissa · 2^power
        mantissa, power = (fraction, -149) if exponent == 0 else (fraction | 1 << 23, exponent - 150)
        shift = power + 16
        if shift >= 0:
            size = mantissa << shift
        else:
            size, rest, half = mantissa >> -shift, mantissa & ((1 << -shift) - 1), 1 << (-shift - 1)
            size += rest > half or (rest == half and size & 1)
        size = min(size, most)
    return -size if sign else size


def logits_digest(units):
    """CALL-3"""
    return tagged("answer", b"".join(le(unit % 2**32, 4) for unit in units))


def askable(manifest, ask):
    """CALL-1: whether the model can be asked this."""
    model, tokens, positions = manifest["model"], ask["tokens"], ask["positions"]
    return (manifest["profile"] == "Exact" and "Albert" not in model["family"] and ask["row"] == 0
            and 1 <= len(tokens) <= model["sequence"] and all(token < model["vocabulary"] for token in tokens)
            and 1 <= positions <= len(tokens) and positions * model["vocabulary"] <= 1 << 19)


def answer_fits(manifest, run, evidence):
    """CALL-6: whether an answer is to the question that it is shown with, and the model can be asked it."""
    ask, answer = (write("Signed", evidence[name]) for name in ("ask", "answer"))
    try:
        verify_envelope(ask, run, "Ask")
        verify_envelope(answer, run, "Answer")
    except (Refused, Malformed):
        return False
    said = decode("Answer", bytes.fromhex(evidence["answer"]["body"]))
    asked = decode("Ask", bytes.fromhex(evidence["ask"]["body"]))
    return said["ask"] == envelope_digest(ask, "Ask").hex() and askable(manifest, asked)


# ---------------------------------------------------------------- standing (standing.md)

def vouched(probation, vouchers, credits):
    """STAND-2: each verifier counts for its share of the probation at most."""
    return sum(min(credit, -(-probation // vouchers)) for credit in credits)


def effective(probation, vouchers, credits, m):
    """STAND-3: how many of m leaves count."""
    if probation == 0:
        return m
    return min(m, sum(credits)) if vouched(probation, vouchers, credits) >= probation else 0


def audit_ppm(share_ppm, newcomer_ppm, halving, credit):
    """STAND-4"""
    return max(share_ppm, newcomer_ppm // 2 ** min(credit // halving, 64))


def voucher_banned(probation, accused, credit, opened, doubt):
    """STAND-1, STAND-11: a member's credit by a verifier that is convicted, of which `opened` is for what is open again; and its leaves
    in doubt."""
    void = min(credit, opened)
    return credit - void, min(probation, doubt + (void if accused else credit))


# ---------------------------------------------------------------- aggregation (aggregation.md)

def weights(m, cap_ppm):
    """AGG-1: the largest cap C with C·10⁶ ≤ share·Σ min(unit, C)."""
    units = [leaves << 16 for leaves in m]
    share = max(cap_ppm, -(-10**6 // max(sum(1 for leaves in m if leaves), 1)))
    fits = lambda cap: cap * 10**6 <= share * sum(min(unit, cap) for unit in units)
    low, high = 0, max(units, default=0)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return [min(unit, low) for unit in units]


def weighted_median(values, weight):
    """AGG-2: the smallest value at which the weights of it and all smaller ones reach half."""
    reached = 0
    for value, w in sorted(zip(values, weight), key=lambda pair: pair[0]):
        reached += w
        if 2 * reached >= sum(weight):
            return value


def ordered_sum(terms):
    total = 0.0
    for term in terms:
        total += term
    return total


def inner(a, b):
    """AGG-4: a product of two vectors, in eight partial sums."""
    s = [0.0] * 8
    for c, (x, y) in enumerate(zip(a, b)):
        s[c % 8] += x * y
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))


def combine(base, rows, k):
    """AGG-7: base + Σ k_j (x_j − base), rounded to f32; as bit patterns."""
    values = []
    for c, b in enumerate(base):
        shift = ordered_sum(kj * (row[c] - b) for kj, row in zip(k, rows))
        values.append(int.from_bytes(struct.pack("<f", b + shift), "little"))
    return values


def products(rows):
    """AGG-4, AGG-11"""
    return [[inner(rows[max(i, j)], rows[min(i, j)]) for j in range(len(rows))] for i in range(len(rows))]


def between(gram, i, j):
    """AGG-11: the square of the distance of two inputs"""
    return max(gram[i][i] + gram[j][j] - 2.0 * gram[i][j], 0.0)


def from_combination(gram, k):
    """AGG-6, AGG-11: the square of each input's distance to Σ k_j·x_j"""
    n = range(len(k))
    h = [ordered_sum(k[j] * gram[i][j] for j in n) for i in n]
    square = ordered_sum(k[j] * h[j] for j in n)
    return [max(gram[i][i] - 2.0 * h[i] + square, 0.0) for i in n]


def centred_clip(rows, m, weight, c, iterations):
    """AGG-3 to AGG-6"""
    centre = [weighted_median(column, weight) for column in zip(*rows)]
    gram = products([[x - v for x, v in zip(row, centre)] for row in rows])
    residuals = [math.sqrt(leaves * gram[i][i]) for i, leaves in enumerate(m)]
    radius = c * weighted_median(residuals, weight)
    k = [0.0] * len(rows)
    factor = lambda r: radius / r if r > radius else 1.0
    factors = [factor(r) for r in residuals]
    for step in range(iterations if radius else 0):
        if step:
            factors = [factor(math.sqrt(leaves * square)) for leaves, square in zip(m, from_combination(gram, k))]
        k = [w * f for w, f in zip(weight, factors)]
        total = ordered_sum(k)
        k = [value / total for value in k]
    return combine(centre, rows, k), factors


def from_largest(rows, k):
    """AGG-12"""
    return combine(rows[k.index(max(k))], rows, k)


def trimmed_mean(rows, weight, assumed_ppm):
    """AGG-13"""
    total, cut = sum(weight), sum(weight) * assumed_ppm // 10**6
    values, inside = [], [0] * len(rows)
    for column in zip(*rows):
        up_to = lambda limit: sum(w for x, w in zip(column, weight) if x <= limit)
        from_on = lambda limit: sum(w for x, w in zip(column, weight) if x >= limit)
        a = min(x for x in column if up_to(x) > cut)
        b = max(x for x in column if from_on(x) > cut)
        kept = ordered_sum(w * (min(max(x, a), b) - a) for x, w in zip(column, weight))
        value = a + (kept - cut * (b - a)) / (total - 2 * cut)
        values.append(int.from_bytes(struct.pack("<f", value), "little"))
        inside = [count + (a <= x <= b) for count, x in zip(inside, column)]
    return values, [count / len(values) for count in inside]


def geometric_median(rows, weight, least, iterations):
    """AGG-14"""
    gram, k = products(rows), [0.0] * len(rows)
    for _ in range(max(iterations, 1)):
        distances = [max(math.sqrt(square), least) for square in from_combination(gram, k)]
        k = [w / d for w, d in zip(weight, distances)]
        total = ordered_sum(k)
        k = [value / total for value in k]
    return from_largest(rows, k), [min(distances) / d for d in distances]


def krum(rows, f, chosen):
    """AGG-15: the best `chosen` inputs"""
    gram, n = products(rows), len(rows)
    scores = [ordered_sum(sorted(between(gram, i, j) for j in range(n))[:n - f]) for i in range(n)]
    best = sorted(range(n), key=lambda i: (scores[i], i))[:chosen]
    factors = [1.0 if i in best else 0.0 for i in range(n)]
    return from_largest(rows, [factor * (1.0 / chosen) for factor in factors]), factors


def fixed_radius_clip(rows, weight, radius, iterations):
    """AGG-16"""
    gram, k, factors = products(rows), [0.0] * len(rows), [1.0] * len(rows)
    for _ in range(iterations):
        factors = [radius / math.sqrt(square) if math.sqrt(square) > radius else 1.0 for square in from_combination(gram, k)]
        shares = [w / float(sum(weight)) * factor for w, factor in zip(weight, factors)]
        kept = 1.0 - ordered_sum(shares)
        k = [kept * value + share for value, share in zip(k, shares)]
    return combine([0.0] * len(rows[0]), rows, k), factors


def mixed(rows, f):
    """AGG-17: the mixed rows, and whom each one leaves out"""
    gram, n = products(rows), len(rows)
    left_out = [sorted(sorted(range(n), key=lambda j: (between(gram, i, j), j))[n - f:]) for i in range(n)]
    mix = lambda i, column: (ordered_sum(column) - ordered_sum(column[j] for j in left_out[i])) * (1.0 / (n - f))
    return [[mix(i, column) for column in zip(*rows)] for i in range(n)], left_out


def aggregate(rule, q, m, weight, radius, iterations, assumed_ppm, mixing):
    if 0 in weight and (mixing or rule not in ("CenteredClip", "Mean", "Median")):  # AGG-11
        counted = [i for i, w in enumerate(weight) if w]
        some = lambda values: [values[i] for i in counted]
        values, left = aggregate(rule, some(q), some(m), some(weight), radius, iterations, assumed_ppm, mixing)
        return values, [left[counted.index(i)] if i in counted else 0.0 for i in range(len(q))]
    rows, n = [[v / leaves for v in row] for row, leaves in zip(q, m)], len(q)
    f = n * assumed_ppm // 10**6
    if mixing:
        rows, left_out = mixed(rows, f)
    values, factors = rule_of_rows(rule, rows, m, weight, f32(radius), iterations, assumed_ppm, f)
    if mixing:
        used = lambda i: ordered_sum(factor for factor, missing in zip(factors, left_out) if i not in missing)
        factors = [min(used(i) * (1.0 / (n - f)), 1.0) for i in range(n)]
    return values, factors


def rule_of_rows(rule, rows, m, weight, radius, iterations, assumed_ppm, f):
    untouched = [1.0] * len(rows)
    if rule == "CenteredClip":
        return centred_clip(rows, m, weight, radius, iterations)
    if rule == "Mean":
        return combine(rows[0], rows, [w / float(sum(weight)) for w in weight]), untouched
    if rule == "Median":
        return combine([weighted_median(column, weight) for column in zip(*rows)], [], []), untouched
    if rule == "TrimmedMean":
        return trimmed_mean(rows, weight, assumed_ppm)
    if rule == "GeometricMedian":
        return geometric_median(rows, weight, radius, iterations)
    if rule == "FixedRadiusClip":
        return fixed_radius_clip(rows, weight, radius, iterations)
    return krum(rows, f, 1 if rule == "Krum" else len(rows) - f)


def objects(q, m, values, exponent, scale=1.0):
    """AGG-20: unless ‖x − v‖² ≤ 9·(‖x‖² + n·4^exponent); `values` are f32 bit patterns."""
    x = [number / m * scale for number in q]
    away = ordered_sum((a - f32(v)) * (a - f32(v)) for a, v in zip(x, values))
    own = len(q) * 4.0 ** exponent
    for a in x:
        own += a * a
    return not away <= 9.0 * own


def scale(m, weights):
    """LOCAL-6: M."""
    return sum(count * weight for count, weight in zip(m, weights)) / sum(weights)


def trust(values, most, grid_bits):
    """AGG-22: a block of a row after its rule, as f32 bit patterns."""
    reals, limit = [f32(v) for v in values], most * 2.0 ** (grid_bits + 1)
    rms = math.sqrt(inner(reals, reals) / len(reals))
    if not rms > limit:
        return values
    return [int.from_bytes(struct.pack("<f", v * (limit / rms)), "little") for v in reals]


def rounded(values, exponent, freeze, block):
    """AGG-23: a block of a result, as f32 bit patterns, on multiples of 2^exponent."""
    words = chacha8(tagged("rounding", freeze, le(block, 4)), 0, len(values))
    return multiples_of([quantise(v, exponent, word) for v, word in zip(values, words)], exponent)


def multiples_of(integers, exponent):
    return [int.from_bytes(struct.pack("<f", q * 2.0 ** exponent), "little") for q in integers]


def values_of(data, exponent, count):
    """AGG-24: f32 bit patterns, or None where the bytes are not those of so many values."""
    integers = unpack(data, count)
    if integers is None or any(abs(q) > 1 << 22 for q in integers):
        return None
    return multiples_of(integers, exponent)


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    import cases
    sys.exit(cases.main(sys.argv[1:]))
