import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.core.nodes import MAX_HOSTS, compress, expand
from echelon.errors import UsageError

# Names as clusters have them, made so that neighbours often fold.
numbers = st.builds(lambda n, width: str(n).zfill(width), st.integers(0, 12), st.integers(1, 3))
names = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["", "n", "gpu-", "rack"]),
        st.just("") | numbers,
        st.sampled_from(["", "n", "-ib", "."]),
        st.just("") | numbers,
    ),
).filter(bool)


@given(st.lists(names, max_size=30))
def test_compressing_loses_nothing(hosts):
    assert expand(compress(hosts)) == hosts


@given(st.lists(st.from_regex(r"[A-Za-z0-9._-]{1,8}", fullmatch=True), max_size=30))
def test_compressing_loses_nothing_of_any_name(hosts):
    assert expand(compress(hosts)) == hosts


@given(st.text(alphabet="n1-9[],0 _x", max_size=12))
def test_any_text_is_a_host_list_or_a_clear_error(text):
    try:
        hosts = expand(text)
    except UsageError as error:
        assert "at character" in error.message
    else:
        assert expand(compress(hosts)) == hosts


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", []),
        ("  ", []),
        ("gpu7", ["gpu7"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[3,1]", ["n3", "n1"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[1,01]", ["n1", "n01"]),
        ("r[1-2]n[01-02],gpu7", ["r1n01", "r1n02", "r2n01", "r2n02", "gpu7"]),
        ("a[1-2]-ib", ["a1-ib", "a2-ib"]),
        ("b2,a1", ["b2", "a1"]),
    ],
)
def test_lists_expand_in_their_order(text, hosts):
    assert expand(text) == hosts


def test_a_list_with_two_ranges_expands_in_order_and_compresses_back():
    hosts = expand("rack[1-2]n[01-16],gpu7")
    assert len(hosts) == 33
    assert hosts[0] == "rack1n01"
    assert hosts[-1] == "gpu7"
    assert compress(hosts) == "rack[1-2]n[01-16],gpu7"


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        ([], ""),
        (["node1", "node2", "node4"], "node[1-2,4]"),
        (["n09", "n10", "n11"], "n[09-11]"),
        (["n9", "n10"], "n[9-10]"),
        (["n2", "n1"], "n[2,1]"),
        (["a", "a"], "a,a"),
    ],
)
def test_names_compress_to_the_short_form(hosts, text):
    assert compress(hosts) == text


@pytest.mark.parametrize(
    ("text", "character", "reason"),
    [
        ("n[1-", 5, "expected a number"),
        ("n[", 3, "expected a number"),
        ("n[]", 3, "expected a number"),
        ("n[1-2", 6, "expected ',', '-' or ']'"),
        ("n]", 2, "expected a host name"),
        ("a,,b", 3, "expected a host name"),
        ("a,", 3, "expected a host name"),
        (",a", 1, "expected a host name"),
        ("a b", 2, "expected a host name"),
        ("n[3-1]", 5, "1 is less than 3"),
        ("n[1-[2-3]]", 5, "expected a number"),
        ("n[0-10/2]", 7, "expected ',', '-' or ']'"),
        ("@group", 1, "expected a host name"),
        ("n[0-99999999]", 5, f"more than {MAX_HOSTS} hosts"),
        ("n[1-300]x[1-300]", 17, f"more than {MAX_HOSTS} hosts"),
    ],
)
def test_nonsense_is_shown_where_it_is(text, character, reason):
    with pytest.raises(UsageError) as caught:
        expand(text)
    assert f"at character {character} " in caught.value.message
    assert reason in caught.value.message


def test_a_name_that_no_list_can_hold_is_refused():
    with pytest.raises(UsageError, match="'a,b' is not a host name"):
        compress(["a,b"])
