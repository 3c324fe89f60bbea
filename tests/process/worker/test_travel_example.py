"""The example's handlers, on a real agent: pictures in, one playable video out."""

import subprocess
from pathlib import Path

import imageio_ffmpeg
import pytest
from PIL import Image

from tests.process.worker.scripted import Orchestrator, Pod

TRAVEL = Path(__file__).resolve().parents[3] / "examples" / "travel"
HANDLERS = {"travel_segment": "travel:segment", "travel_stitch": "travel:stitch"}
COLOURS = [(200, 40, 40), (40, 40, 200), (40, 160, 60)]


@pytest.fixture
def pod(orchestrator: Orchestrator, tmp_path: Path) -> Pod:
    return Pod(tmp_path / "pod", orchestrator, {"travel.py": (TRAVEL / "travel.py").read_text()})


def pictures(folder: Path) -> list[str]:
    """URLs of one plain picture per colour, of different shapes."""
    for number, colour in enumerate(COLOURS):
        Image.new("RGB", (400 + 50 * number, 300), colour).save(folder / f"{number}.png")
    return [(folder / f"{number}.png").as_uri() for number in range(len(COLOURS))]


def frames(video: Path, folder: Path) -> list[Image.Image]:
    """Every frame of the video, decoded."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(video), str(folder / "frame-%03d.png")]
    subprocess.run(command, check=True, timeout=30)
    return [Image.open(path) for path in sorted(folder.glob("frame-*.png"))]


def near(pixel: object, colour: tuple[int, int, int]) -> bool:
    assert isinstance(pixel, tuple)
    return all(abs(one - other) < 12 for one, other in zip(pixel, colour, strict=True))


def test_segments_are_rendered_and_stitched(orchestrator: Orchestrator, pod: Pod, tmp_path: Path) -> None:
    """Two segments and a stitch make one video of all frames, in the order asked for, fading from colour to colour."""
    urls = pictures(tmp_path)
    pod.start(HANDLERS)
    try:
        done = []
        for number in range(2):
            params = {
                "start_url": urls[number],
                "end_url": urls[number + 1],
                "frames": 12,
                "fps": 12,
                "size": [160, 91],
            }
            orchestrator.submit(f"segment-{number}", "travel_segment", params)
            done.append(orchestrator.completion(f"segment-{number}"))
        given = [
            {
                "id": one["p_task_id"],
                "task_type": "travel_segment",
                "output_location": one["p_output_location"],
                "result_data": one["p_result_data"],
            }
            for one in reversed(done)
        ]
        order = {"order": ["segment-0", "segment-1"]}
        orchestrator.submit("stitch", "travel_stitch", order, dependencies=given)
        assert orchestrator.completion("stitch")["p_result_data"]["segments"] == 2
    finally:
        pod.stop()
    video = tmp_path / "travel.mp4"
    video.write_bytes(orchestrator.objects["outputs/stitch/1/travel.mp4"])
    seen = frames(video, tmp_path)
    assert len(seen) == 24
    assert seen[0].size == (160, 90)
    for index, colour in ((0, COLOURS[0]), (11, COLOURS[1]), (12, COLOURS[1]), (23, COLOURS[2])):
        assert near(seen[index].convert("RGB").getpixel((80, 45)), colour)


def test_nothing_to_stitch(orchestrator: Orchestrator, pod: Pod) -> None:
    """Without segments the stitch fails, in the words that operators know."""
    pod.start(HANDLERS)
    orchestrator.submit("stitch", "travel_stitch", None)
    try:
        assert orchestrator.failure("stitch")["message"] == "ValueError: No valid segment videos found"
    finally:
        pod.stop()
