"""Reading values from flags and files."""

import signal

import pytest

from echelon.errors import UsageError
from echelon.spec.merging import Layer, merge
from echelon.spec.readers import LimitSignal, count, limit_signal


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"mem": "0"}, "0 means all of a node's memory"),
        ({"mail_type": "END,NEVER"}, "'NEVER' is not one of"),
        ({"mail": "me"}, "'me' is not an address"),
        ({"mail": "me@example.org,you@example.org"}, "is not an address"),
        ({"mail": "me@a b"}, "is not an address"),
        ({"mail": "-oQ/tmp@example.org"}, "is not an address"),
        ({"mail": "me@example.org\n#SBATCH --x"}, "is not an address"),
        ({"mail": ["me@example.org"]}, "is not an address"),
        ({"signal_lead": "UNLIMITED"}, "cannot be unlimited"),
        ({"wait_all_nodes": "maybe"}, "neither true nor false"),
        ({"nodelist": "n[1-"}, "at character 5"),
        ({"gpus": -1}, "not a whole number"),
        ({"gpus": True}, "not a whole number"),
        ({"partition": ["a"]}, "is not text"),
        ({"env": "A=1"}, "not a table"),
        ({"slurm.extra": {"signal": "FOO@60"}}, "'FOO@60' is not a signal with a time"),
        ({"slurm.extra": {"sig": "B:TERM@1m"}}, "'B:TERM@1m' is not a signal with a time"),
        ({"slurm.extra": {"signal": "999@60"}}, "'999@60' is not a signal with a time"),
    ],
)
def test_invalid_values_are_refused(values, problem):
    with pytest.raises(UsageError) as caught:
        merge([Layer(source="test", values=values)])
    assert problem in caught.value.message


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("USR1@90", LimitSignal(number=signal.SIGUSR1, lead_s=90)),
        ("B:TERM@120", LimitSignal(number=signal.SIGTERM, lead_s=120)),
        ("b:sigterm@120", LimitSignal(number=signal.SIGTERM, lead_s=120)),
        ("SIGHUP", LimitSignal(number=signal.SIGHUP, lead_s=60)),
        ("B:15@5", LimitSignal(number=signal.SIGTERM, lead_s=5)),
        ("BUS@5", LimitSignal(number=signal.SIGBUS, lead_s=5)),
        ("R:USR2@30", LimitSignal(number=signal.SIGUSR2, lead_s=30, reserved=True)),
        ("RB:INT", LimitSignal(number=signal.SIGINT, lead_s=60, reserved=True)),
    ],
)
def test_a_signal_before_the_limit_is_read_as_sbatch_reads_it(option, expected):
    assert limit_signal(option) == expected


def test_the_hint_for_short_durations_names_seconds():
    with pytest.raises(UsageError) as caught:
        merge([Layer(source="flags", values={"hang_timeout": "x"})])
    assert "90 (seconds)" in f"{caught.value.message} {caught.value.hint}"
    assert merge([Layer(source="flags", values={"hang_timeout": "90"})]).spec.hang_timeout_s == 90


@pytest.mark.parametrize("raw", ["9" * 5000, 10**400, "9" * 16])
def test_a_count_that_is_too_large_is_refused(raw):
    with pytest.raises(UsageError, match="not a whole number"):
        count(raw)
