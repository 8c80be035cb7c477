"""Drives Chromium over the DevTools protocol (a pipe, no packages) through the pages of a run that goes on, and through
those of a very large one. Called by browser.sh."""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SCREENS = os.path.join(ROOT, "target", "screens")
PAGES = ["index", "rounds", "members", "board", "audits", "bans", "verifiers", "records", "manifest", "record/0"]
NARROW, WIDE = (390, 844), (1280, 900)
# Letters that are smaller cannot be read.
LETTERS = 11
failures = []


def check(good, what):
    print(f"{'ok  ' if good else 'FAIL'}  {what}", flush=True)
    if not good:
        failures.append(what)


class Browser:
    """One page of a headless Chromium."""

    def __init__(self):
        self.profile = tempfile.mkdtemp()
        to_browser, ours_in = os.pipe()
        ours_out, from_browser = os.pipe()
        flags = ["--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-quic",
                 "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
                 "--hide-scrollbars", f"--user-data-dir={self.profile}"]

        def wire():
            # The protocol is spoken on descriptors 3 and 4.
            keep_in, keep_out = os.dup2(to_browser, 93), os.dup2(from_browser, 94)
            os.dup2(keep_in, 3)
            os.dup2(keep_out, 4)

        self.process = subprocess.Popen([os.environ["CHROMIUM"], *flags, "about:blank"], preexec_fn=wire,
                                        close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.out, self.source, self.buffer = os.fdopen(ours_in, "wb", 0), ours_out, b""
        self.number, self.session, self.errors, self.loaded = 0, None, [], 0
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ["Page", "Runtime", "Log", "Network"]:
            self.call(f"{domain}.enable")

    def receive(self):
        while b"\0" not in self.buffer:
            read = os.read(self.source, 1 << 16)
            if not read:
                sys.exit("Chromium ended")
            self.buffer += read
        message, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(message)
        method, given = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(given["exceptionDetails"]["text"])
        if method == "Log.entryAdded" and given["entry"]["level"] == "error":
            self.errors.append(given["entry"]["text"] + " " + given["entry"].get("url", ""))
        if method == "Runtime.consoleAPICalled" and given["type"] in ("error", "assert"):
            self.errors.append(str(given["args"]))
        if method == "Page.loadEventFired":
            self.loaded += 1
        return message

    def call(self, method, **given):
        self.number += 1
        message = {"id": self.number, "method": method, "params": given}
        if self.session:
            message["sessionId"] = self.session
        self.out.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def evaluate(self, script):
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def open(self, url):
        before = self.loaded
        self.call("Page.navigate", url=url)
        while self.loaded == before:
            self.receive()

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def colours(self, scheme):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, name):
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        with open(os.path.join(SCREENS, name + ".png"), "wb") as file:
            file.write(base64.b64decode(shot["data"]))

    def press(self, key, code):
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def close(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)


# Text whose contrast with what lies behind it is below what WCAG 2 wants of level AA.
CONTRAST = """(() => {
  const parse = (text) => { const n = text.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
  const light = ([r, g, b]) => { const f = (v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
    return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
  const behind = (element) => { for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor); if (colour[3] === 1) return colour; } return [255, 255, 255, 1]; };
  const poor = [];
  for (const element of document.body.querySelectorAll("*")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || element.closest("svg") || element.closest(".skip") || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const [a, b] = [light(parse(style.color)), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push(`${element.tagName} ${element.className} ${ratio.toFixed(2)}: ${element.textContent.slice(0, 40)}`);
  }
  return poor;
})()"""

# What the keyboard is on, and whether one sees that.
FOCUS = """(() => { const at = document.activeElement, box = at.getBoundingClientRect(), style = getComputedStyle(at);
  return { name: at.tagName + " " + (at.getAttribute("href") || at.getAttribute("aria-label") || at.id || ""),
    seen: box.width > 0 && box.right > 0 && (style.outlineStyle !== "none" || at.id === "main") }; })()"""


def answer(url):
    with urllib.request.urlopen(url, timeout=10) as response:
        return json.load(response)


