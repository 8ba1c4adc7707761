"""Whether steps are captured; what captured steps do is tried on a GPU."""

import pytest
import torch

from echelon.train import captured
from echelon.train.captured import CapturedStep
from echelon.train.loading import Portion, Rows


class FakeEager:
    def __init__(self):
        self.taken = 0

    def why_not_captured(self):
        return ""

    def take(self, _portion, _tally):
        self.taken += 1


@pytest.fixture
def take_one(monkeypatch):
    monkeypatch.setattr(captured, "least_over_ranks", lambda value: value)

    def take_one(batch, *, alone=False, **options):
        """Take a first step, which is never captured; return why later ones are not either."""
        monkeypatch.setattr(captured, "is_alone", lambda: alone)
        eager, told = FakeEager(), []
        step = CapturedStep(
            eager,
            torch.device("cpu"),
            stream=None,
            begun=False,
            compiled=False,
            tell=told.append,
            **options,
        )
        step.take(Portion(batch, 4, 2), None)
        assert eager.taken == 1
        assert bool(told) == bool(step.why_not)
        return step.why_not

    return take_one


ROWS = Rows((torch.ones(4, 2),), torch.tensor([0, 1]), torch.tensor(0))
BATCH = (torch.ones(2, 3), torch.ones(2))


def test_with_several_ranks_batches_of_any_shape_are_captured_only_if_asked_for(take_one):
    """A rank that records takes other collectives than one that replays."""
    assert "differ in shape" in take_one(BATCH, by_default=True)
    assert take_one(BATCH, by_default=False) == ""
    assert take_one(ROWS, by_default=True) == ""
    assert take_one(BATCH, by_default=True, alone=True) == ""
