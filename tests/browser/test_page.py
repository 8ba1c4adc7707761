"""The web page in a browser, beside a real run: two nodes with two ranks each, that train."""

import http.server
import os
import re
import signal
import threading
from contextlib import ExitStack, contextmanager

import pytest

from browser.pages import browsing, serving, watching
from echelon.core.waiting import wait_until
from local.liverun import live_run
from requirements import require

HOSTILE = "<img src=x onerror=window.harm=1>"
FORBIDDEN = b"forbidden (no token): open the URL that echelon dash printed\n"
SCRIPT = """\
import os, time
from pathlib import Path
import torch
from torch import nn
import echelon

torch.set_num_threads(1)
HOSTILE = "<img src=x onerror=window.harm=1>"
rank = int(os.environ["RANK"])
print(f"early word of rank {rank}", flush=True)
if rank == 3:
    print(HOSTILE, "</script><script>window.harm=1</script>", flush=True)
    print("\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07words, \\u202eturned\\u202c", flush=True)

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        return torch.ones(4), torch.tensor(index % 2)

class Pace:
    def step_ended(self, trainer):
        time.sleep(0.12 if trainer.world.rank == 1 else 0.02)
        if trainer.step == 3:
            Path(f"part-{rank}").write_text(str(os.getpid()))
            Path(f"part-{rank}").rename(f"ready-{rank}")
        if trainer.step % 5 == 0:
            print(f"step {trainer.step} of rank {rank}", flush=True)

def count(outputs, targets):
    return {HOSTILE: outputs.sum(), "__proto__": outputs.sum()}

with echelon.init() as world:
    echelon.Trainer(
        world, nn.Linear(4, 2), loss=nn.functional.cross_entropy, metrics=count, epochs=1,
        global_batch=8, optimizer=lambda p: torch.optim.SGD(p, lr=0.1), save_every=20, log_every=2,
        callbacks=[Pace()]).fit(Data())
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    require("chromium")
    folder = tmp_path_factory.mktemp("page")
    with live_run(folder, SCRIPT, ["--restarts=0", "--hang-timeout=0"]) as run:
        run.pids = run.await_ranks()
        yield run


@pytest.fixture(scope="module")
def served(live):
    with serving(live.folder) as one:
        yield one


@pytest.fixture(scope="module")
def browser(live):
    with ExitStack() as stack:
        yield stack.enter_context(browsing())


@pytest.fixture
def page(browser, served, live):
    """The run's page, open."""
    with watching(browser, viewport={"width": 1280, "height": 900}) as one:
        one.goto(served.of(live.path.name))
        expect(one.locator("#name")).to_have_text(live.path.name)
        yield one


def expect(locator):
    from playwright.sync_api import expect as expecting

    expecting.set_options(timeout=30_000)
    return expecting(locator)


@contextmanager
def another_port():
    """Have a web server of somebody else's on this host; it keeps the headers that it gets."""
    requests = []

    class Keeps(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(f"{self.path}\n{self.headers}")
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>other</title><link rel=icon href=data:,>")

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Keeps) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        server.requests, server.address = requests, f"http://127.0.0.1:{server.server_port}/"
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def cell(page, rank, column):
    """Return the place where a rank's value stands."""
    titles = page.locator("#ranks thead th").all_text_contents()
    row = page.locator("#ranks tbody tr", has=page.locator(f"td:first-child:text-is('{rank}')"))
    return row.locator("td").nth(titles.index(column))


@pytest.mark.quick
def test_ranks_advance(page):
    expect(page.locator("#phase")).to_have_text("RUNNING")
    expect(page.locator("#ranks tbody tr")).to_have_count(4)
    expect(page.locator("#ranks thead")).to_contain_text("steps/s")
    for rank in (0, 3):
        place = cell(page, rank, "step")
        expect(place).to_have_text(re.compile(r"\d"))
        expect(place).not_to_have_text(place.text_content())
    expect(page.locator("#nodes tbody tr")).to_have_count(2)
    expect(page.locator("#facts")).to_contain_text("samples/s")
    expect(page.locator("#saves tbody tr").first).to_contain_text("B")
    expect(page.locator("#time")).to_contain_text("productive")
    expect(page.locator("#line")).to_contain_text("running")
    drawn = "document.getElementById('map').width > 3"
    assert wait_until(lambda: page.evaluate(drawn), timeout_s=20)
    page.locator("#map").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#cell")).to_contain_text("rank 1 on")


def test_curves_are_drawn_and_looked_at_closer(page):
    expect(page.locator("#metric option", has_text="loss")).to_have_count(1)
    expect(page.locator("#curve path.curve")).to_have_count(1)
    page.locator("#metric").select_option(HOSTILE)
    page.locator("#curve").hover()
    expect(page.locator("#curve .js-line")).to_have_count(1)  # plotly's
    page.locator("#metric").select_option("__proto__")
    page.locator("#metric").select_option("loss")
    page.locator("#rate").focus()
    expect(page.locator("#rate .js-line")).to_have_count(1)


