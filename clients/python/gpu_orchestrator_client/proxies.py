"""Which proxy a request takes, by HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY.

These variables have no standard, and HTTP libraries read them differently: a value that one of them takes ends another
with an error of its own. The rules here are those of curl and Go, so every request follows the same ones.
"""

import fnmatch
import ipaddress
import re
from collections.abc import Mapping

PORTS = {"http": 80, "https": 443}
SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
# Scheme, name and password, host, port.
URL = re.compile(
    SCHEME.pattern + r"((?:[^/?#]*@)?)(\[[0-9A-Za-z:.%]+\]|[^/?#:@\[\]\s\x00-\x1f\x7f]+)(?::(\d{0,5}))?(?=[/?#]|$)"
)
MAX_CHARS = 16_384  # of one variable
SHOWN_CHARS = 80
NETWORK = "a network such as 10.0.0.0/8"


class BadProxy(ValueError):
    """A variable that cannot be used: its name, why, and what to do. The text never has a password."""

    def __init__(self, name: str, why: str, fix: str) -> None:
        self.name, self.why, self.fix = name, why, fix
        super().__init__(f"{name} cannot be used: {why}; fix: {fix}")


def proxy_of(url: str, environ: Mapping[str, str]) -> str | None:
    """Return the URL of the proxy for a request to this URL; None if it goes directly. Raises BadProxy.

    This machine is never reached through a proxy. An exception in NO_PROXY is a name with its subdomains, an address,
    a network, or a pattern with `*`, each with a port or without.
    """
    found = URL.match(url)
    if found is None:
        return None  # the request itself will fail
    scheme, host = found[1].lower(), found[3].strip("[]").rstrip(".").lower()
    port = int(found[4] or PORTS.get(scheme, 0))
    name, value = _given(environ, f"{scheme}_proxy", "all_proxy")
    if not value or _is_this_machine(host):
        return None
    exceptions, listed = _given(environ, "no_proxy")
    if any(_excepts(entry, host, port, exceptions) for entry in re.split(r"[,;\s]+", listed) if entry):
        return None
    return _readable(name, value, host)


def _given(environ: Mapping[str, str], *names: str) -> tuple[str, str]:
    """Return the first of these variables that is set, in small letters or in capitals, and its value."""
    for name in names:
        for spelt in (name, name.upper()):
            if value := environ.get(spelt, "").strip().strip("'\"").strip():
                if len(value) > MAX_CHARS:
                    raise BadProxy(spelt, f"it has more than {MAX_CHARS} characters", f"shorten {spelt}")
                return spelt, value
    return names[0].upper(), ""


def _is_this_machine(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or host.endswith(".localhost") or (address is not None and address.is_loopback)


def _excepts(entry: str, host: str, port: int, name: str) -> bool:
    """Whether one entry of NO_PROXY names this host."""
    scheme = SCHEME.match(entry)
    entry = entry[scheme.end() if scheme else 0 :].rstrip("/").lower()
    if "/" in entry:
        return _is_within(entry, host, name)
    entry, only = _without_port(entry)
    if only and only != str(port):
        return False
    if (address := _address(entry)) is not None:
        return address == _address(host)
    entry = entry.removeprefix("*.").strip(".")
    if "*" in entry:
        return fnmatch.fnmatchcase(host, entry)
    return bool(entry) and (host == entry or host.endswith(f".{entry}"))


def _is_within(entry: str, host: str, name: str) -> bool:
    try:
        network = ipaddress.ip_network(entry.replace("[", "").replace("]", ""), strict=False)
    except ValueError:
        why = f"its entry {entry[:SHOWN_CHARS]!r} is not {NETWORK}"
        raise BadProxy(name, why, f"write {NETWORK}, or a name without a path") from None
    address = _address(host)
    return address is not None and address in network


def _without_port(entry: str) -> tuple[str, str]:
    """Split host:port or [address]:port. A bare IPv6 address has no port."""
    if entry.startswith("["):
        host, _, rest = entry[1:].partition("]")
        return host, rest.removeprefix(":")
    host, colon, port = entry.rpartition(":")
    return (host, port) if colon and ":" not in host else (entry, "")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _readable(name: str, value: str, host: str) -> str:
    """Return a proxy's URL; one without a scheme is http://, as curl has it."""
    given = value if SCHEME.match(value) else f"http://{value}"
    fix = f"set {name}=http://host:port, or NO_PROXY={host} to do without a proxy"
    found = URL.fullmatch(given.rstrip("/"))
    scheme = found[1].lower() if found else ""
    if found is None or not found[2].isprintable() or " " in found[2] or int(found[4] or 1) not in range(1, 65_536):
        why = "its host or port cannot be read; in a password, write '@' as %40, '#' as %23 and '/' as %2F"
    elif scheme.startswith("socks"):
        why = f"{scheme}://{found[3]} is a SOCKS proxy, and only HTTP proxies are supported"
    elif scheme not in PORTS:
        why = f"{scheme[:SHOWN_CHARS]}:// is not the scheme of a proxy"
    else:
        return f"{scheme}://{given.rstrip('/')[len(scheme) + 3 :]}"
    raise BadProxy(name, why, fix)
