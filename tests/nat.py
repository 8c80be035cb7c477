"""What tests/nat.sh runs: hosts, routers, and a run between them."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SCENARIOS = ["public", "mixed", "port", "symmetric", "deep", "home", "firewall", "restart", "relays", "hangs"]
# Where each router takes what comes to a port that it has sent from, or there is none: the relay is needed to begin with.
PUNCHED = ["public", "mixed", "port", "deep", "home", "firewall", "restart"]
LEAST = 0.95
MOST_RELAYED = 0.1
# How many times as long as between public hosts a round may take.
SLOWER = 1.5
# Of what goes through relays, what goes through that of a member that others can dial, while it is there.
LEAST_PAST_STEWARD = 0.5
PATIENCE = 240
# What becomes of a third node, which anybody can dial, after a third of the rounds: it dies, or hangs with all its connections.
RELAY = 3
FATE = {"relays": signal.SIGKILL, "hangs": signal.SIGSTOP}
# How many times as many rounds these have: members look for relays beside their work, which takes seconds.
LONGER = 4
BLAMED = ["ban", "idle", "barren", "kept others waiting and is away", "did not answer an audit", "did not check the results in time"]
UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def usage(why):
    print(f"nat: {why}; see the head of tests/nat.sh", file=sys.stderr)
    sys.exit(2)


def ip(*words):
    subprocess.run(["ip", *" ".join(words).split()], check=True)


class World:
    """An internet of 203.0.113.0/24 and 2001:db8::/64 that drops private addresses, hosts on it, routers and homes."""

    def __init__(self, name):
        self.name, self.spaces, self.wires, self.running = f"nat-{os.getpid()}-{name}", [], 0, []
        self.core = self.space("core")
        ip(f"-n {self.core} link add hub type bridge")
        ip(f"-n {self.core} link set hub up")

    def space(self, name):
        space = f"{self.name}-{name}"
        ip(f"netns add {space}")
        self.spaces.append(space)
        ip(f"-n {space} link set lo up")
        return space

    def wire(self, space, device, other, bridge):
        self.wires += 1
        port = f"port{self.wires}"
        ip(f"-n {space} link add {device} type veth peer name {port} netns {other}")
        ip(f"-n {other} link set {port} master {bridge}")
        ip(f"-n {other} link set {port} up")
        ip(f"-n {space} link set {device} up")

    def public(self, name, number, family=4):
        space = self.space(name)
        self.wire(space, "wire", self.core, "hub")
        if family == 4:
            ip(f"-n {space} address add 203.0.113.{number}/24 dev wire")
        else:
            ip(f"-n {space} address add 2001:db8::{number:x}/64 dev wire nodad")
        return space

    def filter(self, space, rules):
        subprocess.run(["ip", "netns", "exec", space, "nft", "-f", "-"], input=rules, text=True, check=True)

    def firewall(self, space):
        self.filter(space, """table inet fence {
            chain inwards {
                type filter hook input priority 0; policy drop;
                iifname "lo" accept
                ct state established,related accept
                meta l4proto icmpv6 accept
            }
        }""")

    def router(self, name, number, inner, kind="masquerade", behind=None):
        """A router at the internet, or behind another one, and the network 192.168.INNER.0/24 in its home."""
        if behind is None:
            space = self.public(name, number)
        else:
            space = self.home(name, behind, number)
        ip(f"-n {space} link add lan type bridge")
        ip(f"-n {space} link set lan up")
        ip(f"-n {space} address add 192.168.{inner}.1/24 dev lan")
        subprocess.run(["ip", "netns", "exec", space, "sysctl", "-qw", "net.ipv4.ip_forward=1"], check=True)
        self.filter(space, f"""table ip nat {{
            chain out {{
                type nat hook postrouting priority 100;
                oifname "wire" {kind}
            }}
        }}
        table inet fence {{
            chain inwards {{
                type filter hook input priority 0; policy accept;
                iifname "wire" ct state established,related accept
                iifname "wire" drop
            }}
            chain through {{
                type filter hook forward priority 0; policy drop;
                ct state established,related accept
                iifname "lan" accept
            }}
        }}""")
        return space, inner

    def home(self, name, router, number=5):
        router, inner = router
        space = self.space(name)
        self.wire(space, "wire", router, "lan")
        ip(f"-n {space} address add 192.168.{inner}.{number}/24 dev wire")
        ip(f"-n {space} route add default via 192.168.{inner}.1")
        return space

    def start(self, space, log, words):
        with open(log, "a") as out:
            process = subprocess.Popen(["ip", "netns", "exec", space, *words], stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self.running.append(process)
        return process

    def wait(self):
        # The steward measures the state at last, and then says what went through its relay.
        for process in self.running:
            try:
                process.wait(timeout=120)
            except subprocess.TimeoutExpired:
                pass

    def close(self):
        for process in self.running:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
        for space in reversed(self.spaces):
            subprocess.run(["ip", "netns", "delete", space], check=False)


def hosts(world, scenario):
    """The namespaces of the nodes, and of the verifier."""
    def behind(number, kind="masquerade", inner=None):
        return world.router(f"router{number}", 20 + number, inner or 10 + number, kind)

    def deep(number):
        outer = behind(number, inner=100 + number)
        return world.router(f"inner{number}", 9, 10 + number, behind=outer)

    if scenario == "firewall":
        all_hosts = [world.public(f"host{number}", 30 + number, 6) for number in (1, 2, 3)]
        for space in all_hosts:
            world.firewall(space)
        return all_hosts
    verifier = world.home("verifier", behind(3))
    public = lambda number: world.public(f"host{number}", 30 + number)
    if scenario == "public":
        return [public(1), public(2), verifier]
    if scenario == "mixed":
        return [public(1), world.home("host2", behind(2)), verifier]
    if scenario == "home":
        router = behind(1, inner=1)
        return [world.home("host1", router, 5), world.home("host2", router, 6), verifier]
    if scenario == "deep":
        return [world.home("host1", deep(1)), world.home("host2", deep(2)), verifier]
    kind = "masquerade fully-random" if scenario == "symmetric" or scenario in FATE else "masquerade"
    homes = [world.home("host1", behind(1, kind)), world.home("host2", behind(2, kind))]
    return homes + ([public(4)] if scenario in FATE else []) + [verifier]


def run(scenario, rounds, programs, folder):
    """Plays a scenario; gives the share of rounds in which the worse node counted, a round's median seconds, what share of all
    bytes went through the relay, and complaints."""
    muster, verifier = f"{programs}/muster", f"{programs}/muster-verifier"
    settings = (f"name = \"{scenario}\"\n[model]\nwidth = 128\nlayers = 4\nheads = 2\nkey_value_heads = 2\nhidden = 384\n"
                "sequence = 128\n"
                f"[training]\nrounds = {rounds}\nleaves = 8\n[audit]\nshare = 0.5\n"
                f"[admission]\nstart_nodes = {3 if scenario in FATE else 2}\nstart_verifiers = 1\n[timers]\ncommit = 20.0\npart = 20.0\nresult = 20.0\n")
    at = lambda name: os.path.join(folder, name)
    with open(at("run.toml"), "w") as file:
        file.write(settings)
    with open(at("text.txt"), "w") as file:
        file.write(" ".join(str(number * number) for number in range(40_000)))
    say = lambda *words: subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip().splitlines()[-1]
    say(muster, "data", "pack", "--text", at("text.txt"), "--out", at("corpus"))
    say(muster, "run", "new", "--config", at("run.toml"), "--data", at("corpus"), "--out", at("run"))
    world = World(scenario[:4])
    try:
        family = 6 if scenario == "firewall" else 4
        steward = world.public("steward", 10, family)
        *nodes, watcher = hosts(world, scenario)
        listen = "[2001:db8::a]:7777" if family == 6 else "203.0.113.10:7777"
        host = [muster, "host", at("run"), "--listen", listen, "--exit-when-done"]
        hosting = world.start(steward, at("steward.log"), host)
        past, gone, relay, deadline = 0.0, "nobody", None, time.time() + PATIENCE
        while not os.path.exists(at("run/address")) and time.time() < deadline:
            time.sleep(0.1)
        line = say(muster, "invite", at("run"), "--role", "node", "--uses", "3")
        audit = say(muster, "invite", at("run"), "--role", "verifier")
        enrol = [verifier, "enroll", audit, "--data-dir", at("verifier")]
        enrolled = world.start(watcher, at("verifier.log"), enrol).wait(timeout=PATIENCE)
        if enrolled != 0:
            return 0.0, 0.0, 0.0, ["the verifier cannot enrol"]
        world.start(watcher, at("verifier.log"), [verifier, "watch", at("verifier")])
        joined = [
            world.start(node, at(f"node{number}.log"), [muster, "join", line, "--data-dir", at(f"node{number}")])
            for number, node in enumerate(nodes, 1)
        ]
        while any(node.poll() is None for node in joined) and time.time() < deadline:
            time.sleep(0.2)
            if scenario == "restart" and hosting.poll() is None and rounds_of(folder) >= rounds // 3:
                # With it the relay, and whoever has a place there.
                hosting.kill()
                hosting.wait()
                world.start(steward, at("steward.log"), host)
            if scenario in FATE and len(joined) == len(nodes) and rounds_of(folder) >= rounds // 3:
                # With it the relay over which the others send what is relayed.
                past, gone = carried_past_steward(muster, folder, RELAY), member_of(folder, RELAY)
                relay = joined.pop(RELAY - 1)
                relay.send_signal(FATE[scenario])
        if relay:
            relay.kill()
        world.wait()
        share, median, carried, complaints = judge(folder, rounds, [node.poll() for node in joined], gone)
        if scenario in FATE and past < LEAST_PAST_STEWARD:
            complaints.append(f"only {100 * past:.0f} % of what was relayed went past the steward")
        return share, median, carried, complaints
    finally:
        world.close()


def carried_past_steward(muster, folder, node):
    """What share of the bytes that relays have carried so far a node's relay has carried, and not the steward's."""
    def carried(home):
        said = subprocess.run([muster, "status", os.path.join(folder, home), "--json"], capture_output=True, text=True)
        return json.loads(said.stdout)["traffic"]["relayed"]

    past, straight = carried(f"node{node}"), carried("run")
    return past / max(past + straight, 1)


def rounds_of(folder):
    """How many rounds are over."""
    with open(os.path.join(folder, "run/log.jsonl")) as file:
        return sum('"event":"round"' in line for line in file)


def relayed(folder):
    """What share of the bytes that nodes and verifier have sent went through the relay, as the steward says at its end."""
    with open(os.path.join(folder, "steward.log")) as file:
        said = re.findall(r"([0-9.]+) (bytes|KiB|MiB|GiB) went through the relay", file.read())
    sent = 0
    for member in ("node1", "node2", "verifier"):
        with open(os.path.join(folder, member, "result.json")) as file:
            sent += json.load(file)["bytes_sent"]
    return sum(float(number) * UNITS[unit] for number, unit in said) / max(sent, 1)


def member_of(folder, node):
    """What a node is called in the log of the run."""
    with open(os.path.join(folder, f"node{node}.log")) as file:
        return re.search(r"admitted as node ([0-9a-f]+)", file.read()).group(1)


def judge(folder, rounds, codes, gone):
    """From what the nodes say of each round, and the steward of its members: all but the one that is gone, if there is one."""
    complaints, shares = [], []
    for number, code in enumerate(codes, 1):
        with open(os.path.join(folder, f"node{number}.log")) as file:
            counted = [int(leaves) for leaves in re.findall(r"(\d+) of your leaves counted, ", file.read())]
        shares.append(sum(leaves > 0 for leaves in counted) / rounds)
        if code != 0:
            complaints.append(f"node {number} ended with {code}")
    seconds = []
    with open(os.path.join(folder, "run/log.jsonl")) as file:
        for event in map(json.loads, file):
            if event["event"] == "round":
                seconds.append(event["seconds"])
            if event["event"] in BLAMED and not event.get("member", "").startswith(gone):
                complaints.append(event["event"])
    median = sorted(seconds)[len(seconds) // 2] if seconds else 0.0
    return min(shares), median, relayed(folder), complaints


def main():
    words, chosen, rounds, programs = sys.argv[1:], [], 20, "target/release"
    while words:
        word = words.pop(0)
        if word in ("--rounds", "--programs") and not words:
            usage(f"{word} wants a value")
        elif word == "--rounds":
            value = words.pop(0)
            rounds = int(value) if value.isdigit() and int(value) > 0 else usage("--rounds must be a number above 0")
        elif word == "--programs":
            programs = words.pop(0)
        elif word in SCENARIOS:
            chosen.append(word)
        else:
            usage(f"unknown argument {word}")
    for program in ("muster", "muster-verifier"):
        if not os.access(f"{programs}/{program}", os.X_OK):
            usage(f"{programs}/{program} is missing: build it, or name its folder with --programs")
    chosen = chosen or SCENARIOS
    if "public" not in chosen:
        chosen.insert(0, "public")
    usual, bad = None, False
    print(f"{'':<10} {'counted':>8} {'s a round':>10} {'relayed':>8}")
    for scenario in chosen:
        folder = tempfile.mkdtemp(prefix="nat-")
        played = LONGER * rounds if scenario in FATE else rounds
        share, median, carried, complaints = run(scenario, played, os.path.abspath(programs), folder)
        usual = median if usual is None else usual
        if share < LEAST:
            complaints.append(f"counted in fewer than {100 * LEAST:.0f} % of the rounds")
        if scenario in PUNCHED and carried > MOST_RELAYED:
            complaints.append(f"more than {100 * MOST_RELAYED:.0f} % of all bytes went through the relay")
        if median > SLOWER * usual:
            complaints.append(f"a round takes more than {SLOWER} times {usual:.2f} s")
        print(f"{scenario:<10} {100 * share:>7.0f}% {median:>10.2f} {100 * carried:>7.1f}%  {'; '.join(complaints)}", flush=True)
        if complaints:
            bad = True
            print(f"           its logs: {folder}")
        else:
            shutil.rmtree(folder)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
