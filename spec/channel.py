"""The channel (channel.md) in plain Python: Noise XX with X25519, SHA-256, and AES-256-GCM or ChaCha20-Poly1305.

Only the standard library, and nothing of the Rust crates. Slow, and not hardened against whoever measures its time.
"""

import hashlib
import hmac
import struct

import reference as ref

U32 = 2**32 - 1
SUITES = {1: b"Noise_XX_25519_AESGCM_SHA256", 2: b"Noise_XX_25519_ChaChaPoly_SHA256"}
TAG = 16
TEXT = 65_535 - TAG
MESSAGE = 4 << 20


class Failed(Exception):
    """The handshake failed, or a frame did not open; CHAN-6: nobody is told why."""


# ---------------------------------------------------------------- X25519 (RFC 7748)

def x25519(secret, public):
    """CHAN-5: fails where the result is all zeros."""
    scalar = int.from_bytes(secret, "little") & (2**254 - 8) | 2**254
    x1, x2, z2, z3, swap = int.from_bytes(public, "little") & (2**255 - 1), 1, 0, 1, 0
    x3 = x1
    for place in reversed(range(255)):
        bit = scalar >> place & 1
        if swap ^ bit:
            x2, x3, z2, z3 = x3, x2, z3, z2
        swap = bit
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        aa, bb, da, cb = a * a, b * b, d * a, c * b
        x3, z3 = (da + cb) ** 2 % ref.P, x1 * (da - cb) ** 2 % ref.P
        x2, z2 = aa * bb % ref.P, (aa - bb) * (aa + 121665 * (aa - bb)) % ref.P
    if swap:
        x2, z2 = x3, z3
    shared = ref.le(x2 * pow(z2, ref.P - 2, ref.P) % ref.P, 32)
    if not any(shared):
        raise Failed
    return shared


def public_of(secret):
    return x25519(secret, ref.le(9, 32))


# ---------------------------------------------------------------- AES-256-GCM (FIPS 197, SP 800-38D)

def times_x(byte):
    return byte << 1 ^ (0x11B if byte & 0x80 else 0)


def substitution():
    """The S-box: inverses in GF(2⁸), then the affine map."""
    log, power, value = {}, [], 1
    for exponent in range(255):
        log[value] = exponent
        power.append(value)
        value ^= times_x(value)  # 3 generates the group
    box = []
    for byte in range(256):
        inverse = power[-log[byte] % 255] if byte else 0
        turned = 0
        for turn in range(5):
            turned ^= (inverse << turn | inverse >> (8 - turn)) & 0xFF
        box.append(turned ^ 0x63)
    return box


BOX = substitution()


def aes_key(key):
    words, constant = [list(key[i:i + 4]) for i in range(0, 32, 4)], 1
    for i in range(8, 60):
        word = words[-1]
        if i % 8 == 0:
            word = [BOX[byte] for byte in word[1:] + word[:1]]
            word[0] ^= constant
            constant = times_x(constant)
        elif i % 8 == 4:
            word = [BOX[byte] for byte in word]
        words.append([a ^ b for a, b in zip(words[-8], word)])
    return [sum(words[4 * turn:4 * turn + 4], []) for turn in range(15)]


def aes_block(keys, block):
    state = [a ^ b for a, b in zip(block, keys[0])]
    for turn in range(1, 15):
        state = [BOX[state[(i + 4 * (i % 4)) % 16]] for i in range(16)]
        if turn < 14:
            mixed = []
            for column in (state[i:i + 4] for i in range(0, 16, 4)):
                total = column[0] ^ column[1] ^ column[2] ^ column[3]
                mixed += [column[i] ^ total ^ times_x(column[i] ^ column[(i + 1) % 4]) for i in range(4)]
            state = mixed
        state = [a ^ b for a, b in zip(state, keys[turn])]
    return bytes(state)


def ghash(h, data):
    total = 0
    for start in range(0, len(data), 16):
        x, v, total = total ^ int.from_bytes(data[start:start + 16], "big"), h, 0
        for place in range(127, -1, -1):
            if x >> place & 1:
                total ^= v
            v = v >> 1 ^ (0xE1 << 120 if v & 1 else 0)
    return total


