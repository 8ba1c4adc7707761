"""How values may be written, whatever wrote them."""

import pytest

from echelon.errors import UsageError
from echelon.merging import Layer, merge


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
        ({"partition": ["a"]}, "not a text"),
        ({"env": "A=1"}, "not a table"),
    ],
)
def test_what_cannot_be_read_is_refused(values, problem):
    with pytest.raises(UsageError) as caught:
        merge([Layer(source="test", values=values)])
    assert problem in caught.value.message


def test_a_hang_is_counted_in_seconds_and_the_hint_says_so():
    with pytest.raises(UsageError) as caught:
        merge([Layer(source="flags", values={"hang_timeout": "x"})])
    assert "90 (seconds)" in f"{caught.value.message} {caught.value.hint}"
    assert merge([Layer(source="flags", values={"hang_timeout": "90"})]).spec.hang_timeout_s == 90
