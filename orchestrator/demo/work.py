"""The job: images go to S3, and every consecutive pair becomes a task; one more joins what they make."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.ports import Blobs

URL_TTL_S = 6 * 3600  # longer than any demo
FPS = 24
# Frames in the whole film: few segments are made long enough to be interrupted, many short enough for two cores.
FRAMES = 1200
FRAMES_PER_SEGMENT = (8, 96)
SIZE, SMALL = (640, 432), (240, 160)  # pixels; even, as the encoder demands
MANY = 24  # segments from which on the frames are SMALL


@dataclass(frozen=True, slots=True)
class Job:
    """What to submit: a list for `task_submit`, the joining task last."""

    tasks: list[dict[str, Any]]
    seconds: float  # the film's length

    @property
    def segments(self) -> int:
        return len(self.tasks) - 1


async def upload(blobs: Blobs, images: Sequence[Path]) -> list[str]:
    """Put the images in the bucket; a presigned URL for each, as a pod has no keys."""
    urls = []
    for path in images:
        key = f"inputs/{path.name}"
        kind = "jpeg" if path.suffix.lower() in {".jpg", ".jpeg"} else path.suffix.lower().lstrip(".")
        await blobs.put(key, path.read_bytes(), content_type=f"image/{kind}")
        urls.append(blobs.sign_get(key, expires_s=URL_TTL_S))
    return urls


def plan_job(urls: Sequence[str], total: int | None, seed: int) -> Job:
    """One segment per consecutive pair, or `total` tasks in all: then the journey goes round, differently each time."""
    segments = len(urls) - 1 if total is None else total - 1
    low, high = FRAMES_PER_SEGMENT
    frames = max(low, min(high, FRAMES // segments))
    width, height = SIZE if segments < MANY else SMALL
    tasks: list[dict[str, Any]] = []
    for number in range(segments):
        start, end = number % len(urls), (number + 1) % len(urls)
        params: Mapping[str, Any] = {
            "index": number,
            "start": urls[start],
            "end": urls[end],
            "frames": frames,
            "fps": FPS,
            "width": width,
            "height": height,
            "seed": seed + number // len(urls),
        }
        tasks.append({"task_type": "travel_segment", "params": params})
    stitch = {"task_type": "travel_stitch", "params": {"fps": FPS}, "depends_on": [f"#{i}" for i in range(segments)]}
    return Job([*tasks, stitch], segments * frames / FPS)
