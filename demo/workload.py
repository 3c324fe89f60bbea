"""The job: images go to S3, every consecutive pair becomes a task, and one more task joins the results."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.ports import Blobs

URL_TTL_S = 6 * 3600  # longer than any demo
FPS = 24
# Few segments are long enough to be interrupted; of many only some are, and they are small: two cores are enough.
LONG, SHORT = 144, 24  # frames
LONG_EVERY = 12
SIZE, SMALL = (960, 640), (480, 320)  # pixels; even, as the encoder demands
MANY = 24  # segments from which on


@dataclass(frozen=True, slots=True)
class Job:
    """What to submit: a list for `task_submit`, the joining task last."""

    tasks: list[dict[str, Any]]
    seconds: float  # the film's length

    @property
    def segments(self) -> int:
        return len(self.tasks) - 1


async def upload(blobs: Blobs, images: Sequence[Path]) -> list[str]:
    """Upload the images. Return a presigned URL for each, because a pod has no keys."""
    urls = []
    for path in images:
        key = f"inputs/{path.name}"
        kind = "jpeg" if path.suffix.lower() in {".jpg", ".jpeg"} else path.suffix.lower().lstrip(".")
        await blobs.put(key, path.read_bytes(), content_type=f"image/{kind}")
        urls.append(blobs.sign("GET", key, expires_s=URL_TTL_S))
    return urls


def plan_job(urls: Sequence[str], total: int | None) -> Job:
    """One segment per consecutive pair, or `total` tasks in all: then the journey goes round."""
    segments = len(urls) - 1 if total is None else total - 1
    few = segments < MANY
    lengths = [LONG if few or number % LONG_EVERY == 0 else SHORT for number in range(segments)]
    tasks: list[dict[str, Any]] = []
    for number, frames in enumerate(lengths):
        start, end = number % len(urls), (number + 1) % len(urls)
        params: Mapping[str, Any] = {
            "index": number,
            "start_url": urls[start],
            "end_url": urls[end],
            "frames": frames,
            "fps": FPS,
            "size": list(SIZE if few else SMALL),
        }
        tasks.append({"id": str(uuid.uuid4()), "task_type": "travel_segment", "params": params})
    order = [task["id"] for task in tasks]
    stitch = {"task_type": "travel_stitch", "params": {"order": order}, "depends_on": order}
    return Job([*tasks, stitch], sum(lengths) / FPS)
