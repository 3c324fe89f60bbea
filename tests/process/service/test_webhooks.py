"""Webhooks reach real receivers: slow ones, dead ones, ones that lead elsewhere; and from a leader that is killed."""

import asyncio
import contextlib
import json
import re
import ssl
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.adapters import webhook_sender
from orchestrator.adapters.posting import ReceiverFailed, WebhookRefused
from orchestrator.adapters.webhook_sender import SendingRules, WebhookSender
from orchestrator.adapters.webhook_signatures import receiver_key
from orchestrator.ports import Unavailable
from testbed.shared_services import SharedServices
from testbed.stack import Stack
from tests.process.cli import forked

SECRET, NEXT_SECRET = "5f2b8c1e9a7d4036b1c8e2f5a9d3706c", "c607d3a9f5e2c8b1630d4a7d9e1c8b2f"
PAGE = Path(__file__).resolve().parents[3] / "docs" / "webhooks.md"
OK = b"HTTP/1.1 204 No Content\r\n\r\n"
BODY = {"type": "test", "data": {"ü": 1}}
WRONG_HEADERS = (  # each alone makes a message one that the orchestrator did not send
    ("webhook-id", "m-2"), ("webhook-id", ""), ("webhook-timestamp", "1700000000"), ("webhook-timestamp", "soon"),
    ("webhook-timestamp", ""), ("webhook-timestamp", "9" * 5_000), ("webhook-signature", ""),
    ("webhook-signature", "v1,not base64"), ("webhook-signature", "v1,\u00fc"), ("webhook-signature", "v2,eA=="),
)  # fmt: skip
Write = Callable[[asyncio.StreamWriter], Awaitable[None]]
Verify = Callable[[str, Mapping[str, str], bytes], bool]


def rules(**changes: Any) -> SendingRules:
    """Loopback is allowed."""
    given: dict[str, Any] = {"secrets": (SECRET,), "private": (ip_network("127.0.0.0/8"),), "timeout_s": 30}
    return SendingRules(**(given | changes))


class Receiver:
    """A server that keeps what it gets and answers as told; no answer: it hangs."""

    def __init__(self, answer: bytes | Write | None = OK) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.answer, self.url, self.connected = answer, "", 0

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connected += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:]
            head = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name}
            self.got.append((head, await reader.readexactly(int(head["content-length"]))))
            if callable(self.answer):
                await self.answer(writer)
            elif self.answer is not None:
                writer.write(self.answer)
                await writer.drain()
            else:
                await reader.read()  # until the client leaves
        writer.close()

    @contextlib.asynccontextmanager
    async def open(self, context: ssl.SSLContext | None = None) -> AsyncIterator["Receiver"]:
        """Listen on this machine."""
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=context) as server:
            port = server.sockets[0].getsockname()[1]
            self.url = f"{'https' if context else 'http'}://127.0.0.1:{port}/hooks/a-secret-path?key=a-secret-key"
            yield self


async def endless(writer: asyncio.StreamWriter) -> None:
    """An answer without an end."""
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        await writer.drain()


async def endless_head(writer: asyncio.StreamWriter) -> None:
    """A header without an end."""
    writer.write(b"HTTP/1.1 200 OK\r\nx: ")
    while True:
        writer.write(b"x" * 0x10000)
        await writer.drain()


async def reset(writer: asyncio.StreamWriter) -> None:
    """The connection breaks."""
    writer.transport.abort()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (OK, None),
        (endless, None),
        (endless_head, Unavailable),
        (None, Unavailable),
        (reset, Unavailable),
        (b"not http at all\r\n\r\n", Unavailable),
        (b"HTTP/1.1 500 Busy\r\nContent-Length: 0\r\n\r\n", ReceiverFailed),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", ReceiverFailed),
        (b"HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n", WebhookRefused),
        (b"HTTP/1.1 307 Go\r\nLocation: http://169.254.169.254/latest\r\nContent-Length: 0\r\n\r\n", ReceiverFailed),
    ],
)
async def test_every_receiver_is_bounded(answer: bytes | Write | None, error: type[Exception] | None) -> None:
    """In time and in bytes. Redirects are not followed, and no error contains the path of the URL."""
    async with Receiver(answer).open() as receiver:
        patience = {"timeout_s": 10} if answer is None else {}  # only one that never answers is waited for so long
        sending = WebhookSender(rules(**patience)).send("1", receiver.url, BODY)
        if error is None:
            assert await sending in {200, 204}
        else:
            with pytest.raises(error) as failed:
                await sending
            assert "a-secret" not in str(failed.value)
            assert type(failed.value) is error
        assert [json.loads(body) for _, body in receiver.got] == [BODY]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]"])
async def test_a_private_address_is_refused_however_it_is_written(host: str) -> None:
    """Nothing connects to it. A public address needs https."""
    async with Receiver().open() as receiver:
        for url in (receiver.url, receiver.url.replace("http:", "https:")):
            with pytest.raises(WebhookRefused, match="WEBHOOK_PRIVATE_NETWORKS"):
                await WebhookSender(rules(private=())).send("1", url.replace("127.0.0.1", host), BODY)
        assert receiver.connected == 0
    with pytest.raises(WebhookRefused, match="https"):
        await WebhookSender(rules()).send("1", "http://93.184.216.34/", BODY)
    with pytest.raises(Unavailable, match="no address"):
        await WebhookSender(rules()).send("1", "https://name.invalid/", BODY)


