"""The plan of a large upload: how many parts, of which size, and what they cost the pod's memory."""

import tracemalloc
from pathlib import Path

import pytest

from worker import content, protocol
from worker.content import Body, Piece, part_bytes
from worker.store import BLOCK_BYTES
from worker.uploads import Multipart, Part

HUNDRED_GB = 100_000_000_000


@pytest.mark.parametrize(
    ("size", "parts", "each"),
    [
        (HUNDRED_GB, 10_000, 10_000_000),
        (100 << 30, 10_000, 10_737_419),
        (2_000_000_000, 239, 8 << 20),
        ((8 << 20) + 1, 2, 8 << 20),
        (10_000 * (8 << 20), 10_000, 8 << 20),
        (10_000 * (8 << 20) + 1, 10_000, (8 << 20) + 1),
        (protocol.MAX_OBJECT_BYTES, 10_000, 549_755_814),
    ],
)
def test_parts_are_as_small_as_the_store_allows(size: int, parts: int, each: int) -> None:
    """8 MiB at least and 10,000 parts at most; a part is never larger than one write may be."""
    assert part_bytes(size) == each
    assert -(-size // each) == parts <= content.MAX_PARTS
    assert each <= protocol.MAX_UPLOAD_BYTES


def test_the_plan_for_100_gb_costs_a_few_megabytes(tmp_path: Path) -> None:
    """10,000 parts with their digests and the body that ends the upload; of the file, one block is in memory."""
    film = tmp_path / "film"
    film.touch()
    upload = Multipart("outputs/t/1/film", film, 0)
    each = part_bytes(HUNDRED_GB)
    tracemalloc.start()
    for number in range(10_000):
        part = Part(upload, number + 1, Piece(number * each, each, bytes(16), bytes(32)))
        part.etag = f'"{number:032x}"'
        upload.parts.append(part)
    body = upload.completion().encode()
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 16 << 20
    assert len(body) < 1 << 21  # S3 takes 2 MiB


def test_a_part_is_read_block_by_block(tmp_path: Path) -> None:
    """Whatever http.client asks for, and no byte of the next part."""
    film = tmp_path / "film"
    film.write_bytes(bytes(3 * BLOCK_BYTES))
    piece = Piece(BLOCK_BYTES // 2, 2 * BLOCK_BYTES, b"", b"")
    with film.open("rb") as file:
        body = Body(file, piece)
        assert [len(block) for block in iter(body.read, b"")] == [BLOCK_BYTES, BLOCK_BYTES]
        assert file.tell() == BLOCK_BYTES // 2 + 2 * BLOCK_BYTES
    assert piece.sent == 2 * BLOCK_BYTES
