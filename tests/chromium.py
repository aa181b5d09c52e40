"""A headless Chromium, driven over a pipe by the DevTools protocol. No other package is needed."""

import base64
import json
import os
import shutil
import subprocess
import time
from contextlib import suppress

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
]
READ, WRITE = 4, 3
"""The file descriptors at which Chromium writes and reads."""


class Chromium:
    """A browser with one page.

    Args:
        profile: an empty folder.
        width: of the page, in pixels.
        height: of the page, in pixels.
    """

    def __init__(self, profile, width=1280, height=900):
        command = [PROGRAM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        to_browser, own_write = os.pipe()
        own_read, from_browser = os.pipe()

        def connect():
            # First out of the way: either may have the number that the other is to get.
            ours = [os.dup2(end, 100 + end) for end in (to_browser, from_browser)]
            os.dup2(ours[0], WRITE)
            os.dup2(ours[1], READ)

        self._process = subprocess.Popen(
            command, preexec_fn=connect, close_fds=False, stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self._out, self._in = os.fdopen(own_write, "wb"), os.fdopen(own_read, "rb")
        self._number, self._session, self._rest, self.events = 0, None, b"", []
        pages = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in pages if target["type"] == "page")
        session = self.call("Target.attachToTarget", targetId=page, flatten=True)
        self._session = session["sessionId"]
        self.call("Page.enable")
        self.call("Runtime.enable")
        self.call("Log.enable")
        self.resize(width, height)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with suppress(OSError):
            self._session = None
            self.call("Browser.close")
        self._out.close()
        self._in.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        self._process.kill()

    def call(self, method, **parameters):
        """Call a method of the protocol and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._out.write(json.dumps(message).encode() + b"\0")
        self._out.flush()
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _receive(self):
        while b"\0" not in self._rest:
            part = os.read(self._in.fileno(), 1 << 16)
            if not part:
                raise OSError("Chromium has ended")
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def resize(self, width, height, touch=False):
        """Set the size of the page. A phone is touched instead of pointed at."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": touch}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def open(self, url):
        """Load a page."""
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def run(self, script):
        """Return what an expression of JavaScript gives, as a JSON value."""
        done = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def until(self, script, seconds=60):
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(script):
            assert time.monotonic() < end, f"still not: {script}"
            time.sleep(0.05)

    def type(self, text):
        """Insert text where the cursor is."""
        self.call("Input.insertText", text=text)

    def point(self, x, y, click=False):
        """Move the mouse to a point, and perhaps click."""
        point = {"x": x, "y": y}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **point)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            button = {"button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, **point, **button)

    def picture(self, path):
        """Save what the page looks like."""
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def complaints(self):
        """Return errors of scripts and of the console so far."""
        self.run("1")
        return [
            e["params"]
            for e in self.events
            if e.get("method") == "Runtime.exceptionThrown"
            or (e.get("method") == "Log.entryAdded" and e["params"]["entry"]["level"] == "error")
        ]