@pytest.mark.parametrize("url", ["https://example.com:99999/", "https://example.com:-1/", "https://[::1", "https:///x"])
async def test_a_url_that_names_no_address_is_given_up_at_once(url: str) -> None:
    """It would be tried for a day."""
    with pytest.raises(WebhookRefused, match="names no host"):
        await WebhookSender(rules()).send("1", url, BODY)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A file with a certificate for `localhost`, and its key."""
    path = str(tmp_path / "certificate.pem")
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1"]
    make += [
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=DNS:localhost",
        "-out",
        path,
        "-keyout",
        path + ".key",
    ]
    subprocess.run(make, check=True, capture_output=True, timeout=30)
    with Path(path).open("a") as file:
        file.write(Path(path + ".key").read_text())
    return Path(path)


@pytest.mark.needs_program("openssl", "openssl")
async def test_a_certificate_of_another_name_is_refused(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection goes to an address; the certificate is compared with the name of the URL."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setattr(webhook_sender, "trusted", httpx.create_ssl_context)  # `trusted` reads them once in a process
    async with Receiver().open(context) as receiver:
        named = receiver.url.replace("127.0.0.1", "localhost")
        assert await WebhookSender(rules()).send("1", named, BODY) == 204
        with pytest.raises(Unavailable, match="ConnectError"):
            await WebhookSender(rules()).send("1", receiver.url, BODY)
    ((head, _),) = receiver.got
    assert head["host"] == named.split("/")[2]


def page_verify() -> Verify:
    """The function of docs/webhooks.md."""
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(program, names)  # noqa: S102  a page of ours
    verify: Verify = names["verify"]
    return verify


async def test_the_page_verifies_what_is_sent() -> None:
    """With the receiver's key, also during a rotation; not with another key, another body, or an old timestamp."""
    verify = page_verify()
    async with Receiver().open() as receiver:
        await WebhookSender(rules(secrets=(NEXT_SECRET, SECRET))).send("m-1", receiver.url, BODY)
        ((head, body),) = receiver.got
    for secret in (SECRET, NEXT_SECRET):
        assert verify(receiver_key(secret, receiver.url), head, body)
        assert verify(receiver_key(secret, receiver.url.replace("/hooks", "/other")), head, body)
        assert not verify(receiver_key(secret, "https://another.example/"), head, body)
        assert not verify(receiver_key(secret, receiver.url), head, body + b" ")
        assert not verify(receiver_key(secret, receiver.url), {}, body)
        for name, value in WRONG_HEADERS:
            assert not verify(receiver_key(secret, receiver.url), {**head, name: value}, body), (name, value)


class Moody(Receiver):
    """Answers 500 to the first request about each message, then takes a while."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.seen: Counter[str] = Counter()

    async def _answer(self, writer: asyncio.StreamWriter) -> None:
        message_id = self.got[-1][0]["webhook-id"]
        self.seen[message_id] += 1
        if self.seen[message_id] == 1:
            writer.write(b"HTTP/1.1 500 Not Yet\r\nContent-Length: 0\r\n\r\n")
        else:
            await asyncio.sleep(0.05)  # so that a kill hits messages that are being sent
            writer.write(OK)
        await writer.drain()


async def test_killed_leaders_lose_no_message(shared: SharedServices, tmp_path: Path) -> None:
    """Leaders are killed while they send. Every end is told at least once; a dead receiver delays no other."""
    verify, count, servers = page_verify(), 24, await shared.servers("webhooks")
    async with (
        Stack(tmp_path / "stack", servers=servers, light=True, start=forked.start) as stack,
        Moody().open() as moody,
        Receiver().open() as fine,
        Receiver(None).open() as dead,
        await stack.connect() as sql,
    ):
        where = {"WEBHOOK_SECRET": SECRET, "WEBHOOK_PRIVATE_NETWORKS": "127.0.0.0/8"}
        leader = await stack.start_orchestrator(where)
        for receiver, tasks in ((dead, 10 * count), (moody, count), (fine, count)):
            insert = "insert into tasks (task_type, pool, webhook_url) select 't', 'x', %s from generate_series(1, %s)"
            await sql.execute(insert, (receiver.url, tasks))
        await sql.execute("update tasks set status = 'Cancelled'")
        for _ in range(2):
            before = len(moody.got)
            async with asyncio.timeout(60):
                while len(moody.got) < before + 6:
                    await asyncio.sleep(0.01)
            leader.process.kill()
            await leader.process.wait()
            await sql.execute("update webhook_messages set next_at = now() where next_at is not null")
            await sql.execute("update fleet_lease set expires_at = now()")
            leader = await stack.start_orchestrator(where)
        async with asyncio.timeout(60):
            left = "select 1 from webhook_messages where sent_at is null and url <> %s"
            while await (await sql.execute(left, (dead.url,))).fetchone():
                await asyncio.sleep(0.2)
        tell = "select id::text as id from tasks where webhook_url <> %s"
        expected = {row["id"] for row in await (await sql.execute(tell, (dead.url,))).fetchall()}
        assert {json.loads(body)["data"]["id"] for _, body in moody.got + fine.got} == expected
        assert len({head["webhook-id"] for head, _ in moody.got + fine.got}) == 2 * count
        for receiver in (moody, fine):
            assert all(verify(receiver_key(SECRET, receiver.url), head, body) for head, body in receiver.got)
        leader.process.terminate()
        await leader.process.wait()
        log = (stack.directory / "orchestrator.log").read_text()
        assert "message_unsent" in log
        assert not [one for one in ("a-secret", SECRET) if one in log]
