"""The browser that page tests use is there and works."""

import shutil

import pytest

from requirements import require


@pytest.fixture
def chromium():
    require("chromium")
    return shutil.which("chromium")


def test_a_page_opens_in_the_distributions_chromium(chromium):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        page = browser.new_page()
        page.set_content("<title>ready</title><button onclick='document.title=42'>go</button>")
        page.click("button")
        title = page.title()
        browser.close()
    assert title == "42"
