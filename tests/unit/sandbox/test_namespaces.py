import ipaddress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.core.shell import FakeShell, Result
from echelon.errors import UnavailableError
from echelon.sandbox.config import LOGIN, SandboxConfig
from echelon.sandbox.layout import Layout
from echelon.sandbox.namespaces import (
    TEST_NETWORK,
    choose_subnet,
    hardware_address,
    plan_namespaces,
    uplink_name,
)

LAYOUT = Layout(root=Path("/var/lib/echelon/sandbox/demo"))

routes = st.builds(
    lambda address, prefix: f"{ipaddress.IPv4Address(address)}/{prefix}",
    st.integers(int(TEST_NETWORK[0]), int(TEST_NETWORK[-1])) | st.integers(0, 2**32 - 1),
    st.integers(18, 32),
) | st.sampled_from(["0.0.0.0/1", "128.0.0.0/1", "0.0.0.0/0"])


@given(st.lists(routes, max_size=20))
def test_a_subnet_never_overlaps_a_route(taken):
    chosen = choose_subnet(LAYOUT, taken)
    assert chosen.subnet_of(TEST_NETWORK)
    assert chosen.prefixlen == 24
    networks = [ipaddress.IPv4Network(route, strict=False) for route in taken]
    # What takes nearly everything is a default route, as a VPN sets it.
    assert not any(chosen.overlaps(network) for network in networks if network.prefixlen >= 8)


def test_when_all_are_taken_it_says_so():
    with pytest.raises(UnavailableError, match="no free /24"):
        choose_subnet(LAYOUT, [str(TEST_NETWORK)])


def _login(network):
    return network.addresses[LOGIN]


def test_sandboxes_that_start_at_the_same_time_have_different_networks():
    shell = FakeShell(answers={"ip": "[]"})
    config = SandboxConfig(name="demo")
    with (
        plan_namespaces(config, LAYOUT, shell) as one,
        plan_namespaces(config, LAYOUT, shell) as other,
    ):
        assert _login(one) != _login(other)
    with plan_namespaces(config, LAYOUT, shell) as later:
        assert _login(later) == _login(one)


def test_a_network_that_was_connected_just_before_it_was_reserved_is_not_used():
    config = SandboxConfig(name="demo")
    with plan_namespaces(config, LAYOUT, FakeShell(answers={"ip": "[]"})) as network:
        used = str(ipaddress.IPv4Network(f"{_login(network)}/24", strict=False))
    shown = iter(["[]"])
    answer = f'[{{"dst": "default"}}, {{"dst": "{used}"}}]'
    shell = FakeShell(
        answers={"ip": lambda argv: Result(argv=tuple(argv), stdout=next(shown, answer))}
    )
    with plan_namespaces(config, LAYOUT, shell) as second:
        assert _login(second) != _login(network)


def test_the_link_s_name_fits_the_kernel():
    assert len(uplink_name(LAYOUT)) <= 15


@given(st.sets(st.integers(0, 2**32 - 1), min_size=2))
def test_every_host_has_a_card_of_its_own(hosts):
    cards = {hardware_address(str(ipaddress.IPv4Address(host))) for host in hosts}
    assert len(cards) == len(hosts)
    # The lowest two bits: it is no group's, and no maker's.
    assert {int(card.partition(":")[0], 16) & 3 for card in cards} == {2}
