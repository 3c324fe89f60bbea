"""Two handlers: `segment` travels from one picture to the next as a short video, `stitch` joins such videos into one.

Needs Pillow and imageio-ffmpeg. `task` is explained in docs/handlers.md.
"""

import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import imageio_ffmpeg
from PIL import Image, ImageOps

FETCH_TIMEOUT_S = 30.0  # without a byte of a picture arriving
ZOOM = 0.12  # how far the camera goes into each picture, as a part of its size
PAN = 0.5  # how far it drifts sideways while doing so: 1 is as far as the zoom leaves room for
PROGRESS_EVERY = 4  # frames


def segment(params: dict[str, Any], task: Any) -> dict[str, Any]:
    """A cross-fade from `start_url` to `end_url` with a slow zoom: `frames` of `size`, `fps` a second, as MP4."""
    frames, fps = int(params["frames"]), float(params["fps"])
    width, height = (side - side % 2 for side in map(int, params["size"]))  # H.264 wants even sides
    if frames < 1 or fps <= 0 or width < 2 or height < 2:  # noqa: PLR2004 two pixels
        raise ValueError(f"nothing to render: {frames} frames of {width}x{height} at {fps} a second")
    first = _picture(params["start_url"], task.dir / "start", width, height)
    last = _picture(params["end_url"], task.dir / "end", width, height)
    target = task.dir / "segment.mp4"
    with subprocess.Popen(_encoder(width, height, fps, target), stdin=subprocess.PIPE) as encoder:
        assert encoder.stdin is not None  # noqa: S101 for the type checker: it was asked for
        for number in range(frames):
            way = number / max(1, frames - 1)
            encoder.stdin.write(_between(first, last, way, width, height).tobytes())
            if number % PROGRESS_EVERY == 0:
                task.progress(number / frames, f"frame {number} of {frames}")
    if encoder.returncode:
        raise RuntimeError(f"ffmpeg could not encode the segment (status {encoder.returncode}), see the log")
    location = task.upload(target)
    print(f"{frames} frames, {target.stat().st_size} bytes")
    return {"output_location": location, "frames": frames, "seconds": frames / fps}


def stitch(params: dict[str, Any], task: Any) -> dict[str, Any]:
    """All segments this task depends on, in the order of `params["order"]` (task ids), joined without re-encoding."""
    given = {one.id: one for one in task.dependencies}
    ids = (params or {}).get("order") or list(given)
    if given and not set(ids) <= set(given):
        raise ValueError(f"the order names tasks that this one does not depend on: {sorted(set(ids) - set(given))}")
    segments: list[Path] = []
    for task_id in ids:
        if task_id in given and given[task_id].output_location:
            segments.append(given[task_id].download(task.dir / f"{len(segments):05d}.mp4"))
            task.progress(len(segments) / (len(ids) + 1), f"{len(segments)} of {len(ids)} segments")
    if not segments:
        raise ValueError("No valid segment videos found")
    plan = task.dir / "segments.txt"
    plan.write_text("".join(f"file '{path.name}'\n" for path in segments))  # names of our own: nothing to quote
    target = task.dir / "travel.mp4"
    subprocess.run(
        [
            *_ffmpeg(),
            "-f",
            "concat",
            "-safe",
            "1",
            "-i",
            str(plan),
            "-c",
            "copy",
            "-movflags",
            "+faststart",
            str(target),
        ],
        stdin=subprocess.DEVNULL,
        check=True,
    )
    return {"output_location": task.upload(target), "segments": len(segments)}


def _picture(url: str, path: Path, width: int, height: int) -> Image.Image:
    """A picture from http(s) or file, cut to the video's shape and a little larger, so that there is room to move."""
    with urllib.request.urlopen(url, timeout=FETCH_TIMEOUT_S) as source, path.open("wb") as target:
        while block := source.read(1 << 20):
            target.write(block)
    room = (round(width * (1 + ZOOM)), round(height * (1 + ZOOM)))
    with Image.open(path) as picture:
        return ImageOps.fit(ImageOps.exif_transpose(picture).convert("RGB"), room)


def _between(first: Image.Image, last: Image.Image, way: float, width: int, height: int) -> Image.Image:
    """One frame: `way` from 0 to 1 zooms into the first picture while the last one, zooming out, shows through."""
    eased = way * way * (3 - 2 * way)
    return Image.blend(_view(first, eased, width, height), _view(last, 1 - eased, width, height), eased)


def _view(picture: Image.Image, zoom: float, width: int, height: int) -> Image.Image:
    """The picture seen through a window that shrinks from all of it (zoom 0) to the video's own size (zoom 1)."""
    across, down = picture.width - (picture.width - width) * zoom, picture.height - (picture.height - height) * zoom
    left, top = (picture.width - across) * (0.5 + PAN * zoom / 2), (picture.height - down) / 2
    window = (left, top, left + across, top + down)
    return picture.resize((width, height), Image.Resampling.BILINEAR, box=window)


def _encoder(width: int, height: int, fps: float, target: Path) -> list[str]:
    """Raw frames in, H.264 in MP4 out; all segments have the same settings, so that they can be joined as they are."""
    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{fps:g}", "-i", "-"]
    h264 = ["-c:v", "libx264", "-preset", "ultrafast", "-threads", "1", "-pix_fmt", "yuv420p", "-crf", "23"]
    return [*_ffmpeg(), *raw, *h264, "-video_track_timescale", "90000", str(target)]


def _ffmpeg() -> list[str]:
    return [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-hide_banner", "-loglevel", "error"]
