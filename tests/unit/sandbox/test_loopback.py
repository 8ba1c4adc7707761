import pytest

from echelon.sandbox.config import SandboxConfig
from echelon.sandbox.loopback import plan_loopback


@pytest.mark.parametrize(
    ("machine", "address", "confined"),
    [
        ("localhost", "127.0.0.1", True),
        ("127.0.1.1", "127.0.0.1", False),  # what Debian's installer assigns to the host name
        ("no such host", "127.0.0.1", False),
    ],
)
def test_daemons_listen_at_one_address_where_they_find_each_other_there(machine, address, confined):
    network = plan_loopback(SandboxConfig(nodes=1), machine)
    assert network.addresses == {"login": address, "node1": address}
    assert network.confined == confined
    assert len(set(network.ports.values())) == 4
