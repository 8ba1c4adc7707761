"""A real Prometheus scrapes the server of the page, and every panel of our dashboard has data."""

import json
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from browser.pages import serving
from echelon.core.waiting import wait_until
from echelon.run.directory import RunDir
from echelon.run.event_log import EventWriter
from eventlines import raw
from requirements import require

pytestmark = pytest.mark.full

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana.json"


def make_run(folder):
    run = RunDir.create(folder / "runs", "train-ab12")
    run.spec.write_text("")
    with EventWriter(run.events_of("controller-1"), clock=time.time) as writer:
        writer.write(raw("attempt", job="7", slots=2))
        writer.write(raw("generation", generation=0, world_size=2, nodes=1))
        writer.write(raw("alive", generation=0, step=30))
    with EventWriter(run.metrics, clock=time.time) as writer:
        writer.write(raw("step", step=30, metrics={"loss": 0.5, "rate": 100.0}))


@contextmanager
def prometheus(folder, served):
    require("prometheus")
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    (folder / "token").write_text(served.bearer.removeprefix("Bearer "))
    (folder / "prometheus.yml").write_text(
        f"""\
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: echelon
    authorization: {{credentials_file: {folder}/token}}
    static_configs: [{{targets: ["127.0.0.1:{served.port}"]}}]
"""
    )
    argv = ["prometheus", f"--config.file={folder}/prometheus.yml"]
    argv += [f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        yield port
    finally:
        process.terminate()
        process.wait()


def query(port, expression):
    """Return what Prometheus answers to a query: the results, or nothing yet."""
    words = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{words}") as answer:
            return json.load(answer)["data"]["result"]
    except OSError:
        return []


def test_every_panel_of_the_dashboard_has_data_from_a_real_prometheus(tmp_path):
    make_run(tmp_path)
    with serving(tmp_path) as served, prometheus(tmp_path, served) as port:
        scraped = lambda: query(port, "up == 1")  # noqa: E731
        assert wait_until(scraped, timeout_s=60, interval_s=0.2), (tmp_path / "log").read_text()
        for panel in json.loads(DASHBOARD.read_text())["panels"]:
            for target in panel["targets"]:
                expression = target["expr"].replace("$run", ".*")
                found = query(port, expression)
                assert found, (panel["title"], expression)
                assert {one["metric"]["run"] for one in found} == {"train-ab12"}