def opened(url):
    with urllib.request.urlopen(url, timeout=10) as response:
        return response.read()


def wait_for(url, process, path="api/run.json", ask=None):
    end = time.time() + 120
    while time.time() < end:
        if process.poll() is not None:
            sys.exit(f"the program that should serve {url} ended with {process.returncode}")
        try:
            return (ask or answer)(url + path)
        except OSError:
            time.sleep(0.2)
    sys.exit(f"nothing answers at {url}")


def free_port():
    import socket
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def follow(browser, url):
    """Updates arrive within two seconds, without loading the page."""
    browser.size(*WIDE)
    browser.open(url)
    browser.evaluate("window.notLoadedAgain = true")
    script = "[...document.querySelectorAll('#facts div')].find((d) => d.firstChild.textContent === 'Rounds')?.lastChild.textContent"
    slowest, seen = 0.0, 0
    end = time.time() + 90
    known = answer(url + "api/run.json")["rounds"]
    while seen < 5 and time.time() < end:
        state = answer(url + "api/run.json")
        if state["closed"]:
            break
        if state["rounds"] == known:
            time.sleep(0.05)
            continue
        known, began = state["rounds"], time.time()
        while time.time() < began + 5:
            shown = browser.evaluate(script)
            if shown and int(re.match(r"\d+", shown)[0]) >= known:
                break
            time.sleep(0.03)
        slowest, seen = max(slowest, time.time() - began), seen + 1
    check(seen >= 3 and slowest <= 2.0, f"{seen} rounds appeared by themselves, the slowest after {slowest:.2f} s (limit 2 s)")
    check(browser.evaluate("window.notLoadedAgain") is True, "the page was not loaded again for them")


def walk(browser, url, name):
    """Every page at two widths, in two schemes of colours."""
    narrow_fault, hidden_fault, contrast_fault = [], [], []
    member = answer(url + "api/members.json?count=1")["rows"]
    pages = PAGES + [f"member/{row['id']}" for row in member]
    for page in pages:
        short = page.replace("/", "-")[:24]
        browser.size(*NARROW)
        browser.open(f"{url}{page}.html")
        width = browser.evaluate("document.scrollingElement.scrollWidth")
        if width > NARROW[0]:
            narrow_fault.append(f"{page}: {width} px")
        time.sleep(0.3)
        hidden_fault += [f"{page}: {fault}" for fault in browser.evaluate(f"{HIDDEN}({LETTERS})")]
        browser.screenshot(f"{name}-{short}-narrow")
        browser.size(*WIDE)
        for scheme in ("dark", "light"):
            browser.colours(scheme)
            contrast_fault += [f"{page}, {scheme}: {fault}" for fault in browser.evaluate(CONTRAST)]
            if scheme == "light" or page == "index":
                browser.screenshot(f"{name}-{short}-{scheme}")
    check(not narrow_fault, f"no page is wider than {NARROW[0]} px {narrow_fault[:5]}")
    check(not hidden_fault, f"on a small screen all of a table and of a chart can be read {hidden_fault[:5]}")
    check(not contrast_fault, f"text contrasts by 4.5 to 1 at least {contrast_fault[:5]}")


# Text of charts that is too small, or beyond the picture; and cells of tables that one does not see without scrolling aside.
HIDDEN = """((least) => { const wide = document.documentElement.clientWidth, faults = [];
  for (const text of document.querySelectorAll("figure svg text")) {
    const box = text.getBoundingClientRect(), chart = text.closest(".chart").getBoundingClientRect();
    if (box.width === 0) continue;
    if (parseFloat(getComputedStyle(text).fontSize) < least) faults.push(`small: ${text.textContent}`);
    if (box.left < chart.left - 1 || box.right > chart.right + 1) faults.push(`cut: ${text.textContent}`);
  }
  for (const cell of document.querySelectorAll("td > *")) {
    const box = cell.getBoundingClientRect();
    if (box.right > wide + 1) faults.push(`beyond the edge: ${cell.textContent.slice(0, 30)}`);
  }
  for (const picture of document.querySelectorAll(".chart img")) {
    if (picture.clientWidth) faults.push(`not drawn: ${picture.alt.slice(0, 30)}`);
  }
  return faults; })"""