def test_output_is_followed_and_searched(page):
    lines = page.locator("#logs > div")
    expect(lines.first).to_contain_text("early word")
    newest = lines.last.text_content()
    expect(lines.last).not_to_have_text(newest)
    page.locator("#search").fill("EARLY word")
    expect(lines).to_have_count(4)
    assert {text[0] for text in lines.all_text_contents()} == set("0123")
    expect(page.locator("#found")).to_have_text("4 lines")
    page.locator("#rank").fill("2")
    expect(lines).to_have_count(1)
    expect(lines).to_contain_text("early word of rank 2")
    page.locator("#search").fill("")
    expect(lines.nth(1)).to_contain_text("of rank 2")
    count = lines.count()
    expect(lines.nth(count)).to_contain_text("of rank 2")  # one that has come since
    assert {text[0] for text in lines.all_text_contents()} == {"2"}


def test_who_scrolls_back_is_left_in_peace(page):
    lines = page.locator("#logs > div")
    expect(lines.nth(40)).to_be_visible()
    page.locator("#logs").hover()
    page.mouse.wheel(0, -4000)
    expect(page.locator("#tail")).not_to_be_checked()
    page.mouse.wheel(0, 40_000)
    expect(page.locator("#tail")).to_be_checked()


def test_what_is_hostile_is_text(page):
    lines = page.locator("#logs > div")
    page.locator("#search").fill("onerror")
    expect(lines).to_have_count(1)
    expect(lines).to_contain_text(f"{HOSTILE} </script><script>window.harm=1</script>")
    page.locator("#search").fill("words, ")
    expect(lines).to_have_text(["3red words, \\u202eturned\\u202c"])
    expect(page.locator("#metric option", has_text="loss")).to_have_count(1)
    names = page.locator("#metric option").all_text_contents()
    assert {HOSTILE, "__proto__"} <= set(names)


def test_all_runs_by_keyboard(browser, served, live):
    name = live.path.name
    with watching(browser) as page:
        page.goto(served.address)
        link = page.locator("#list tbody a", has_text=name)
        expect(link).to_be_visible()
        expect(page.locator("#list tbody tr")).to_contain_text(["RUNNING"])
        assert "token" not in page.url
        for _ in range(20):
            page.keyboard.press("Tab")
            if link.evaluate("(one) => one === document.activeElement"):
                break
        page.keyboard.press("Enter")
        expect(page.locator("#name")).to_have_text(name)
        expect(page.locator("#runs")).to_have_value(name)
        page.locator("#runs").select_option("")
        expect(page.locator("#all")).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_sticks_out(browser, served, live, scheme):
    options = {"viewport": {"width": 360, "height": 740}, "color_scheme": scheme}
    with watching(browser, **options) as page:
        page.goto(served.address)
        expect(page.locator("#list tbody tr")).to_have_count(1)
        width = "document.documentElement.scrollWidth"
        assert page.evaluate(width) <= 360
        page.goto(f"{served.base}#{live.path.name}")
        expect(page.locator("#ranks tbody tr")).to_have_count(4)
        expect(page.locator("#curve path.curve")).to_have_count(1)
        assert page.evaluate(width) <= 360
        theme = "document.documentElement.dataset.theme"
        assert page.evaluate(theme) == scheme
        page.locator("#theme").click()
        assert page.evaluate(theme) != scheme


def test_a_page_whose_scripts_were_not_loaded_loads_them_again(browser, served, live):
    dropped = []

    def drop_first(route):
        if dropped:
            route.continue_()
        else:
            dropped.append(route.request.url)
            route.abort("aborted")

    with watching(browser) as page:
        page.route("**/web/map.js", drop_first)
        page.goto(served.of(live.path.name))
        expect(page.locator("#name")).to_have_text(live.path.name)
        assert [url.rpartition("/")[2] for url in dropped] == ["map.js"]


# --- who may see it ------------------------------------------------------------------------------


def test_a_link_in_a_terminal_that_is_a_web_page_leads_in(browser, served, live):
    with watching(browser) as page:
        elsewhere = "http://terminal.example/"
        page.route(
            f"{elsewhere}**",
            lambda route: route.fulfill(
                content_type="text/html", body=f'<a href="{served.address}">here</a>'
            ),
        )
        page.goto(elsewhere)
        page.get_by_text("here").click()
        expect(page.locator("#list")).to_contain_text(live.path.name)
        assert "token" not in page.url
        page.reload()
        expect(page.locator("#list")).to_contain_text(live.path.name)


@pytest.mark.parametrize("fragment", ["", "#token=wrong", "#token=", "#token=wrong&run={}"])
def test_without_the_token_the_page_says_how_to_get_it(browser, served, live, fragment):
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{served.base}{fragment.format(live.path.name)}")
    expect(page.locator("#locked")).to_contain_text("run it again")
    for other in ("#all", "#one", "#missing"):
        expect(page.locator(other)).to_be_hidden()
    assert live.path.name not in page.content()
    page.evaluate("(address) => { location.href = address; }", served.of(live.path.name))
    expect(page.locator("#name")).to_have_text(live.path.name)  # the right address, in the same tab
    assert "token" not in page.url
    context.close()


