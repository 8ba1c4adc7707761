"""Which errors a wait outlasts."""

import errno

import pytest

from echelon.client.manage.waiting import Outage
from echelon.errors import MissingProgramError, UnavailableError


@pytest.mark.parametrize("error", [UnavailableError("away"), OSError(errno.ESTALE, "stale")])
def test_an_outage_is_noted_once(error, capsys):
    outage = Outage()
    assert outage.pause_s(error) == outage.pause_s(error) > 0
    assert capsys.readouterr().err.count("waiting for the run's storage or cluster") == 1


@pytest.mark.parametrize("error", [MissingProgramError("scontrol"), OSError(errno.EISDIR, "x")])
def test_an_error_that_will_not_pass_ends_the_wait(error):
    with pytest.raises(type(error)):
        Outage().pause_s(error)
