"""The view of a sweep in a browser: its table, and the curves of its tasks over one another."""

import pytest

from browser.pages import browsing, serving, watching
from recorded_sweep import record_sweep
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
        page.locator("#tasks th", has_text="loss").click()
        page.locator("#tasks th", has_text="loss").click()
        expect(page.locator("#tasks tbody tr").nth(0)).to_contain_text("0.6")
        page.locator("#measure").select_option("validation/accuracy")
        expect(page.locator("#tasks th").last).to_have_text("validation/accuracy")
        page.locator("#tasks a").first.click()
        expect(page.locator("#name")).to_contain_text(sweep.sweep_id)
        page.go_back()
        expect(page.locator("#tasks tbody tr")).to_have_count(4)
