"""A headless Chromium that a test drives by its DevTools protocol."""

import base64
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)


class Tab:
    """One page: go somewhere, evaluate, click, type, look; and what it complained about."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.count = 0
        self.problems: list[str] = []
        """Exceptions, messages of errors, and what the browser's own log says is wrong."""
        self.urls: list[str] = []
        """All that was asked for."""
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        self.count += 1
        self.socket.send(json.dumps({"id": self.count, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv(timeout=60))
            if message.get("id") == self.count:
                assert "error" not in message, (method, message["error"])
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if message.get("method") == "Network.requestWillBeSent":
            self.urls.append(params["request"]["url"])
        if message.get("method") == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.problems.append(details.get("exception", details).get("description", str(details)))
        if message.get("method") == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.problems.append(str([x.get("value") for x in params["args"]]))
        if message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    def go(self, url: str) -> None:
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        found = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, (expression, found["exceptionDetails"])
        return found["result"].get("value")

    def wait(self, expression: str, seconds: float = 30) -> None:
        """Evaluate until it is true."""
        end = time.monotonic() + seconds
        while not self.evaluate(f"!!({expression})"):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.05)

    def click(self, selector: str) -> None:
        """Press the mouse in the middle of an element, wherever that is."""
        place = self.evaluate(
            f"""(() => {{ const e = document.querySelector({json.dumps(selector)});
            e.scrollIntoView({{ block: "center" }}); const b = e.getBoundingClientRect();
            return [b.left + Math.min(b.width / 2, 40), b.top + b.height / 2]; }})()"""
        )
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            more = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            self.send("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], **more)

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def press_enter(self) -> None:
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, **key)

    def resize(self, width: int, height: int = 900) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)

    def prefer(self, **features: str) -> None:
        """Set media features: ``prefer(prefers_color_scheme="dark")``."""
        found = [{"name": name.replace("_", "-"), "value": x} for name, x in features.items()]
        self.send("Emulation.setEmulatedMedia", features=found)

    def screenshot(self, path: Path) -> None:
        shot = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def chromium(browser: str) -> Iterator[Tab]:
    """Start a browser with a profile of its own, and end it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [browser, *OPTIONS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            with connect(_address(Path(profile), process), max_size=None) as socket:
                yield Tab(socket)
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)


def _address(profile: Path, process: "subprocess.Popen[bytes]") -> str:
    """The web socket of the first page, whose port Chromium writes into its profile."""
    from urllib.request import urlopen

    file, end = profile / "DevToolsActivePort", time.monotonic() + 60
    while time.monotonic() < end:
        assert process.poll() is None, "the browser ended at once"
        lines = file.read_text().split() if file.exists() else []
        if len(lines) == 2:
            with urlopen(f"http://127.0.0.1:{lines[0]}/json/list", timeout=10) as answer:
                pages = [page for page in json.load(answer) if page["type"] == "page"]
            if pages:
                return str(pages[0]["webSocketDebuggerUrl"])
        time.sleep(0.05)
    raise AssertionError("the browser never said where it listens")
