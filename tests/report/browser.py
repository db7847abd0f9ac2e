"""A headless Chromium that is asked over its debugging pipe: no driver and no network is needed for it."""

import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_MOST_SECONDS = 60


def find():
    """Return where a browser lies; None if there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of a browser, and what it has asked for and complained of.

    Attributes:
        requested: URLs of all requests.
        complaints: What the browser wrote into its console: errors and violations of the page's own policy.
    """

    def __init__(self, binary, profile):
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        to_browser, from_browser = (fcntl.fcntl(end, fcntl.F_DUPFD, 50) for end in (to_browser, from_browser))
        flags = "--headless --no-sandbox --disable-gpu --no-first-run --disable-extensions --remote-debugging-pipe"
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$0" {flags} "--user-data-dir=$1" about:blank 3<&{to_browser} 4>&{from_browser}',
             binary, str(profile)],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._numbers, self._rest, self._session = itertools.count(1), b"", None
        self.requested, self.complaints, self._seen = [], [], []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.ask(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._process.terminate()
        self._process.wait(10)
        os.close(self._write)
        os.close(self._read)

    def ask(self, method, **parameters):
        """Send one command of the DevTools protocol, and return its answer."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        answer = self._wait(lambda found: found.get("id") == number)
        assert "error" not in answer, answer
        return answer["result"]

    def load(self, path, width, height=900, dark=False):
        """Load a file, or a URL, in a window of a size in CSS pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        scheme = "dark" if dark else "light"
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._seen.clear()
        self.ask("Page.navigate", url=path if isinstance(path, str) else path.as_uri())
        if not any(found.get("method") == "Page.loadEventFired" for found in self._seen):
            self._wait(lambda found: found.get("method") == "Page.loadEventFired")

    def value(self, expression):
        """Return the value of an expression of JavaScript on the page."""
        return self.ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"]["value"]

    def _wait(self, wanted):
        until = time.monotonic() + _MOST_SECONDS
        while True:
            while b"\0" not in self._rest:
                ready, _, _ = select.select([self._read], [], [], max(0, until - time.monotonic()))
                more = os.read(self._read, 1 << 16) if ready else b""
                assert more, "the browser has ended, or does not answer"
                self._rest += more
            text, _, self._rest = self._rest.partition(b"\0")
            found = json.loads(text)
            self._note(found)
            if wanted(found):
                return found

    def _note(self, found):
        self._seen.append(found)
        method, parameters = found.get("method"), found.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requested.append(parameters["request"]["url"])
        elif method == "Log.entryAdded":
            self.complaints.append(parameters["entry"]["text"])
        elif method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            self.complaints.append(json.dumps(parameters))