def mouse(browser, kind, x, y, **given):
    browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **given)


def charts(browser, url):
    """Values under the pointer, zoom by dragging and by keys, a logarithmic axis, smoothing, lines that are hidden; and what
    was chosen stays when the page is updated."""
    browser.size(*WIDE)
    browser.open(url + "index.html")
    chart = "document.querySelector('#chart-loss')"
    end = time.time() + 10
    while not browser.evaluate(f"!!{chart}?.querySelector('svg .line')") and time.time() < end:
        time.sleep(0.05)
    box = browser.evaluate(f"{chart}.querySelector('.chart').getBoundingClientRect().toJSON()")
    check(box["width"] > 0.8 * WIDE[0], f"the chart has the page's width ({box['width']} of {WIDE[0]} px)")
    across = box["y"] + 100
    mouse(browser, "mouseMoved", box["x"] + box["width"] / 2, across)
    told = browser.evaluate(f"{chart}.querySelector('.tip').innerText")
    rounds = answer(url + "api/rounds.json?count=1000")["rows"]
    at = re.match(r"round (\d+)", told)
    loss = rounds[int(at[1])]["loss"] if at else None
    # Four digits are shown: 2.7951… as 2.795, which is not how two decimals of it begin.
    numbers = [float(number) for number in re.findall(r"\d+\.\d+", told)]
    shown = loss is not None and any(abs(number - loss) <= 1e-3 * abs(loss) for number in numbers)
    check(shown, f"the pointer tells the loss of its round ({told!r}, {loss})")
    inside = f"{chart}.querySelector('svg').textContent"
    before = browser.evaluate(inside)
    mouse(browser, "mousePressed", box["x"] + 0.3 * box["width"], across, button="left", clickCount=1)
    mouse(browser, "mouseMoved", box["x"] + 0.5 * box["width"], across, button="left", buttons=1)
    mouse(browser, "mouseReleased", box["x"] + 0.5 * box["width"], across, button="left", clickCount=1)
    zoomed = browser.evaluate(inside)
    check(zoomed != before, "dragging zooms in")
    others = browser.evaluate("[...document.querySelectorAll('figure.plot .tools button')].every((button) => !button.hidden)")
    check(others, "all charts along rounds show the same part")
    browser.evaluate(f"{chart}.querySelector('.tools button').click()")
    check(browser.evaluate(inside) == before, "a button shows all again")
    # By the line, since both axes may name the same numbers.
    path = f"{chart}.querySelector('svg .line.s1:not(.raw)').getAttribute('d')"
    straight = browser.evaluate(path)
    browser.evaluate(f"{chart}.querySelector('input[type=checkbox]').click()")
    check(browser.evaluate(path) != straight, "the axis becomes logarithmic")
    browser.evaluate(f"{chart}.querySelector('input[type=checkbox]').click()")
    jagged = browser.evaluate(path)
    slider = f"{chart}.querySelector('input[type=range]')"
    browser.evaluate(f"{slider}.value = 3; {slider}.dispatchEvent(new Event('input'))")
    check(browser.evaluate(path) != jagged and browser.evaluate(f"!!{chart}.querySelector('svg .raw')"), "a line is smoothed")
    lines = f"{chart}.querySelectorAll('svg .line').length"
    drawn = browser.evaluate(lines)
    browser.evaluate(f"{chart}.querySelector('.legend button').click()")
    check(browser.evaluate(lines) < drawn, "a click on its name hides a line")
    browser.evaluate(f"{chart}.querySelector('.legend button').click()")
    browser.evaluate(f"{chart}.querySelector('.chart').focus()")
    browser.press("Home", 36)
    browser.press("ArrowRight", 39)
    check("round 1" in browser.evaluate(f"{chart}.querySelector('.tip').innerText"), "arrow keys walk along the rounds")
    marks = browser.evaluate(f"[...{chart}.querySelectorAll('svg path.mark')].map((mark) => mark.getAttribute('class'))")
    check("mark ban" in marks and "mark cheat" in marks, f"bans and the first false work are marked {marks}")
    kept = """(() => { const chart = document.querySelector("#chart-loss"), section = chart.closest("section");
      const taken = window.musterCharts.refresh(section, section.cloneNode(true));
      return taken && document.querySelector("#chart-loss") === chart; })()"""
    check(browser.evaluate(kept), "a page that is updated keeps its charts")