def test_without_the_token_nothing_is_told(served, live):
    name = live.path.name
    for path in ("/api/runs", f"/api/runs/{name}", f"/api/runs/{name}/logs", "/nowhere"):
        for headers in ({}, {"cookie": f"echelon-{served.port}={served.token}"}):
            assert served.ask(f"{path}?token={served.token}", **headers) == (401, FORBIDDEN)
        assert served.ask(path, authorization="Bearer wrong") == (401, FORBIDDEN)


def test_the_token_stays_in_the_tab(browser, served, live):
    name = live.path.name
    with watching(browser) as page:
        page.goto(served.of(name))
        expect(page.locator("#name")).to_have_text(name)
        assert page.url == f"{served.base}#{name}"
        page.reload()
        expect(page.locator("#name")).to_have_text(name)
        assert page.evaluate("[document.cookie, JSON.stringify(localStorage)]") == ["", "{}"]
        assert page.evaluate("history.length") <= 2  # about:blank, and this
        assert page.context.cookies() == []
        # A tab that was opened beside this one, as by a click with Ctrl, has a storage of its own.
        beside = page.context.new_page()
        beside.goto(f"{served.base}#{name}")
        expect(beside.locator("#name")).to_have_text(name)


def test_a_page_on_another_port_finds_no_token(browser, served, live):
    with another_port() as other, watching(browser) as page:
        page.goto(served.of(live.path.name))
        expect(page.locator("#name")).to_have_text(live.path.name)
        context = page.context
        stranger = context.new_page()
        stranger.goto(other.address)
        stored = "[document.cookie, JSON.stringify(sessionStorage), JSON.stringify(localStorage)]"
        assert stranger.evaluate(stored) == ["", "{}", "{}"]
        heard = """(ours) => new Promise((done) => {
            const channel = new BroadcastChannel("token");
            channel.onmessage = (event) => done(event.data);
            channel.postMessage({});
            fetch(ours, {credentials: "include"}).then((a) => a.text()).then(done, () => done(""));
        })"""
        assert stranger.evaluate(heard, f"{served.base}api/runs") == ""
        page.goto(f"{other.address}landed")
        assert context.cookies() == []
        assert served.token not in str(other.requests)
        assert "cookie" not in str(other.requests).lower()
        assert any("/landed" in one for one in other.requests)


@pytest.mark.parametrize(
    "path",
    [
        "/web/../..",
        "/web/../../../../etc/passwd",
        "/web/..%2f..%2fserver.py",
        "/web/%2e%2e/server.py",
        "/web//etc/passwd",
        "/api/runs/..",
        "/api/runs/..%2f..",
        "/api/runs/..%2f../logs",
        "/api/runs/%2e%2e%2ftrain.py/logs",
        "/api/runs/%00/logs",
    ],
)
def test_a_name_is_not_a_path(served, path):
    status, body = served.ask(path, authorization=served.bearer)
    assert status == 404
    assert b"root:" not in body
    assert b"import" not in body


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:80"},
        {"host": ""},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "cross-site"},
    ],
)
def test_pages_of_others_may_ask_nothing(served, headers):
    status, body = served.ask("/api/runs", authorization=served.bearer, **headers)
    assert status == 403
    assert b"train" not in body


@pytest.mark.parametrize("origin", ["http://[", "[", "http://[::1", "http://x:y:z", "//[]"])
def test_an_origin_that_cannot_be_parsed_is_refused(served, origin):
    for headers in ({}, {"authorization": served.bearer}):
        assert served.ask("/api/runs", origin=origin, **headers)[0] == 403
        assert served.ask("/", host=origin, **headers)[0] == 403


def test_with_the_token_one_may(served, live):
    status, body = served.ask("/api/runs", authorization=served.bearer)
    assert (status, live.path.name in body.decode()) == (200, True)


# --- the end ------------------------------------------------------------------------------------


def test_a_killed_ranks_verdict_appears(page, live):
    expect(page.locator("#phase")).to_have_text("RUNNING")
    expect(page.locator("#verdict")).to_be_hidden()
    os.kill(live.pids[1], signal.SIGKILL)
    expect(page.locator("#phase")).to_have_text("FAILED")
    expect(page.locator("#why")).to_contain_text("rank 1 on")
    expect(page.locator("#why")).to_contain_text("SIGKILL")
    expect(page.locator("#retry")).to_contain_text("restarts are disabled")
    expect(page.locator("#ranks tbody tr").first).to_contain_text("failed")
    page.locator("#whose").click()
    expect(page.locator("#rank")).to_have_value("1")
    lines = page.locator("#logs > div")
    expect(lines.first).to_contain_text("early word of rank 1")
    assert {text[0] for text in lines.all_text_contents()} == {"1"}
    assert live.wait() != 0
