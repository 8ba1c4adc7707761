"""Who may see the web page."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echelon.monitor.server import Gate

GATE = Gate(token="s3cret", port=8090)  # noqa: S106
HOST = {"host": "127.0.0.1:8090"}
TOKEN = {"authorization": "Bearer s3cret"}


def refused(path="/api/runs", **headers):
    return GATE.refuse(path, {**HOST, **headers})


@pytest.mark.parametrize("host", ["127.0.0.1:8090", "localhost:8090", "[::1]:8090"])
def test_with_the_token_one_may_enter(host):
    assert GATE.refuse("/api/runs", {**TOKEN, "host": host}) == ""


@pytest.mark.parametrize("path", ["/", "/web/page.js"])
def test_the_page_and_its_scripts_need_no_token(path):
    assert refused(path) == ""
    assert refused(path, **{"sec-fetch-site": "cross-site"}) == ""  # a link on any page leads here
    assert refused(path, host="evil.example:8090") == "unknown host"
    assert refused(path, origin="http://evil.example") == "foreign origin"


@pytest.mark.parametrize("path", ["/api/runs", "/api", "/x", "", "//", "/web", "/favicon.ico"])
@pytest.mark.parametrize(
    "shown",
    [
        *("", "Bearer ", "Bearer S3cret", "Bearer s3cret2", "Bearer s3cre", "s3cret"),
        *("Basic s3cret", "bearer s3cret", "Bearer  s3cret", "Bearer s3cret, Bearer s3cret"),
    ],
)
def test_nothing_else_is_told_without_the_token(path, shown):
    assert refused(path, authorization=shown) == "no token"
    assert refused(f"{path}?token=s3cret", authorization=shown) == "no token"


def test_a_cookie_is_not_a_token():
    assert refused(cookie="echelon-8090=s3cret; token=s3cret") == "no token"


@pytest.mark.parametrize(
    "host", ["", "evil.example:8090", "127.0.0.1", "127.0.0.1:80", "x@localhost:8090", "["]
)
def test_a_name_that_leads_here_by_somebody_elses_will_is_refused(host):
    assert GATE.refuse("/api/runs", {**TOKEN, "host": host}) == "unknown host"


@pytest.mark.parametrize(
    "origin",
    [
        *("http://evil.example", "null", "http://127.0.0.1:9999", "http://[", "http://[::1"),
        *("https://127.0.0.1:8090", "http://x@127.0.0.1:8090", "http://127.0.0.1:8090/", "\0"),
    ],
)
@pytest.mark.parametrize("headers", [{}, TOKEN])
def test_a_page_of_somebody_elses_may_ask_nothing(origin, headers):
    assert refused(**headers, origin=origin) == "foreign origin"
    assert refused(**TOKEN, origin="http://127.0.0.1:8090") == ""


@pytest.mark.parametrize("site", ["cross-site", "same-site", ""])
def test_a_page_on_another_port_of_this_host_may_ask_nothing(site):
    assert refused(**TOKEN, **{"sec-fetch-site": site}) == "foreign page"


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_our_own_page_and_the_user_may(site):
    assert refused(**TOKEN, **{"sec-fetch-site": site}) == ""


HEADERS = ("host", "origin", "authorization", "sec-fetch-site", "cookie", "referer")
ODD = st.one_of(
    st.text(st.characters()),  # halves of characters too
    st.sampled_from(["http://[", "[::1", "Bearer ", "127.0.0.1:8090", "//[", "Bearer \udc80"]),
    st.text(alphabet="[]:/@.%#?&=;, abcBearer0189\0\n", max_size=40),
)


@settings(deadline=None)  # a busy machine is no fault
@given(ODD, st.dictionaries(st.sampled_from(HEADERS), ODD))
def test_whatever_is_sent_nobody_enters_by_chance_and_nothing_is_raised(path, headers):
    for told in (headers, {**HOST, **headers}):
        reason = GATE.refuse(path, told)
        if "s3cret" not in f"{headers}" and path != "/" and not path.startswith("/web/"):
            assert reason
