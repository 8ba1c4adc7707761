"""Speed of the web page with a thousand ranks, in a real browser.

    .venv/bin/python benchmarks/page.py [--trials N] [--updates N]

Simulates a run of 125 nodes with 8 ranks each (simulated.py): events, twenty minutes of telemetry
at 1 Hz, metrics, logs, checkpoints. `echelon dash` serves it to the system's Chromium. Measures the
first view, from a server that has not read the run yet, and the cost of updates while all nodes
keep reporting. Writes benchmarks/results/page.json.
"""

import argparse
import os
import shutil
import time
from contextlib import contextmanager

import measuring
import psutil
from measuring import ECHELON, started, summary, workshop
from playwright.sync_api import sync_playwright
from simulated import SimulatedRun

from echelon.core.waiting import wait_until

NAME = "train-ab12"
WATCHER = """
window.updates = []; window.viewed = window.filled = window.read = null;
document.addEventListener("drawn", ({detail}) => {
  const began = performance.now() - detail.page;
  // Until it can be seen: drawn in the next frame, and after that.
  requestAnimationFrame(() => setTimeout(() => window.updates.push(
    {...detail, painted: performance.now() - began})));
});
const drawn = () => ["#curve path", "#rate path", "#time .row", "#line .good",
  "#ranks tbody tr", "#nodes tbody tr", "#saves tbody tr"]
  .every((one) => document.querySelector(one)) && document.querySelector("#rows span");
const look = () => {
  if (document.body && drawn()) {
    window.viewed ??= performance.now();
    if (document.getElementById("map").width > 100) window.filled ??= performance.now();
    if (document.querySelector("#logs div")) window.read ??= performance.now();
  }
  if (window.filled === null || window.read === null) requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""


@contextmanager
def serving(folder, runs):
    """Run a server during the block; yield its address and its process."""
    (folder / "output").unlink(missing_ok=True)
    with started([*ECHELON, "dash", "--runs-dir", str(runs), NAME], folder) as process:
        said = lambda: (folder / "output").read_text().splitlines()  # noqa: E731
        assert wait_until(lambda: any("token=" in line for line in said()), timeout_s=30)
        yield next(line for line in said() if "token=" in line), psutil.Process(process.pid)


def view(browser, address):
    """Open the page with an empty cache; return it once everything is drawn."""
    page = browser.new_context(viewport={"width": 1400, "height": 900}).new_page()
    page.on("console", lambda message: print(message.text) if message.type == "error" else None)
    page.add_init_script(WATCHER)
    page.goto(address)
    assert wait_until(lambda: page.evaluate("window.filled && window.read"), timeout_s=30)
    return page


def measure_views(browser, folder, simulated, trials):
    """Return the seconds from navigation until all plots are drawn, with cold and warm servers."""
    first, filled, read, again = [], [], [], []
    for _ in range(trials):
        simulated.advance(time.time())
        with serving(folder, simulated.run.path.parent) as (address, _):
            page = view(browser, address)
            first.append(page.evaluate("window.viewed") / 1000)
            filled.append(page.evaluate("window.filled") / 1000)
            read.append(page.evaluate("window.read") / 1000)
            page.context.close()
            page = view(browser, address)
            again.append(page.evaluate("window.viewed") / 1000)
            page.context.close()
    return first, filled, read, again


def measure_updates(browser, folder, simulated, count):
    """Return the browser's measurements of each update, and the server's CPU use in cores."""
    with serving(folder, simulated.run.path.parent) as (address, server):
        page = view(browser, address)
        page.evaluate("window.updates.length = 0")
        began_s, used = time.monotonic(), sum(server.cpu_times()[:2])
        for number in range(count):
            # Prepared in advance: real nodes would not use the cores that are measured.
            lines = simulated.prepare(time.time())
            simulated.advance(time.time(), lines)
            came = lambda: page.evaluate("window.updates.length") > number  # noqa: B023,E731
            assert wait_until(came, timeout_s=10, interval_s=0.2)
        share = (sum(server.cpu_times()[:2]) - used) / (time.monotonic() - began_s)
        memory_mib = server.memory_info().rss / 2**20
        updates = page.evaluate("window.updates")
        page.context.close()
    return updates, share, memory_mib


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--updates", type=int, default=40)
    options = parser.parse_args()
    load = round(os.getloadavg()[0], 2)  # other load, which may explain a bad result
    with workshop() as folder, sync_playwright() as playwright:
        simulated = SimulatedRun(folder / "runs", NAME, now_s=time.time())
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        first, filled, read, again = measure_views(browser, folder, simulated, options.trials)
        updates, share, memory_mib = measure_updates(browser, folder, simulated, options.updates)
        browser.close()
    whole_ms = sorted(one["server"] + one["painted"] for one in updates)
    p95_ms = round(whole_ms[int(0.95 * (len(whole_ms) - 1))], 1)
    server_ms, page_ms = ([one[side] for one in updates] for side in ("server", "painted"))
    views = summary(first)
    rows = {
        "first view, a server that has read nothing": views,
        "… and two minutes of all ranks on the map": summary(filled),
        "… and the output of all ranks": summary(read),
        "first view, once more": summary(again),
        "update: in the server": summary(server_ms, "ms", 1),
        "update: in the page, until it is seen": summary(page_ms, "ms", 1),
        "update: together": {**summary(whole_ms, "ms", 1), "p95_ms": p95_ms},
        "update: sent": summary([one["bytes"] / 1000 for one in updates], "kB", 0),
        "server": {"core_percent": round(100 * share, 1), "memory_mib": round(memory_mib)},
    }
    goals = {
        "first view with 1,000 ranks, s": (views["median_s"], 1.0),
        "update with 1,000 ranks, p95, ms": (p95_ms, 200.0),
    }
    measuring.write_results("page", rows, goals, load=load)


if __name__ == "__main__":
    main()
