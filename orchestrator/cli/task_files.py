"""The files that a task has stored, and their download. Names come from pods: they never leave the target directory."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from orchestrator.cli.output import one_line
from orchestrator.errors import BAD_OUTPUT, NO_BUCKET, Failure
from orchestrator.outputs import ITS_TASKS, owner_of, recorded_object
from orchestrator.ports import NotFound, PortError
from worker.rules import name_problem

if TYPE_CHECKING:
    from orchestrator.ports import Blobs

LIST_BYTES = 256 << 20  # of a stored list of outputs
URL_S = 3_600
CHUNK_BYTES = 1 << 20
READ_S = 60.0  # without a byte


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One output: its name as the handler gave it, its location, its bytes if known."""

    name: str
    location: str
    size: int | None


async def files_of(task: Mapping[str, Any], blobs: "Blobs | None") -> list[StoredFile]:
    """Return the outputs of a task, from its result, a stored list, or its output_location. Raises Failure."""
    result = task.get("result_data")
    result = result if isinstance(result, Mapping) else {}
    rows = result.get("outputs")
    if isinstance(result.get("outputs_list"), str) and blobs is not None:
        rows = await _stored_list(blobs, result["outputs_list"], task)
    found = [one for one in map(_file, rows if isinstance(rows, list) else ()) if one]
    location = task.get("output_location")
    if location and location not in {one.location for one in found}:
        name = PurePosixPath(location.split("?")[0]).name or "output"
        found.insert(0, StoredFile(name, location, recorded_object(task).get("bytes")))
    return found


def target(directory: Path, name: str) -> Path:
    """Return where a file is written, below the directory. Raises Failure for a name that leads elsewhere."""
    name = name.replace("\\", "/")
    if why := name_problem(name):
        raise Failure(BAD_OUTPUT, why=f"the name {name[:100]!a} is not a path below a directory: {why}")
    path = directory.joinpath(*name.split("/"))
    if not path.resolve().is_relative_to(directory.resolve()):  # a symbolic link that was there before
        raise Failure(BAD_OUTPUT, why=f"{path} leads out of {directory}")
    return path


def url_of(blobs: "Blobs", one: StoredFile, task: Mapping[str, Any]) -> str:
    """Return an address that needs no credential for URL_S seconds.

    Raises Failure outside the bucket, and outside the folders of the task and its dependencies.
    """
    return blobs.sign("GET", _key(blobs, one.location, task), expires_s=URL_S)


async def download(url: str, one: StoredFile, path: Path, done: Callable[[int], None]) -> None:
    """Write the object to a temporary name, compare its size, and rename it. Raises Failure."""
    import httpx

    from orchestrator.adapters.http_client import client as client_for

    path.parent.mkdir(parents=True, exist_ok=True)
    part, written = path.with_name(f".{path.name}.part"), 0
    try:
        async with client_for(url, timeout=READ_S) as client, client.stream("GET", url) as reply:
            if reply.status_code != httpx.codes.OK:
                raise Failure(BAD_OUTPUT, why=f"the bucket answered {reply.status_code} for {one.location}")
            with part.open("wb") as file:
                async for chunk in reply.aiter_bytes(CHUNK_BYTES):
                    file.write(chunk)
                    written += len(chunk)
                    done(len(chunk))
        if one.size is not None and written != one.size:
            raise Failure(BAD_OUTPUT, why=f"{one.location} has {written} bytes; {one.size} were stored")
        part.replace(path)
    except httpx.HTTPError as error:
        raise Failure(NO_BUCKET, why=f"{one.location}: {type(error).__name__} {error}") from None
    except OSError as error:
        raise Failure(BAD_OUTPUT, what="the file cannot be written", why=str(error)) from None
    finally:
        part.unlink(missing_ok=True)


def _key(blobs: "Blobs", location: str, task: Mapping[str, Any]) -> str:
    key, place = blobs.key_of(location), one_line(location, 200)
    if key is None:
        why = f"{place} is not below S3_PREFIX in S3_BUCKET"
        raise Failure(BAD_OUTPUT, what="the output is not in the bucket", why=why)
    if owner_of(key, task) is None:
        why = f"{place} is not in the folder of {ITS_TASKS}"
        raise Failure(BAD_OUTPUT, what="the output is not this task's", why=why)
    return key


async def _stored_list(blobs: "Blobs", location: str, task: Mapping[str, Any]) -> list[Any]:
    key = _key(blobs, location, task)
    try:
        if await blobs.size(key) > LIST_BYTES:
            raise Failure(BAD_OUTPUT, why=f"the list {location[:200]} is above {LIST_BYTES} bytes")
        return [json.loads(line) for line in (await blobs.get(key)).splitlines() if line.strip()]
    except (NotFound, ValueError, RecursionError) as error:
        raise Failure(BAD_OUTPUT, why=f"the list {location}: {error}") from None
    except PortError as error:
        raise Failure(NO_BUCKET, why=f"{location}: {error}") from None


def _file(row: Any) -> StoredFile | None:
    if not isinstance(row, Mapping) or not isinstance(row.get("location"), str):
        return None
    name, size = row.get("name"), row.get("bytes")
    name = name if isinstance(name, str) and name else PurePosixPath(row["location"]).name
    return StoredFile(name, row["location"], size if isinstance(size, int) else None)
