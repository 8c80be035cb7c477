"""Invitations as text (encoding.md): a Ticket as one line."""

import ipaddress

import reference as ref

DIGITS = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
EPOCH = 1767225600
V4, V6, LOOPBACK_V4, LOOPBACK_V6, FIRST_HOST, SWARM, SAME_PORT = 1, 2, 3, 4, 5, 8, 16
LOOPBACKS = {ipaddress.ip_address("127.0.0.1"): LOOPBACK_V4, ipaddress.ip_address("::1"): LOOPBACK_V6}


def base58(data):
    """Bitcoin's alphabet; each zero byte at the front is a 1."""
    number, text = int.from_bytes(data, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        text = DIGITS[digit] + text
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + text


def unbase58(text):
    if any(digit not in DIGITS for digit in text):
        raise ref.Refused("no base58")
    number = 0
    for digit in text:
        number = number * 58 + DIGITS.index(digit)
    return bytes(len(text) - len(text.lstrip("1"))) + number.to_bytes((number.bit_length() + 7) // 8, "big")


def base128(number):
    digits = b""
    while number >= 128:
        digits, number = digits + bytes([number % 128 + 128]), number // 128
    return digits + bytes([number])


def checksum(body):
    return ref.blake3(ref.IV, body, 0)[:2]


def text_of(host, port, swarm, steward):
    """LINE-4"""
    name = f"::ffff:{host.ipv4_mapped}" if host.version == 6 and host.ipv4_mapped else str(host)
    if not swarm:
        return f"{name}:{port}" if host.version == 4 else f"[{name}]:{port}"
    return f"/ip{host.version}/{name}/tcp/{port}/p2p/{base58(bytes([0, 36, 8, 1, 18, 32]) + steward)}"


def numeric(text, steward):
    """LINE-3: host, port and whether it is of the swarm; None for any text but the one of LINE-4."""
    try:
        if text.startswith("/"):
            _, _, host, _, port, *_ = text.split("/")
            found = ipaddress.ip_address(host), int(port), True
        else:
            host, _, port = text.rpartition(":")
            found = ipaddress.ip_address(host[1:-1] if host.startswith("[") else host), int(port), False
    except ValueError:
        return None
    scoped = getattr(found[0], "scope_id", None) is not None
    return found if not scoped and found[1] < 2**16 and text_of(*found, steward) == text else None


def pack(ticket):
    """LINE-2, LINE-3"""
    steward, permit = bytes.fromhex(ticket["steward"]), ticket["pass"]
    data, flags = bytes.fromhex(ticket["run"]) + steward, len(ticket["addresses"])
    if permit is None:
        data += bytes([flags])
    else:
        signed = permit["invitation"]
        said = ref.decode("Invitation", bytes.fromhex(signed["body"]))
        flags |= 16 | (32 if said["role"] == "Verifier" else 0) | (64 if said["founder"] else 0)
        data += bytes([flags]) + base128(said["uses"]) + base128((said["expires"] - EPOCH) % 2**64)
        data += bytes.fromhex(signed["signer"] + signed["signature"] + permit["secret"])
    first, ports = None, {}
    for text in ticket["addresses"]:
        address = numeric(text, steward)
        if address is None:
            data += bytes([0]) + base128(len(text.encode())) + text.encode()
            continue
        host, port, swarm = address
        kind = FIRST_HOST if host == first else LOOPBACKS.get(host, V4 if host.version == 4 else V6)
        same = ports.get(swarm) == port
        data += bytes([kind + (SWARM if swarm else 0) + (SAME_PORT if same else 0)])
        data += (host.packed if kind in (V4, V6) else b"") + (b"" if same else port.to_bytes(2, "big"))
        first, ports[swarm] = first or host, port
    return data


def line(ticket):
    """LINE-1"""
    data = pack(ticket)
    return "muster1:" + base58(data + checksum(data))


class Bytes:
    def __init__(self, data):
        self.left = data

    def take(self, count):
        if count > len(self.left):
            raise ref.Refused("cut short")
        taken, self.left = self.left[:count], self.left[count:]
        return taken

    def number(self):
        total = 0
        for place in range(10):
            byte, = self.take(1)
            total |= byte % 128 << 7 * place
            if byte < 128:
                return total % 2**64
        raise ref.Refused("a number without end")


def read(text):
    """LINE-1, LINE-2: the Ticket of a line"""
    if not text.startswith("muster1:"):
        raise ref.Refused("no invitation")
    data = unbase58(text[len("muster1:"):])
    if len(data) < 3 or data[-2:] != checksum(data[:-2]):
        raise ref.Refused("damaged")
    reader = Bytes(data[:-2])
    run, steward, flags = reader.take(32), reader.take(32), reader.take(1)[0]
    permit = None
    if flags & 16:
        uses, expires = reader.number(), (reader.number() + EPOCH) % 2**64
        signer, signature, secret = reader.take(32), reader.take(64), reader.take(32)
        if uses >= 2**32:
            raise ref.Refused("too many uses")
        body = ref.write("Invitation", dict(role="Verifier" if flags & 32 else "Node", uses=uses, expires=expires,
                                            key=ref.public_key(secret).hex(), founder=bool(flags & 64)))
        signed = run + signer + signature + ref.le(len(body), 4) + body
        ref.verify_envelope(signed, run, "Invitation")
        permit = {"invitation": ref.decode("Signed", signed), "secret": secret.hex()}
    addresses, first, ports = [], None, {}
    for _ in range(flags & 15):
        kind, = reader.take(1)
        if kind == 0:
            addresses.append(reader.take(reader.number()).decode())
            continue
        swarm, hosts = bool(kind & SWARM), {number: host for host, number in LOOPBACKS.items()}
        if kind & 7 in (V4, V6):
            host = ipaddress.ip_address(reader.take(4 if kind & 7 == V4 else 16))
        else:
            host = first if kind & 7 == FIRST_HOST else hosts.get(kind & 7)
        port = ports.get(swarm) if kind & SAME_PORT else int.from_bytes(reader.take(2), "big")
        if host is None or port is None:
            raise ref.Refused("nothing to repeat")
        first, ports[swarm] = first or host, port
        addresses.append(text_of(host, port, swarm, steward))
    ticket = {"run": run.hex(), "steward": steward.hex(), "addresses": addresses, "pass": permit}
    if reader.left or pack(ticket) != data[:-2]:
        raise ref.Refused("not the one line of its ticket")
    return ticket
