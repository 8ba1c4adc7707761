"""Real faults, done to real processes: does the verdict name the first cause, and whose it was?"""

import pytest

from local.faults import FAULTS, can_limit_memory, try_fault
from requirements import do_without

QUICK = [fault for fault in FAULTS if fault.quick]
REST = [fault for fault in FAULTS if not fault.quick]


def check(fault, folder):
    if fault.limited and not can_limit_memory():
        do_without("needs root, and a memory cgroup of its own")
    wrong = try_fault(fault, folder)
    assert not wrong, "; ".join(wrong)


@pytest.mark.parametrize("fault", QUICK, ids=lambda fault: fault.name)
def test_the_verdict_names_the_cause(fault, tmp_path):
    check(fault, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("fault", REST, ids=lambda fault: fault.name)
def test_the_verdict_names_the_cause_of_the_rest(fault, tmp_path):
    check(fault, tmp_path)
