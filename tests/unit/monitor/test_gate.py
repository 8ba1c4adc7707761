"""Who may see the web page."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.monitor.gate import Gate

GATE = Gate(token="s3cret", port=8090)  # noqa: S106
HOST = {"host": "127.0.0.1:8090"}
COOKIE = {"cookie": "other=1; echelon-8090=s3cret"}


def refused(query="", **headers):
    return GATE.refuse(query, {**HOST, **headers})


@pytest.mark.parametrize("host", ["127.0.0.1:8090", "localhost:8090", "[::1]:8090"])
def test_with_the_token_one_may_enter(host):
    headers = {"host": host}
    assert GATE.refuse("token=s3cret", headers) == ""
    assert GATE.refuse("", {**headers, **COOKIE}) == ""
    assert GATE.refuse("", {**headers, "authorization": "Bearer s3cret"}) == ""


@pytest.mark.parametrize(
    "query", ["", "token=", "token=S3cret", "token=s3cret2", "token=s3cre", "t=s3cret"]
)
def test_without_it_nobody_may(query):
    assert refused(query) == "no token"
    assert refused(query, cookie="echelon-8091=s3cret") == "no token"
    assert refused(query, cookie="\0;=;=") == "no token"


@pytest.mark.parametrize(
    "host", ["", "evil.example:8090", "127.0.0.1", "127.0.0.1:80", "x@localhost:8090"]
)
def test_a_name_that_leads_here_by_somebody_elses_will_is_refused(host):
    assert GATE.refuse("", {**COOKIE, "host": host}) == "unknown host"


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9999"])
def test_a_page_of_somebody_elses_may_ask_nothing(origin):
    assert refused(**COOKIE, origin=origin) == "foreign origin"
    assert refused(**COOKIE, origin="http://127.0.0.1:8090") == ""


@pytest.mark.parametrize("site", ["cross-site", "same-site", ""])
def test_a_page_on_another_port_of_this_host_may_not_use_our_cookie(site):
    headers = {**COOKIE, "sec-fetch-site": site}
    assert refused(**headers) == "foreign page"
    assert refused("token=s3cret", **headers) == ""


@pytest.mark.parametrize(
    "before", ['a="b; c"', "a=b=c; =; ;;", "bad name=1", "é=\xff", "echelon-8090=old"]
)
def test_cookies_of_others_do_not_hide_ours(before):
    assert refused(cookie=f"{before}; echelon-8090=s3cret") == ""


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_our_own_page_and_the_user_may(site):
    assert refused(**COOKIE, **{"sec-fetch-site": site}) == ""


@given(
    st.text(), st.dictionaries(st.sampled_from(["cookie", "authorization", "origin"]), st.text())
)
def test_whatever_is_sent_nobody_enters_by_chance(query, headers):
    if "s3cret" not in f"{query}{headers}":
        assert refused(query, **headers)
