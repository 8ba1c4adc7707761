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

# Other tests add network devices at any time, and a browser drops its requests then. The page has
# to go on after that; it is not wrong.
_DROPPED = ("net::ERR_ABORTED", "net::ERR_NETWORK_CHANGED")
_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


class Served:
    """`echelon dash`, and how it is reached."""

    def __init__(self, address):
        self.address = address
        parts = urlsplit(address)
        self.port, self.token = parts.port, parts.fragment.removeprefix("token=")
        self.base = f"http://127.0.0.1:{self.port}/"

    def of(self, run):
        """Return the address at which a run's page opens."""
        return f"{self.address}&run={run}"

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
    def bearer(self):
        return f"Bearer {self.token}"


@contextmanager
def serving(folder, limit=":"):
    """Have `echelon dash` while the block lasts; it has to leave when it is told to.

    Args:
        folder: where its runs are.
        limit: what a shell runs first, to set its limits.
    """
    output, command = folder / "dash-output", [sys.executable, "-m", "echelon", "dash"]
    command += ["--runs-dir"]
    with output.open("wb") as file:
        process = subprocess.Popen(
            ["sh", "-c", f'{limit}; exec "$@"', "sh", *command, str(folder / "runs")],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        said = output.read_text
        assert wait_until(lambda: "ssh -L" in said(), timeout_s=60), said()
        served = Served(next(line for line in said().splitlines() if "token=" in line))
        served.output, served.pid = output, process.pid
        yield served
        process.send_signal(signal.SIGINT)
        process.wait(timeout=10)
        assert "Traceback" not in said(), said()
        assert said().count(served.token) == 1, "the token is in the server's log"
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
        lambda said: (
            wrong.append(said.text)
            if said.type in ("error", "warning") and not said.text.endswith(_DROPPED)
            else None
        ),
    )
    page.on("dialog", lambda dialog: wrong.append(f"a dialogue: {dialog.message}"))
    page.on(
        "requestfailed",
        # What the page itself gave up was not needed any more.
        lambda request: None if request.failure in _DROPPED else wrong.append(request.url),
    )
    page.on(
        "response",
        lambda answer: wrong.append(f"{answer.status} {answer.url}") if answer.status >= 400 else 0,
    )
    yield page
    assert page.evaluate("window.harm === undefined"), "what a run printed was executed"
    assert page.locator("img, iframe, body script").count() == 0
    context.close()
    assert wrong == []
