"""Runs side by side in a browser, a sweep's or chosen ones: their table and their curves."""

import time

import pytest

from browser.pages import browsing, serving, watching
from echelon.run.directory import RunDir
from echelon.run.event_log import EventWriter
from recorded_sweep import log_step, record_sweep
from requirements import require


@pytest.mark.browser
def test_a_sweep_has_a_table_and_curves(tmp_path, monkeypatch):
    from playwright.sync_api import expect

    require("chromium")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    sweep = record_sweep(tmp_path / "runs", {})
    with serving(tmp_path) as served, browsing() as browser, watching(browser) as page:
        page.goto(served.address)
        page.locator("#sweeps a").click()
        expect(page.locator("#swept")).to_have_text(sweep.sweep_id)
        expect(page.locator("#counts")).to_have_text("2 COMPLETED, 1 FAILED, 1 PENDING")
        expect(page.locator("#tasks tbody tr")).to_have_count(4)
        expect(page.locator("#together path.curve")).to_have_count(3)
        expect(page.locator("#tasks tbody tr").nth(0)).to_contain_text("0.2")
        page.locator("#logs-measure").check()
        expect(page.locator("#together path.curve")).to_have_count(3)
        page.locator("#tasks th", has_text="loss").locator("button").click(click_count=2)
        expect(page.locator("#tasks tbody tr").nth(0)).to_contain_text("0.6")
        expect(page.locator("#tasks tbody tr").nth(0).locator(".badge")).to_have_text("FAILED")
        page.locator("#measure").select_option("validation/accuracy")
        expect(page.locator("#tasks th").nth(2)).to_have_text("validation/accuracy")
        page.locator("#tasks a").first.click()
        expect(page.locator("#name")).to_contain_text(sweep.sweep_id)
        page.go_back()
        expect(page.locator("#tasks tbody tr")).to_have_count(4)


@pytest.mark.browser
def test_runs_are_filtered_sorted_and_compared(tmp_path, monkeypatch):
    from playwright.sync_api import expect

    require("chromium")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for rate in ("0.1", "0.01", "0.001"):
        run = RunDir.create(tmp_path / "runs", f"run-{rate}")
        run.spec.write_text(f'script = "train.py"\nargs = ["--lr", "{rate}"]\n')
        with EventWriter(run.metrics, clock=time.time) as events:
            for step in range(1, 6):
                events.write(log_step(step, loss=float(rate) / step))
    narrow = {"width": 400, "height": 800}
    with serving(tmp_path) as served, browsing() as browser, watching(browser) as page:
        page.goto(served.address)
        rows = page.locator("#list tbody tr")
        expect(rows).to_have_count(3)
        page.locator("#list th", has_text="metric").locator("button").click()
        expect(rows.first).to_contain_text("run-0.001")
        page.locator("#filter").fill("run-0.0")
        expect(rows).to_have_count(2)
        expect(page.locator("#matched")).to_have_text("2 of 3 runs")
        for box in rows.locator("input").all():
            box.check()
        page.locator("#compare").click()
        expect(page.locator("#tasks thead")).to_contain_text("lr")
        expect(page.locator("#tasks tbody tr")).to_have_count(2)
        expect(page.locator("#together path.curve")).to_have_count(2)
        page.set_viewport_size(narrow)
        assert page.evaluate("document.documentElement.scrollWidth") <= narrow["width"]
        page.reload()
        expect(page.locator("#tasks tbody tr")).to_have_count(2)
