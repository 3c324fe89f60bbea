"""No address of a webhook points into a private network, however it is written."""

import ipaddress

import pytest

from orchestrator.core.webhook_addresses import is_public, is_within


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "64:ff9b::0101:0101"])
def test_public_addresses_are_reached(address: str) -> None:
    """Also through NAT64."""
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.9.1", "0.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "169.254.169.254",
        "192.0.0.192", "192.88.99.1", "224.0.0.1", "239.255.255.250", "255.255.255.255", "192.0.2.1", "198.18.0.1",
        "240.0.0.1",
        "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1",
        "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1",
        "2002:7f00:1::", "2002:a9fe:a9fe::1", "::127.0.0.1", "::169.254.169.254", "::ffff:0:169.254.169.254",
        "fec0::1", "3fff::1", "5f00::1", "4000::1",
    ],
)  # fmt: skip
def test_other_addresses_are_refused(address: str) -> None:
    """Loopback, private, metadata services, multicast, and IPv6 addresses that carry one."""
    assert not is_public(address)


def test_a_network_may_be_allowed() -> None:
    """An IPv6 address that carries an IPv4 address belongs to the network of that one."""
    networks = [ipaddress.ip_network("10.1.0.0/16"), ipaddress.ip_network("fd00::/8")]
    assert [is_within(one, networks) for one in ("10.1.2.3", "::ffff:10.1.2.3", "fd00::1", "10.2.0.1", "1.1.1.1")] == [
        True, True, True, False, False,
    ]  # fmt: skip


def test_what_is_no_address_is_an_error() -> None:
    """It is not silently public."""
    with pytest.raises(ValueError, match="example"):
        is_public("example.com")
