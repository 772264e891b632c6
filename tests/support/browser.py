"""Drives a real Chromium through chromedriver's HTTP interface (the W3C WebDriver protocol)."""

import base64
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from support.daemon import HANG

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


def missing():
    """The name of a missing program; "" if a browser can be started."""
    names = [name for name in ("chromium", "chromedriver") if not shutil.which(name)]
    return ", ".join(names)


def sign_in(browser, daemon, token):
    """Signs in through the form of the dashboard."""
    browser.go(f"http://{daemon.http}/")
    browser.wait(lambda: browser.script("return !document.getElementById('login').hidden"))
    browser.type("#token", token)
    browser.click("#login button")
    browser.wait(lambda: browser.script("return !document.getElementById('overview').hidden"), what="the overview")


class Browser:
    """One headless window. `text(selector)`, `click(selector)`, `script(code)`, `screenshot(path)`."""

    def __init__(self, width=1280, height=1100):
        self._driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True)
        for line in self._driver.stdout:
            if "started successfully" in line and line.strip().rstrip(".").split()[-1].isdigit():
                port = line.strip().rstrip(".").split()[-1]
                break
        else:
            raise RuntimeError("chromedriver did not start")
        self._base = f"http://127.0.0.1:{port}/session"
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     f"--window-size={width},{height}"]
        reply = self._call("POST", "", {"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"args": arguments}, "goog:loggingPrefs": {"browser": "ALL"}}}})
        self._base += "/" + reply["sessionId"]

    def _call(self, method, path, body=None):
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self._base + path, data, {"Content-Type": "application/json"},
                                         method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=60) as reply:
                return json.loads(reply.read())["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode()) from None

    def go(self, url):
        self._call("POST", "/url", {"url": url})

    def _find(self, selector):
        return self._call("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def text(self, selector):
        return self._call("GET", f"/element/{self._find(selector)}/text")

    def click(self, selector):
        self._call("POST", f"/element/{self._find(selector)}/click", {})

    def type(self, selector, text):
        self._call("POST", f"/element/{self._find(selector)}/value", {"text": text})

    def question(self):
        """The text of the open dialog."""
        return self._call("GET", "/alert/text")

    def accept(self):
        """Accepts the open dialog."""
        self._call("POST", "/alert/accept", {})

    def script(self, code):
        return self._call("POST", "/execute/sync", {"script": code, "args": []})

    def rows(self, table):
        """The texts in the body of a table: one {heading: text} for each row."""
        return self.script(f"return [...document.querySelectorAll('#{table} tbody tr')].map(r => "
                           "Object.fromEntries([...r.cells].map(c => [c.dataset.label, c.textContent])))")

    def devtools(self, command, **parameters):
        """Sends a command of Chromium's DevTools protocol."""
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def emulate(self, width=1280, height=1100, dark=False, scale=1):
        """Emulates a screen of this size in CSS pixels, with the user's preferences."""
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale,
                      mobile=width < 600)
        self.devtools("Emulation.setEmulatedMedia",
                      features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def faults(self):
        """The faults that axe-core finds on the page: [(rule, element, description)]."""
        import axe_core_python  # not installed where tests/e2e runs on a machine with a GPU

        self.script(Path(axe_core_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8"))
        return self._call("POST", "/execute/async", {"args": [], "script": """
            const done = arguments[arguments.length - 1];
            axe.run().then(found => done(found.violations.flatMap(
                rule => rule.nodes.map(node => [rule.id, node.html, node.failureSummary]))),
                error => done([["axe", "", String(error)]]));"""})

    def log(self):
        """Returns the lines that the page wrote to its console, including violations of its security
        policy."""
        return self._call("POST", "/se/log", {"type": "browser"})

    def wait(self, true, seconds=HANG, what="the page"):
        end = time.monotonic() + seconds
        while True:
            try:
                if true():
                    return
            except RuntimeError:
                pass
            assert time.monotonic() < end, f"{what} did not come; {[e['message'][:200] for e in self.log()[-3:]]}"
            time.sleep(0.1)

    def screenshot(self, path, whole=False):
        """Saves the window, or the whole page, as a PNG file."""
        picture = self.devtools("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        Path(path).write_bytes(base64.b64decode(picture))

    def close(self):
        try:
            self._call("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.wait(HANG)
            self._driver.stdout.close()
