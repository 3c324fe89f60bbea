"""Requests go through the proxy of the environment, or past it, whichever library makes them."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from orchestrator.adapters import http_client, http_deadline
from orchestrator.config.errors import SettingsError

URL = "http://collector.test/v1/traces"
ANSWER_S = 5.0


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What a proxy on this machine is asked for; HTTP_PROXY names it without a scheme."""
    asked: list[str] = []

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(" ".join([self.path, *self.headers.get_all("Authorization", [])]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HTTP_PROXY", f"127.0.0.1:{server.server_port}")
        monkeypatch.setenv("NO_PROXY", "localhost,::1/128,10.0.0.0/8")
        yield asked
        server.shutdown()


async def test_both_libraries_use_the_same_proxy(proxied: list[str]) -> None:
    """Also with a network in NO_PROXY, at which one of them would end."""
    async with http_client.client(URL, timeout=ANSWER_S) as client:
        assert (await client.get(URL)).status_code == 200
    with http_deadline.response("GET", URL, ANSWER_S, timeout=ANSWER_S) as reply:
        assert reply.status_code == 200
    assert proxied == [URL, URL]


@pytest.mark.parametrize(("name", "value"), [("SSL_CERT_FILE", "/nowhere.pem"), ("REQUESTS_CA_BUNDLE", "/nowhere.pem")])
def test_a_file_of_certificates_that_is_not_there_is_named(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A corporate proxy comes with one."""
    http_client.trusted.cache_clear()
    for other in (*http_client.CA_FILES, *http_client.CA_PLACES):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=f"{name} cannot be used"):
        (http_client.trusted if name == "SSL_CERT_FILE" else http_client.ca_file)()
    http_client.trusted.cache_clear()


def test_an_api_key_is_not_replaced_by_a_password_of_netrc(
    proxied: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`requests` takes one for the host from ~/.netrc."""
    (tmp_path / "netrc").write_text("machine collector.test login somebody password else\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with http_deadline.response("GET", URL, ANSWER_S, timeout=ANSWER_S, headers={"Authorization": "Bearer key"}):
        assert proxied == [f"{URL} Bearer key"]
