"""The uploaded pictures: received within bounds, stored under random names, deleted after a day."""

import asyncio
import re
import shutil
import time
import uuid
from pathlib import Path

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

MAX_PICTURES = 8
MAX_PICTURE_BYTES = 12 << 20
MAX_UPLOAD_BYTES = 60 << 20
UPLOAD_S = 120.0  # for one upload to arrive
UPLOADS = 16  # at a time; slow ones hold their places for UPLOAD_S
STORE_BYTES = 2 << 30
KEPT_S = 24 * 3600.0  # the pods have fetched it long before
KINDS = {"jpg": (b"\xff\xd8\xff", "image/jpeg"), "png": (b"\x89PNG\r\n\x1a\n", "image/png")}
NAME = re.compile(r"[0-9a-f]{32}\.(jpg|png)")


class Refused(Exception):
    """The request is refused; `text` is for the visitor."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class Pictures:
    """A directory of pictures, and the address under which the app shows them."""

    def __init__(self, directory: Path, public_url: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory, self._url = directory, public_url.rstrip("/")
        self._places = asyncio.Semaphore(UPLOADS)

    async def receive(self, request: Request) -> list[str]:
        """Store the pictures of a form and return their addresses. Raises Refused."""
        try:
            form = _bounded(request).form(max_files=MAX_PICTURES, max_fields=0)
            async with asyncio.timeout(UPLOAD_S), self._places, form as fields:
                return await self._stored([one for one in fields.getlist("pictures") if isinstance(one, UploadFile)])
        except HTTPException as error:  # the form cannot be read, or has too many files
            raise Refused(400, f"The upload cannot be read. Please choose 2 to {MAX_PICTURES} pictures.") from error
        except TimeoutError:
            raise Refused(408, "The pictures did not arrive in time.") from None

    def find(self, name: str) -> tuple[Path, str]:
        """The file of a picture and its media type. Raises Refused."""
        path = self._directory / name
        if not NAME.fullmatch(name) or not path.is_file():
            raise Refused(404, "There is no such picture.")
        return path, KINDS[path.suffix[1:]][1]

    async def _stored(self, files: list[UploadFile]) -> list[str]:
        if len(files) < 2:  # noqa: PLR2004 a journey has two ends
            raise Refused(422, "Please choose at least two pictures.")
        kinds = [await _kind(file) for file in files]
        self._make_room(sum(file.size or 0 for file in files))
        return [await asyncio.to_thread(self._store, *pair) for pair in zip(files, kinds, strict=True)]

    def _store(self, file: UploadFile, kind: str) -> str:
        name = f"{uuid.uuid4().hex}.{kind}"  # nothing of the visitor's file name
        with (self._directory / name).open("wb") as target:
            shutil.copyfileobj(file.file, target)
        return f"{self._url}/pictures/{name}"

    def _make_room(self, wanted_bytes: int) -> None:
        """Delete old pictures. Raises Refused if there is no room then."""
        used_bytes = 0
        for path in self._directory.iterdir():
            if time.time() - path.stat().st_mtime > KEPT_S:
                path.unlink()
            else:
                used_bytes += path.stat().st_size
        if used_bytes + wanted_bytes > STORE_BYTES:
            raise Refused(503, "There is no room for more pictures today. Please come back tomorrow.")


def _bounded(request: Request) -> Request:
    """The request, whose body ends with Refused when it is too large, whatever length it declares."""
    left = MAX_UPLOAD_BYTES

    async def receive() -> Message:
        nonlocal left
        message = await request.receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise Refused(413, f"The pictures are too large: at most {MAX_UPLOAD_BYTES >> 20} MB together.")
        return message

    return Request(request.scope, receive)


async def _kind(file: UploadFile) -> str:
    """Return jpg or png, by the first bytes: neither the name nor the declared type is trusted. Raises Refused."""
    if (file.size or 0) > MAX_PICTURE_BYTES:
        raise Refused(413, f"A picture is too large: at most {MAX_PICTURE_BYTES >> 20} MB each.")
    start = await file.read(16)
    await file.seek(0)
    for kind, (magic, _) in KINDS.items():
        if start.startswith(magic):
            return kind
    raise Refused(415, "Please choose JPEG or PNG pictures.")