def aes_gcm(key, number, bound, data, opens):
    """Seals a text, or opens it; the text or the body, and its tag."""
    keys, nonce = aes_key(key), bytes(4) + number.to_bytes(8, "big")
    block = lambda counter: aes_block(keys, nonce + counter.to_bytes(4, "big"))
    stream = b"".join(block(2 + i) for i in range((len(data) + 15) // 16))
    other = bytes(a ^ b for a, b in zip(data, stream))
    body = data if opens else other
    filled = lambda part: part + bytes(-len(part) % 16)
    lengths = (8 * len(bound)).to_bytes(8, "big") + (8 * len(body)).to_bytes(8, "big")
    h = int.from_bytes(aes_block(keys, bytes(16)), "big")
    mac = ghash(h, filled(bound) + filled(body) + lengths).to_bytes(16, "big")
    return other, bytes(a ^ b for a, b in zip(mac, block(1)))


# ---------------------------------------------------------------- ChaCha20-Poly1305 (RFC 8439)

def chacha20_poly1305(key, number, bound, data, opens):
    """The nonce is four zero bytes and the number: words 13 to 15, where HASH-6 has a counter of 64 bits and zeros."""
    def block(counter):
        start = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574, *struct.unpack("<8I", key), counter, 0, number & U32, number >> 32]
        v = list(start)
        for _ in range(10):
            for a, b, c, d in ref.LANES:
                for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                    v[x] = (v[x] + v[y]) & U32
                    w = v[z] ^ v[x]
                    v[z] = (w << turn | w >> 32 - turn) & U32
        return struct.pack("<16I", *((a + b) & U32 for a, b in zip(v, start)))

    stream = b"".join(block(1 + i) for i in range((len(data) + 63) // 64))
    other = bytes(a ^ b for a, b in zip(data, stream))
    body = data if opens else other
    once = block(0)
    r, s = int.from_bytes(once[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF, int.from_bytes(once[16:32], "little")
    filled = lambda part: part + bytes(-len(part) % 16)
    covered, total = filled(bound) + filled(body) + ref.le(len(bound), 8) + ref.le(len(body), 8), 0
    for start in range(0, len(covered), 16):
        total = (total + int.from_bytes(covered[start:start + 16] + b"\1", "little")) * r % (2**130 - 5)
    return other, ref.le((total + s) % 2**128, 16)


CIPHERS = {1: aes_gcm, 2: chacha20_poly1305}


def seal(suite, key, number, bound, text):
    return b"".join(CIPHERS[suite](key, number, bound, text, False))


def unseal(suite, key, number, bound, data):
    if len(data) < TAG:
        raise Failed
    text, tag = CIPHERS[suite](key, number, bound, data[:-TAG], True)
    if tag != data[-TAG:]:
        raise Failed
    return text


# ---------------------------------------------------------------- the handshake (Noise, revision 34)

class Symmetric:
    """What both ends have hashed and mixed so far."""

    def __init__(self, suite, prologue):
        self.suite, self.key, self.number = suite, None, 0
        self.hash = self.chaining = SUITES[suite].ljust(32, b"\0")
        self.mix_hash(prologue)

    def mix_hash(self, data):
        self.hash = hashlib.sha256(self.hash + data).digest()

    def derive(self, material):
        mac = lambda key, data: hmac.digest(key, data, "sha256")
        secret = mac(self.chaining, material)
        first = mac(secret, b"\1")
        return first, mac(secret, first + b"\2")

    def mix_key(self, material):
        self.chaining, self.key = self.derive(material)
        self.number = 0

    def write(self, text):
        data = seal(self.suite, self.key, self.number, self.hash, text) if self.key else text
        self.number += 1
        self.mix_hash(data)
        return data

    def read(self, data):
        text = unseal(self.suite, self.key, self.number, self.hash, data) if self.key else data
        self.number += 1
        self.mix_hash(data)
        return text


def preamble(suite):
    return b"muster\1" + bytes([suite])


def ephemeral(seed):
    """The first 32 bytes of the ChaCha20 stream of a seed: how vectors name a key that is drawn at random elsewhere."""
    return struct.pack("<16I", *ref.chacha_block(seed, 0, 20))[:32]


class End:
    """One end of a channel: identity, static and ephemeral secret, the expiry of its certificate."""

    def __init__(self, suite, run, identity, static, seed, expiry):
        """CHAN-2"""
        self.symmetric, self.run, self.peer = Symmetric(suite, preamble(suite) + run), run, None
        self.suite, self.identity, self.static, self.once, self.expiry = suite, identity, static, ephemeral(seed), expiry

    def certificate(self):
        """CHAN-3"""
        body = ref.write("Certificate", {"key": public_of(self.static).hex(), "expiry": self.expiry})
        return ref.envelope(self.identity, self.run, "Certificate", body)

    def first(self):
        """CHAN-1: message 1, from the dialler"""
        public = public_of(self.once)
        self.symmetric.mix_hash(public)
        self.symmetric.write(b"")
        return preamble(self.suite) + public

    def second(self, first):
        """Message 2, from the answerer"""
        if len(first) != 40 or first[:8] != preamble(self.suite):
            raise Failed
        self.other, public = first[8:], public_of(self.once)
        self.symmetric.mix_hash(self.other)
        self.symmetric.read(b"")
        self.symmetric.mix_hash(public)
        self.symmetric.mix_key(x25519(self.once, self.other))
        static = self.symmetric.write(public_of(self.static))
        self.symmetric.mix_key(x25519(self.static, self.other))
        return public + static + self.symmetric.write(self.certificate())

    def third(self, second, now, expected=None):
        """CHAN-4: message 3, from the dialler, unless message 2 comes from somebody else"""
        if len(second) != 268:
            raise Failed
        self.other = second[:32]
        self.symmetric.mix_hash(self.other)
        self.symmetric.mix_key(x25519(self.once, self.other))
        static = self.symmetric.read(second[32:80])
        self.symmetric.mix_key(x25519(self.once, static))
        self.peer = self.holder(self.symmetric.read(second[80:]), static, now)
        if expected not in (None, self.peer):
            raise Failed
        message = self.symmetric.write(public_of(self.static))
        self.symmetric.mix_key(x25519(self.static, self.other))
        return message + self.symmetric.write(self.certificate())

    def last(self, third, now):
        """CHAN-4: whom the answerer has, once message 3 has verified"""
        if len(third) != 236:
            raise Failed
        static = self.symmetric.read(third[:48])
        self.symmetric.mix_key(x25519(self.once, static))
        self.peer = self.holder(self.symmetric.read(third[48:]), static, now)

    def holder(self, certificate, static, now):
        """CHAN-3"""
        try:
            signer = ref.verify_envelope(certificate, self.run, "Certificate")
            said = ref.decode("Certificate", bytes.fromhex(ref.decode("Signed", certificate)["body"]))
        except ref.Refused:
            raise Failed from None
        if said["key"] != static.hex() or said["expiry"] <= now:
            raise Failed
        return signer


def agreed(suite, run, dialler, answerer):
    """Both ends after a handshake, and its three messages."""
    one, two = End(suite, run, *dialler), End(suite, run, *answerer)
    first = one.first()
    second = two.second(first)
    third = one.third(second, 0)
    two.last(third, 0)
    assert one.symmetric.hash == two.symmetric.hash
    return one, [first, second, third]


# ---------------------------------------------------------------- frames

def frames(suite, key, number, message):
    """CHAN-7: a message as frames, the first of which has this number."""
    text = ref.le(len(message), 4) + message
    pieces = [text[start:start + TEXT] for start in range(0, len(text), TEXT)]
    return [seal(suite, key, number + place, b"", piece) for place, piece in enumerate(pieces)]


def messages(suite, key, received):
    """CHAN-7: what a reader makes of frames: for each the message that it completes, None amid one, False from the first error on."""
    found, length, partial = [], None, b""
    for number, frame in enumerate(received):
        try:
            text = unseal(suite, key, number, b"", frame)
            if length is None:
                if len(text) < 4:
                    raise Failed
                length, text = int.from_bytes(text[:4], "little"), text[4:]
            partial += text
            if length > MESSAGE or len(partial) > length or (len(partial) < length and len(frame) < TEXT + TAG):
                raise Failed
        except Failed:
            return found + [False] * (len(received) - number)
        found.append(partial.hex() if len(partial) == length else None)
        if len(partial) == length:
            length, partial = None, b""
    return found
