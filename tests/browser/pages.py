"""A server of the web page, and a browser that keeps account of what goes wrong in it."""

import http.client
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from urllib.parse import urlsplit

from echelon.core.waiting import wait_until
from local.liverun import SOURCE

_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


class Served:
    """`echelon dash`, and how it is reached."""

    def __init__(self, address):
        self.address = address
        parts = urlsplit(address)
        self.port, self.token = parts.port, parts.query.removeprefix("token=")
        self.base = f"http://127.0.0.1:{self.port}/"

    def ask(self, path, **headers):
        """Send a request as it stands; return its status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            told = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.putrequest("GET", path, skip_host="host" in told)
            for name, value in told.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    @property
    def cookie(self):
        return f"echelon-{self.port}={self.token}"


@contextmanager
def serving(folder):
    """Have `echelon dash` while the block lasts; it has to leave when it is told to."""
    output = folder / "dash-output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "echelon", "dash", "--runs-dir", str(folder / "runs")],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        said = output.read_text
        assert wait_until(lambda: "ssh -L" in said(), timeout_s=60), said()
        yield Served(next(line for line in said().splitlines() if "token=" in line))
        process.send_signal(signal.SIGINT)
        process.wait(timeout=10)
        assert "Traceback" not in said(), said()
    finally:
        process.kill()
        process.wait()


@contextmanager
def browsing():
    """Have a browser while the block lasts."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=_ARGUMENTS
        )
        yield browser
        browser.close()


@contextmanager
def watching(browser, **options):
    """Open a page in which nothing may go wrong: no error, no dialogue, no request that fails."""
    context, wrong = browser.new_context(**options), []
    context.set_default_timeout(30_000)
    page = context.new_page()
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "console",
        lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None,
    )
    page.on("dialog", lambda dialog: wrong.append(f"a dialogue: {dialog.message}"))
    page.on(
        "requestfailed",
        # What the page itself gave up was not needed any more.
        lambda request: (
            None if request.failure == "net::ERR_ABORTED" else wrong.append(request.url)
        ),
    )
    page.on(
        "response",
        lambda answer: wrong.append(f"{answer.status} {answer.url}") if answer.status >= 400 else 0,
    )
    yield page
    assert page.evaluate("window.harm === undefined"), "what a run printed was executed"
    assert page.locator("img, iframe, script:not([src])").count() == 0
    context.close()
    assert wrong == []
