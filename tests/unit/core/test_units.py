import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.core.units import (
    format_duration,
    format_memory,
    parse_duration,
    parse_memory,
    render_age,
)
from echelon.errors import UsageError


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("64G", 65536),
        ("64g", 65536),
        ("64gb", 65536),
        ("64GB", 65536),
        (" 64G ", 65536),
        ("512", 512),
        ("512M", 512),
        ("2T", 2 * 1024 * 1024),
        ("1024K", 1),
        ("1025K", 2),
        ("1K", 1),
        ("0", 0),
    ],
)
def test_memory_is_read_as_slurm_reads_it(text, mib):
    assert parse_memory(text) == mib


@pytest.mark.parametrize(
    "text", ["", "16Go", "G", "1.5G", "-1G", "64 G", "64B", "64GiB", "٣G", "0x1G", "9" * 5000]
)
def test_what_is_no_memory_size_is_shown_with_the_fix(text):
    with pytest.raises(UsageError) as caught:
        parse_memory(text)
    assert f"'{text}'" in caught.value.message
    assert "64G" in caught.value.hint


@given(st.integers(0, 2**40))
def test_memory_round_trips(mib):
    assert parse_memory(format_memory(mib)) == mib


def test_memory_is_written_short():
    assert [format_memory(mib) for mib in (0, 1, 1024, 1536, 2 * 1024**2)] == [
        "0M",
        "1M",
        "1G",
        "1536M",
        "2T",
    ]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("90:30", 5430),
        ("01:30:00", 5400),
        ("72:00:00", 259200),
        ("2-12", 216000),
        ("2-12:30", 217800),
        ("2-12:30:15", 217815),
        ("45s", 45),
        ("30m", 1800),
        ("30min", 1800),
        ("2h", 7200),
        ("1h30m", 5400),
        ("2d12h", 216000),
        ("unlimited", None),
        ("INFINITE", None),
        ("0", 0),
    ],
)
def test_durations_are_slurms_and_peoples(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", " ", "1:2:3:4", "1-", "-1", "h", "1h 30m", "30m1h", "soon", "1.5h", "9" * 5000]
)
def test_what_is_no_duration_is_shown_with_the_fix(text):
    with pytest.raises(UsageError) as caught:
        parse_duration(text)
    assert f"'{text}'" in caught.value.message
    assert "01:30:00" in caught.value.hint


@given(st.none() | st.integers(0, 10**9))
def test_durations_round_trip(seconds):
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0 s ago"),
        (59.9, "59 s ago"),
        (60, "1 min ago"),
        (3599, "59 min ago"),
        (3600, "1 h ago"),
        (172_799, "47 h ago"),
        (172_800, "2 days ago"),
    ],
)
def test_ages_are_in_their_largest_unit(seconds, text):
    assert render_age(seconds) == text
