"""The middle of the star that `links.sh` makes: carries packets between hosts, and holds them.

    links.py relay RATES DELAY NAMESPACE…     # UP/DOWN of each, in Mbit/s, and ms; makes a device `wire` in each, says "ready", carries
    links.py check RATE DELAY                 # under links.sh: measures a stream and a round trip between two hosts

A host's uplink is shaped before packets come here, by `tbf` in its namespace, so that its TCP sees a full queue as it would on
a machine with a slow card. Its downlink is shaped here: each has a clock that says when the line is free again. A packet that
would wait for more than `QUEUE` is dropped, as a router drops the tail. `tbf` cannot do that for a downlink, since what is
written to a TUN device does not pass its queue.

The devices have segmentation offload: the kernel hands over up to 64 KiB of a TCP stream at once, with its segment size, and
takes them so on the other side. MTU, window and slow start are those of packets of 1500 bytes, at a tenth of the work.
"""

import collections
import ctypes
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time

# How long a packet may wait for a downlink, in seconds.
QUEUE = 0.1
# The least time between two looks at the devices, so that the relay leaves the processors to what is measured.
PAUSE = 0.0005
HEADERS = 40  # of a segment, IPv4 and TCP
PREFIX = struct.Struct("<BBHHHH")  # virtio_net_hdr
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
TUN_F_CSUM, TUN_F_TSO4 = 1, 2
LARGEST = 1 << 16


def device(namespace):
    """Makes the device `wire` in a namespace; its file."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(path):
        place = os.open(path, os.O_RDONLY)
        if libc.setns(place, 0) != 0:
            raise OSError(ctypes.get_errno(), f"setns {path}")
        os.close(place)

    back = os.open("/proc/self/ns/net", os.O_RDONLY)
    enter(f"/run/netns/{namespace}")
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", b"wire", IFF_TUN | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(file, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)
    libc.setns(back, 0)
    os.close(back)
    return file


def on_line(packet):
    """Bytes of a packet on the line, with the headers of all its segments."""
    _, kind, _, size, _, _ = PREFIX.unpack_from(packet)
    length = len(packet) - PREFIX.size
    return length + HEADERS * max(0, -(-(length - HEADERS) // size) - 1) if kind else length


class Downlink:
    """One host's: packets wait here for the line, and then for the delay."""

    def __init__(self, file, rate, delay):
        self.file, self.second, self.delay = file, 8e-6 / rate, delay
        self.free, self.waiting = 0.0, collections.deque()

    def take(self, packet, now):
        begin = max(now, self.free)
        if begin - now > QUEUE:
            return
        self.free = begin + on_line(packet) * self.second
        self.waiting.append((self.free + self.delay, packet))

    def bring(self, now):
        while self.waiting and self.waiting[0][0] <= now:
            _, packet = self.waiting.popleft()
            try:
                os.write(self.file, packet)
            except OSError:
                pass  # a device that is down, or goes


def relay(rates, delay, namespaces):
    files = [device(name) for name in namespaces]
    # Half of a pause passes before a packet is read, and half before it is written.
    links = [Downlink(file, rate, max(0.0, delay / 1e3 - PAUSE)) for file, rate in zip(files, rates)]
    # Of the address 10.77.0.i, the last byte says whose it is.
    by_address = {number: link for number, link in enumerate(links, 1)}
    print("ready", flush=True)
    while True:
        heads = [link.waiting[0][0] for link in links if link.waiting]
        patience = max(0.0, min(heads) - time.monotonic()) if heads else None
        readable, _, _ = select.select(files, [], [], patience)
        now = time.monotonic()
        for file in readable:
            for packet in read(file):
                # Only IPv4 to one of the hosts; anything else has nowhere to go.
                if packet[PREFIX.size] >> 4 == 4 and (target := by_address.get(packet[PREFIX.size + 19])):
                    target.take(packet, now)
        for link in links:
            link.bring(now)
        time.sleep(PAUSE)


def read(file):
    """What a device has now; other devices get their turn."""
    for _ in range(64):
        try:
            yield os.read(file, LARGEST + PREFIX.size)
        except OSError:
            return


SERVE = """
import socket, sys
server = socket.create_server((sys.argv[1], 7))
print("ready", flush=True)
while True:
    peer, _ = server.accept()
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while (got := peer.recv(1 << 18)):
        if len(got) == 1:
            peer.sendall(got)
"""

DIAL = """
import socket, statistics, sys, time
peer = socket.create_connection((sys.argv[1], 7))
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
def trip():
    begun = time.perf_counter(); peer.sendall(b"x"); peer.recv(1); return time.perf_counter() - begun
trips = statistics.median(trip() for _ in range(9))
end, sent, first = time.perf_counter() + 6, 0, None
while (now := time.perf_counter()) < end:
    # Slow start is left out.
    if first is None and now > end - 4: first, sent = now, 0
    sent += peer.send(bytes(1 << 16))
print(trips, 8e-6 * sent / (now - first))
"""


def check(rate, delay):
    """Prints what the links carry beside what was asked; exits with 1 where it is far from it."""
    hosts = [line.split() for line in os.environ["LINKS_HOSTS"].splitlines()]

    def within(name):
        return ["ip", "netns", "exec", name, sys.executable, "-c"]

    (server, address), (client, _) = hosts[:2]
    with subprocess.Popen([*within(server), SERVE, address], stdout=subprocess.PIPE) as serving:
        serving.stdout.readline()
        before = processor_seconds()
        done = subprocess.run([*within(client), DIAL, address], capture_output=True, text=True, check=True)
        spent = (processor_seconds() - before) / 6
        serving.kill()
    trip, carried = map(float, done.stdout.split())
    print(f"one stream: {carried:.1f} Mbit/s (asked: {rate:g}); round trip: {1e3 * trip:.1f} ms (asked: {2 * delay:g}); "
          f"the relay takes {100 * spent:.0f} % of a processor")
    sys.exit(not (0.85 * rate <= carried <= 1.02 * rate and abs(1e3 * trip - 2 * delay) < 2))


def processor_seconds():
    """Of the relay."""
    fields = open(f"/proc/{os.environ['LINKS_RELAY']}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main():
    word, rate, delay, *namespaces = sys.argv[1:]
    # The shell that started this ends it; Ctrl-C reaches both.
    if word == "relay":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Of UP/DOWN, what comes towards a host.
        relay([float(one.split("/")[-1]) for one in rate.split(",")], float(delay), namespaces)
    check(float(rate), float(delay))


if __name__ == "__main__":
    main()
