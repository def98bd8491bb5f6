"""The picture of a plan, in headless Chromium: drawn, readable in light and dark, told on hover.

Skipped where no Chromium is found (`make picture` installs Debian's). The browser is driven over
its DevTools pipe, which needs nothing but the standard library. With SCREENSHOTS=FOLDER, what the
browser shows is kept there.
"""

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LATHE = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug/lathe"
MODEL = ROOT / "models/SmolLM2-135M-Instruct"
NAMES = ["chromium", "chromium-browser", "google-chrome"]
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """Chromium without a window, spoken to as https://chromedevtools.github.io/devtools-protocol tells."""

    def __init__(self, profile):
        to_browser, self.to = os.pipe()
        self.from_, from_browser = os.pipe()

        def wire():  # The protocol's pipes are file descriptors 3 and 4.
            os.dup2(to_browser, 103), os.dup2(from_browser, 104)
            os.dup2(103, 3), os.dup2(104, 4)

        self.process = subprocess.Popen(
            [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
             "--window-size=1280,1600", f"--user-data-dir={profile}", "about:blank"],
            close_fds=False, preexec_fn=wire, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser), os.close(from_browser)
        self.buffer, self.count, self.events = b"", 0, []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ["Page", "Runtime", "Log", "Network"]:
            self.send(f"{domain}.enable")

    session = None

    def receive(self):
        while b"\0" not in self.buffer:
            more = os.read(self.from_, 1 << 16)
            if not more:
                raise EOFError("the browser has gone")
            self.buffer += more
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def send(self, method, **parameters):
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def until(self, method):
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self.receive())

    def open(self, page):
        self.events.clear()
        self.send("Page.navigate", url=page.as_uri())
        self.until("Page.loadEventFired")

    def value(self, expression):
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"])
        return result["result"].get("value")

    def scheme(self, scheme):
        self.send("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, name):
        if folder := os.environ.get("SCREENSHOTS"):
            shot = self.send("Page.captureScreenshot", captureBeyondViewport=True)
            Path(folder).mkdir(parents=True, exist_ok=True)
            (Path(folder) / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))

    def close(self):
        """Its helpers write the profile too: all of them have to end before it can be removed."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.to), os.close(self.from_)


def contrast(one, other):
    """Contrast of two CSS colours `rgb(r, g, b)`, as WCAG 2 defines it."""
    def light(colour):
        parts = [int(part) / 255 for part in colour[4:-1].split(",")]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return sum(c * weight for c, weight in zip(linear, [0.2126, 0.7152, 0.0722]))
    high, low = sorted([light(one), light(other)], reverse=True)
    return (high + 0.05) / (low + 0.05)


@unittest.skipUnless(CHROMIUM, "no Chromium; `make picture` installs it")
class Picture(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # A helper that is still dying when the folder is removed is no fault of the picture.
        cls.scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        folder = Path(cls.scratch.name)
        arguments = [LATHE, "create", "m", MODEL, "-q", "int4", "--dry-run", "--output"]
        cls.page = folder / "plan.html"
        cls.page.write_bytes(subprocess.run([*arguments, "html"], check=True, capture_output=True).stdout)
        plan = subprocess.run([*arguments, "json"], check=True, capture_output=True).stdout
        cls.tensors = [t for blob in json.loads(plan)["blobs"] for t in blob["tensors"]]
        cls.browser = Browser(folder / "profile")
        cls.browser.open(cls.page)

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.scratch.cleanup()

    def test_draws_every_tensor_by_its_bytes(self):
        boxes = self.browser.value(
            "[...document.querySelectorAll('#map rect')].map(r => [data.tensors[r.dataset.i].name,"
            " r.width.baseVal.value * r.height.baseVal.value, r.getAttribute('fill')])")
        areas = {name: area for name, area, _ in boxes}
        colours = {name: colour for name, _, colour in boxes}
        self.assertEqual(set(areas), {tensor["name"] for tensor in self.tensors})
        total_area, total = sum(areas.values()), sum(t["bytes"] for t in self.tensors)
        for tensor in self.tensors:
            share, drawn = tensor["bytes"] / total, areas[tensor["name"]] / total_area
            if share > 0.001:  # Frames and titles of layers take some of it.
                self.assertAlmostEqual(drawn / share, 1, delta=0.35, msg=tensor["name"])
        by_format = {}
        for tensor in self.tensors:
            by_format.setdefault(tensor["format"] or "source", set()).add(colours[tensor["name"]])
        self.assertEqual([len(colours) for colours in by_format.values()], [1] * len(by_format))
        self.assertEqual(len(set.union(*by_format.values())), len(by_format))

    def test_hover_tells_the_tensor_its_rule_and_the_reason(self):
        wanted = "model.layers.7.mlp.down_proj.weight"
        x, y = self.browser.value(
            "(() => { const r = [...document.querySelectorAll('#map rect')].find(r =>"
            f" data.tensors[r.dataset.i].name === '{wanted}').getBoundingClientRect();"
            " return [r.x + r.width / 2, r.y + r.height / 2]; })()")
        self.browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        shown = self.browser.value("getComputedStyle(tip).display + ' ' + tip.innerText")
        tensor = next(t for t in self.tensors if t["name"] == wanted)
        for word in ["block", wanted, tensor["format"], tensor["rule"]["id"],
                     f"{tensor['rule']['file']}:{tensor['rule']['line']}", tensor["rule"]["because"]]:
            self.assertIn(word, shown)
        self.browser.screenshot("hover")
        self.browser.send("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
        self.assertEqual(self.browser.value("getComputedStyle(tip).display"), "none")

    def test_reads_well_in_light_and_dark(self):
        papers = set()
        for scheme in ["light", "dark"]:
            self.browser.scheme(scheme)
            style = "getComputedStyle(document.body)"
            paper, ink = self.browser.value(f"[{style}.backgroundColor, {style}.color]")
            dim = self.browser.value("getComputedStyle(document.querySelector('p')).color")
            self.assertGreater(contrast(paper, ink), 7, scheme)
            self.assertGreater(contrast(paper, dim), 4.5, scheme)
            papers.add(paper)
            self.browser.screenshot(scheme)
        self.assertEqual(len(papers), 2)
        self.browser.scheme("light")

    def test_says_nothing_on_the_console_and_asks_nothing_of_a_network(self):
        self.browser.open(self.page)
        self.browser.value("1")
        methods = [event.get("method") for event in self.browser.events]
        for bad in ["Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"]:
            self.assertNotIn(bad, methods, self.browser.events)
        asked = [event["params"]["request"]["url"] for event in self.browser.events
                 if event.get("method") == "Network.requestWillBeSent"]
        self.assertEqual([url for url in asked if not url.startswith(("file:", "data:"))], [])


if __name__ == "__main__":
    unittest.main()