def without_script(browser, url):
    """Pictures stand in for charts, with letters that can be read."""
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    for width, height in (NARROW, WIDE):
        browser.size(width, height)
        browser.open(url + "index.html")
        browser.screenshot(f"plain-{width}")
    browser.call("Emulation.setScriptExecutionDisabled", value=False)
    pictures = browser.evaluate("[...document.querySelectorAll('.chart img')].map((image) => image.naturalWidth)")
    check(len(pictures) > 1 and all(pictures), f"without scripts there are pictures {pictures}")


def keyboard(browser, url):
    browser.open(url + "index.html")
    stops = []
    for _ in range(16):
        browser.press("Tab", 9)
        stops.append(browser.evaluate(FOCUS))
    names = [stop["name"] for stop in stops]
    check(names[0] == "A #main", f"the first stop of the keyboard skips to the content ({names[0]})")
    wanted = ["members.html", "audits.html", "bans.html", "records.html", "manifest.html"]
    missing = [page for page in wanted if not any(name.endswith(page) for name in names)]
    check(not missing, f"the keyboard reaches the menu {missing}")
    unseen = [stop["name"] for stop in stops if not stop["seen"]]
    check(not unseen, f"one sees where the keyboard is {unseen[:4]}")


def chat(browser, url):
    """A line, an answer that grows, a stop; and the same without script."""
    browser.size(*NARROW)
    browser.open(url)
    browser.evaluate("document.querySelector('#line').focus()")
    browser.call("Input.insertText", text="Once")
    browser.press("Enter", 13)
    shown = "document.querySelector('#text').textContent"
    end = time.time() + 20
    while len(browser.evaluate(shown)) < 12 and time.time() < end:
        time.sleep(0.05)
    text = browser.evaluate(shown)
    check(text.startswith("Once") and len(text) >= 12, f"the model goes on with a line ({text[:40]!r})")
    button = "document.querySelector('#talk button')"
    check(browser.evaluate(f"{button}.textContent") == "Stop", "an answer that is being written can be stopped")
    browser.evaluate(f"{button}.click()")
    end = time.time() + 5
    while browser.evaluate(f"{button}.textContent") != "Go on" and time.time() < end:
        time.sleep(0.05)
    check(browser.evaluate(f"{button}.textContent") == "Go on", "and is")
    browser.screenshot("chat")
    check(not browser.evaluate(CONTRAST), "the page's text contrasts by 4.5 to 1 at least")
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(url)
    browser.call("Emulation.setScriptExecutionDisabled", value=False)
    # Its script was not run, and this form is sent as any other.
    browser.evaluate("document.querySelector('#line').value = 'Twice'; document.querySelector('#talk').submit()")
    end, grown = time.time() + 20, ""
    while len(grown) < 12 and time.time() < end:
        time.sleep(0.1)
        grown = browser.evaluate("document.querySelector('#text')?.textContent") or ""
    check(grown.startswith("Twice") and len(grown) >= 12, f"without script a page of its own grows ({grown[:40]!r})")


