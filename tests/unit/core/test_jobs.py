"""Jobs in people's words: no process numbers, no addresses."""

import pytest

from echelon.core.jobs import describe_job, short_id


@pytest.mark.parametrize(
    ("job_id", "short", "described"),
    [
        ("42", "42", "as job 42"),
        ("42_7", "42_7", "as job 42_7"),
        ("local:vm:2973:29706", "local", "on this machine"),
        ("ray:train-abcd-2@http://head:8265", "train-abcd-2", "as Ray job train-abcd-2"),
        ("ray:train-abcd-2", "train-abcd-2", "as Ray job train-abcd-2"),
    ],
)
def test_a_job_is_named_as_people_know_it(job_id, short, described):
    assert short_id(job_id) == short
    assert describe_job(job_id) == described
