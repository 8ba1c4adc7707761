"""Layers become one request, and all problems of all layers are reported."""

import pytest

from echelon.errors import UsageError
from echelon.spec.merging import Layer, merge
from echelon.spec.readers import NodeCount


def test_later_layers_override_and_are_recorded_as_origins():
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


def test_all_problems_are_reported_with_their_source():
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


def test_an_overridden_value_may_be_invalid():
    """A job script with an invalid value can be used with a flag for the valid one."""
    script = Layer(source="job.sh", values={"mem": "16Go", "env": {"A": "1"}})
    assert merge([script, Layer(source="flags", values={"mem": "16G"})]).spec.mem_mib == 16384
    with pytest.raises(UsageError, match="mem: '16Go' is not a memory size"):
        merge([script, Layer(source="flags", values={"env": {"B": "2"}})])
    with pytest.raises(UsageError, match="env: "):
        merge([Layer(source="job.sh", values={"env": 3}), script])


def test_unknown_keys_of_all_layers_are_reported():
    layers = [Layer(source=name, values={"nods": 2}) for name in ("echelon.toml", "--set")]
    with pytest.raises(UsageError) as caught:
        merge(layers)
    assert "echelon.toml: unknown key 'nods'; --set: unknown key" in caught.value.message
