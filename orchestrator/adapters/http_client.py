"""How requests leave: the proxy of the environment, and the certificates that are trusted.

Every HTTP client of this program is made with these, and reads nothing of the environment by itself: libraries refuse,
or misread, values that other tools take. What cannot be used raises SettingsError, which names the variable.
"""

import os
import ssl
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from orchestrator.config.errors import SettingProblem, SettingsError
from orchestrator.core.proxies import BadProxy, proxy_of

CA_FILES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")  # the first that is set
CA_PLACES = ("SSL_CERT_FILE", "SSL_CERT_DIR")  # what httpx and Python's ssl read


def client(url: str, **options: Any) -> httpx.AsyncClient:
    """Return a client for requests to this URL's host. Raises SettingsError."""
    return httpx.AsyncClient(**outgoing(url), **options)


def outgoing(url: str) -> dict[str, Any]:
    """Return the arguments of an httpx client for this URL's host. Raises SettingsError."""
    return {"proxy": proxy(url), "verify": trusted(), "trust_env": False}


def proxy(url: str) -> str | None:
    """Return the URL of the proxy for this URL; None if there is none. Raises SettingsError."""
    try:
        return proxy_of(url, os.environ)
    except BadProxy as error:
        raise SettingsError([SettingProblem(f"{error.name} cannot be used", error.why, error.fix)]) from None


@cache
def trusted() -> ssl.SSLContext:
    """Return the trusted certificates, read once: reading takes 20 ms. Raises SettingsError."""
    try:
        return httpx.create_ssl_context()
    except OSError as error:  # ssl.SSLError is one
        name = next((one for one in CA_PLACES if os.environ.get(one)), CA_PLACES[0])
        raise _bad_certificates(name, error.strerror or str(error)) from None


def ca_file() -> str | bool:
    """Return the file with the trusted certificates for `requests`; True for its own. Raises SettingsError."""
    for name in CA_FILES:
        if path := os.environ.get(name):
            if not Path(path).exists():
                raise _bad_certificates(name, "there is no such file")
            return path
    return True


def _bad_certificates(name: str, why: str) -> SettingsError:
    what, fix = f"{name} cannot be used", f"set {name} to a file with certificates in PEM form, or unset it"
    return SettingsError([SettingProblem(what, f"the trusted certificates cannot be read: {why}", fix)])
