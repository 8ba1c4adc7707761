"""Layers become one request, and every problem of every layer is told."""

import pytest

from echelon.errors import UsageError
from echelon.spec.merging import Layer, merge
from echelon.spec.readers import NodeCount


def test_later_layers_win_and_are_remembered():
    merged = merge(
        [
            Layer(
                source="profile",
                values={"partition": "gpu", "nodes": 1, "env": {"A": "1", "B": "1"}},
            ),
            Layer(source="echelon.toml", values={"nodes": "2:4", "style": "torchrun"}),
            Layer(source="flags", values={"gpus": "4", "env": {"B": "2"}}),
        ]
    )
    assert merged.spec.nodes == NodeCount(2, 4)
    assert merged.spec.gpus == 4
    assert merged.spec.env == {"A": "1", "B": "2"}
    assert merged.origins["partition"] == "profile"
    assert merged.origins["nodes"] == "echelon.toml"
    assert merged.origins["gpus"] == "flags"
    assert merged.origins["qos"] == "default"


def test_every_problem_is_told_at_once_with_where_it_stands():
    with pytest.raises(UsageError) as caught:
        merge(
            [
                Layer(source="echelon.toml", values={"partitoin": "gpu", "mem": "16Go"}),
                Layer(source="flags", values={"style": "trochrun", "nodes": "0"}),
            ]
        )
    message, hint = caught.value.message, caught.value.hint
    assert "echelon.toml: unknown key 'partitoin'" in message
    assert "echelon.toml: mem: '16Go' is not a memory size" in message
    assert "flags: style: 'trochrun' is not one of" in message
    assert "flags: nodes: '0' is not a number of nodes" in message
    assert "did you mean 'partition'?" in hint
    assert "did you mean 'torchrun'?" in hint


def test_what_is_replaced_may_be_wrong():
    """A script with a slip in it can be used all the same, with the right value as a flag."""
    script = Layer(source="job.sh", values={"mem": "16Go", "env": {"A": "1"}})
    assert merge([script, Layer(source="flags", values={"mem": "16G"})]).spec.mem_mib == 16384
    with pytest.raises(UsageError, match="mem: '16Go' is not a memory size"):
        merge([script, Layer(source="flags", values={"env": {"B": "2"}})])
    with pytest.raises(UsageError, match="env: "):
        merge([Layer(source="job.sh", values={"env": 3}), script])


def test_a_name_that_nobody_knows_is_told_of_every_layer():
    layers = [Layer(source=name, values={"nods": 2}) for name in ("echelon.toml", "--set")]
    with pytest.raises(UsageError) as caught:
        merge(layers)
    assert "echelon.toml: unknown key 'nods'; --set: unknown key" in caught.value.message
