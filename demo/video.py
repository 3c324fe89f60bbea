"""The video: fetched from S3, kept, and measured by decoding it."""

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path

import imageio_ffmpeg

from orchestrator.ports import Blobs

MEASURE_TIMEOUT_S = 60.0


class NotAVideo(Exception):
    """The object is missing, or not a video that can be decoded to its end."""


@dataclass(frozen=True, slots=True)
class Video:
    """The size and length of the decoded video."""

    path: Path
    seconds: float
    frames: int
    width: int
    height: int


async def fetch(blobs: Blobs, location: str, path: Path) -> Video:
    """Download the object at an `s3://` location and decode every frame."""
    key = blobs.key_of(location)
    if key is None:
        raise NotAVideo(f"{location} is not in this bucket")
    path.write_bytes(await blobs.get(key))
    return await measure(path)


async def measure(path: Path) -> Video:
    """Decode a video to its end, as ffprobe -count_frames would."""
    process = await asyncio.create_subprocess_exec(
        imageio_ffmpeg.get_ffmpeg_exe(), "-nostdin", "-hide_banner", "-xerror", "-i", str(path), "-f", "null", "-",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(MEASURE_TIMEOUT_S):
        _, said = await process.communicate()
    text = said.decode(errors="replace")
    duration = re.search(r"Duration: (\d+):(\d+):([\d.]+)", text)
    size = re.search(r"Video: .*?\b(\d{2,5})x(\d{2,5})\b", text)
    frames = re.findall(r"frame=\s*(\d+)", text)
    if process.returncode != 0 or not (duration and size and frames):
        raise NotAVideo(f"{path} cannot be decoded: {text.strip()[-300:]}")
    hours, minutes, seconds = duration.groups()
    return Video(
        path=path,
        seconds=int(hours) * 3600 + int(minutes) * 60 + float(seconds),
        frames=int(frames[-1]),
        width=int(size[1]),
        height=int(size[2]),
    )
