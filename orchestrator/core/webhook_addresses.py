"""Which addresses a webhook may reach. Users who submit tasks choose the URLs: none may lead into our network."""

import ipaddress
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
# Not public, whatever this release of Python says of them: 192.0.0.0/24 has the metadata service of a cloud.
RESERVED = tuple(map(ipaddress.ip_network, ("192.0.0.0/24", "192.88.99.0/24", "3fff::/20")))
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")  # every public IPv6 address; old forms that carry IPv4 are not in it


def is_public(address: str) -> bool:
    """Whether this IP address is public, not of a private network. Raises ValueError if it is no address.

    An address that carries an IPv4 address counts as that one.
    """
    ip = _read(address)
    if any(ip in network for network in RESERVED):
        return False
    return ip.is_global and not ip.is_multicast and (isinstance(ip, IPv4Address) or ip in GLOBAL_UNICAST)


def is_within(address: str, networks: Sequence[Network]) -> bool:
    """Whether this IP address is in one of the networks. Raises ValueError if it is no address."""
    return any(_read(address) in network for network in networks)


def _read(address: str) -> IPv4Address | IPv6Address:
    ip = ipaddress.ip_address(address.partition("%")[0])
    return (_embedded_ipv4(ip) or ip) if isinstance(ip, IPv6Address) else ip


def _embedded_ipv4(ip: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address to which packets for this address go."""
    if ip in NAT64:
        return IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