def large(browser, url):
    """Ten thousand rounds and 4,096 members."""
    paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    browser.size(*WIDE)
    slowest = ("", 0.0)
    for page in ["index", "rounds", "rounds-50", "members", "members-20", "board", "audits", "verifiers"]:
        browser.open(f"{url}{page}.html")
        end = time.time() + 3
        while (at := browser.evaluate(paint)) is None and time.time() < end:
            time.sleep(0.02)
        print(f"      {page}: {at} ms")
        slowest = max(slowest, (page, (at or 9_999.0) / 1000), key=lambda found: found[1])
        browser.screenshot(f"large-{page}")
    check(slowest[1] <= 1.0, f"first paint of every page within 1 s, the slowest {slowest[0]} after {slowest[1]:.2f} s")
    began = time.time()
    members = answer(url + "api/members.json?from=4000&count=1000")
    check(members["all"] == 4096 and len(members["rows"]) == 96, "JSON is paged")
    check(time.time() - began <= 1.0, "a page of JSON takes less than a second")


def main():
    shutil.rmtree(SCREENS, ignore_errors=True)
    os.makedirs(SCREENS)
    release = os.path.join(ROOT, os.environ.get("CARGO_TARGET_DIR") or "target", "release")
    folder = tempfile.mkdtemp()
    browser, started = Browser(), []
    try:
        port = free_port()
        url = f"http://127.0.0.1:{port}/"
        demo = [os.path.join(release, "e2e-muster"), "demo", "--web", str(port), "--rounds", "40", "--no-learning-check",
                "--out", os.path.join(folder, "demo")]
        said = os.path.join(folder, "demo.said")
        with open(said, "wb") as file:
            started.append(subprocess.Popen(demo, stdout=file, stderr=file))
        wait_for(url, started[0])
        follow(browser, url)
        browser.open("about:blank")
        if started[0].wait(timeout=400) != 0:
            with open(said, encoding="utf-8", errors="replace") as file:
                sys.exit("the demo failed: " + file.read()[-2000:])
        run = os.path.join(folder, "demo", "run")
        started.append(subprocess.Popen([demo[0], "view", run, "--web", str(port)], stdout=subprocess.DEVNULL))
        wait_for(url, started[1])
        time.sleep(1)
        check(answer(url + "api/run.json")["bans"] == 2, "the finished run shows both bans")
        browser.open(url + "bans.html")
        links = browser.evaluate("[...document.querySelectorAll('a[href$=\".bundle\"]')].map((link) => link.href)")
        check(len(links) == 2, f"each ban is offered as one file ({len(links)})")
        if links:
            bundle = os.path.join(folder, "downloaded.bundle")
            urllib.request.urlretrieve(links[0], bundle)
            checked = subprocess.run([demo[0] + "-verifier", "check", bundle], capture_output=True, text=True)
            check(checked.returncode == 0, f"and muster-verifier confirms it ({checked.stdout.strip()[:60]})")
        charts(browser, url)
        without_script(browser, url)
        walk(browser, url, "run")
        keyboard(browser, url)
        browser.open("file://" + os.path.join(folder, "demo", "report.html"))
        browser.screenshot("report")
        title = browser.evaluate("document.querySelector('h1').textContent")
        check("2 of 2 attackers banned" in title, f"the report opens with the verdict ({title})")
        drawn = browser.evaluate("[...document.querySelectorAll('figure.plot')].every((one) => one.querySelector('svg .grid'))")
        check(drawn, "the report's charts are drawn without a server")
        check(not browser.evaluate(CONTRAST), "the report's text contrasts by 4.5 to 1 at least")
        port_of_chat = free_port()
        talk = [demo[0], "generate", run, "--chat", "--web", str(port_of_chat), "--tokens", "100000"]
        started.append(subprocess.Popen(talk, stdout=subprocess.DEVNULL))
        wait_for(f"http://127.0.0.1:{port_of_chat}/", started[2], "", opened)
        chat(browser, f"http://127.0.0.1:{port_of_chat}/")
        browser.open("about:blank")
        started[2].kill()
        started[1].kill()
        started.append(subprocess.Popen([os.path.join(release, "view-stage"), str(port)], stdout=subprocess.DEVNULL))
        wait_for(url, started[3])
        large(browser, url)
        check(not browser.errors, f"no errors on the console {browser.errors[:5]}")
    finally:
        browser.close()
        for process in started:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"screenshots: {os.path.relpath(SCREENS, ROOT)}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
