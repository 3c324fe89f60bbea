"""A set of sample images, colourful enough to see the transitions between them."""

import colorsys
import random
from pathlib import Path

from PIL import Image, ImageDraw

SIZE = (480, 320)  # pixels; even, as the encoder demands
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp"})


def paint(directory: Path, count: int, seed: int) -> list[Path]:
    """Write `count` images, the same ones for the same seed."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(count):
        path = directory / f"{number:02d}.png"
        _picture(random.Random(f"{seed}-{number}"), number / count).save(path)
        paths.append(path)
    return paths


def found(directory: Path) -> list[Path]:
    """A person's own images, by name. ValueError unless there are at least two."""
    paths = sorted(path for path in directory.iterdir() if path.suffix.lower() in SUFFIXES)
    if len(paths) < 2:  # noqa: PLR2004  a journey has two ends
        wanted = ", ".join(sorted(SUFFIXES))
        raise ValueError(f"{directory} holds {len(paths)} images ({wanted}); a journey needs two")
    return paths


def _picture(rng: random.Random, hue: float) -> Image.Image:
    """A sky with a gradient, hills, and a sun."""
    width, height = SIZE
    image = Image.new("RGB", SIZE)
    draw = ImageDraw.Draw(image)
    for y in range(height):
        draw.line([(0, y), (width, y)], fill=_colour(hue + 0.15 * y / height, 0.55, 0.95 - 0.3 * y / height))
    radius = rng.randint(height // 10, height // 5)
    x, y = rng.randint(radius, width - radius), rng.randint(radius, height // 2)
    draw.ellipse([x - radius, y - radius, x + radius, y + radius], fill=_colour(hue + 0.5, 0.35, 1.0))
    for layer in range(3):
        base = height * (0.55 + 0.15 * layer)
        ridge = [(0, height)]
        steps = 8
        ridge += [(width * i // steps, int(base + rng.uniform(-0.12, 0.08) * height)) for i in range(steps + 1)]
        ridge.append((width, height))
        draw.polygon(ridge, fill=_colour(hue + 0.3 + 0.05 * layer, 0.6, 0.55 - 0.15 * layer))
    return image


def _colour(hue: float, saturation: float, value: float) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb(hue % 1, saturation, value)
    return int(red * 255), int(green * 255), int(blue * 255)
