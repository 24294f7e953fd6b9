"""How Shapes looks: outlines of the classes, textured backgrounds, and objects with colour, shading and shadow.

Pixels must be the same on every machine, so arrays see only operations that IEEE 754 fixes (no vectorised sine, no
matrix product); sines are taken of single numbers and end up rounded to a quarter of a pixel.
"""

from __future__ import annotations

import colorsys
import math
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

Point = tuple[float, float]
Outline = tuple[tuple[Point, ...], ...]
"""An outer polygon and then its holes, in a square of -1..1 with y pointing down."""

SUPERSAMPLING = 4
TEXTURES = ("plain", "stripes", "checks", "dots")


def _circle(
    x: float, y: float, radius: float, first: float = 0.0, last: float = 360.0, corners: int = 40
) -> list[Point]:
    angles = [math.radians(first + (last - first) * corner / corners) for corner in range(corners + 1)]
    return [(x + radius * math.cos(angle), y + radius * math.sin(angle)) for angle in angles]


def _star(points: int, inner: float) -> list[Point]:
    radii = (1.0, inner)
    angles = [math.radians(180.0 * corner / points - 90.0) for corner in range(2 * points)]
    return [(radii[i % 2] * math.cos(a), 0.06 + radii[i % 2] * math.sin(a)) for i, a in enumerate(angles)]


def _cross(length: float, width: float) -> list[Point]:
    arm = [(-width, -length), (width, -length), (width, -width)]
    turned = [arm]
    for _ in range(3):
        turned.append([(-y, x) for x, y in turned[-1]])
    return [corner for corners in turned for corner in corners]


def _heart() -> list[Point]:
    angles = [math.radians(360.0 * corner / 48) for corner in range(48)]
    waves = [(math.cos(a), math.cos(2 * a), math.cos(3 * a), math.cos(4 * a), math.sin(a)) for a in angles]
    return [
        (0.94 * sine**3, -0.06 - (13.0 * one - 5.0 * two - 2.0 * three - four) / 16.5)
        for one, two, three, four, sine in waves
    ]


def _crescent() -> list[Point]:
    outer = _circle(0.12, 0.0, 0.98, 52.0, 308.0)
    tip_x, tip_y = outer[0]
    inner_x = 0.62  # the inner arc runs back through both tips
    radius = math.hypot(tip_x - inner_x, tip_y)
    half = math.degrees(math.atan2(tip_y, tip_x - inner_x))
    return outer + _circle(inner_x, 0.0, radius, 360.0 - half, half)


OUTLINES: dict[str, Outline] = {
    "disk": (tuple(_circle(0.0, 0.0, 0.9)),),
    "square": (((-0.78, -0.78), (0.78, -0.78), (0.78, 0.78), (-0.78, 0.78)),),
    "triangle": (((0.0, -0.95), (0.98, 0.78), (-0.98, 0.78)),),
    "star": (tuple(_star(5, 0.4)),),
    "ring": (tuple(_circle(0.0, 0.0, 0.95)), tuple(_circle(0.0, 0.0, 0.52))),
    "cross": (tuple(_cross(0.95, 0.32)),),
    "heart": (tuple(_heart()),),
    "crescent": (tuple(_crescent()),),
    "arrow": (((0.0, -1.0), (0.85, -0.1), (0.32, -0.1), (0.32, 0.95), (-0.32, 0.95), (-0.32, -0.1), (-0.85, -0.1)),),
    "bolt": (((0.1, -1.0), (-0.75, 0.22), (-0.12, 0.22), (-0.45, 1.0), (0.75, -0.32), (0.12, -0.32), (0.65, -1.0)),),
}


def _clover() -> list[Point]:
    angles = [math.radians(6.0 * corner) for corner in range(60)]
    radii = [0.62 + 0.36 * math.cos(3 * angle) for angle in angles]
    return [(radius * math.cos(angle), radius * math.sin(angle)) for radius, angle in zip(radii, angles, strict=True)]


OTHER_OUTLINES: dict[str, Outline] = {
    "half disk": (tuple(_circle(0.0, -0.4, 0.98, 0.0, 180.0)),),
    "frame": (
        ((-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)),
        ((-0.42, -0.42), (0.42, -0.42), (0.42, 0.42), (-0.42, 0.42)),
    ),
    "tee": (
        ((-0.9, -0.9), (0.9, -0.9), (0.9, -0.3), (0.3, -0.3), (0.3, 0.95), (-0.3, 0.95), (-0.3, -0.3), (-0.9, -0.3)),
    ),
    "drop": ((*_circle(0.0, 0.28, 0.68, -35.0, 215.0), (0.0, -1.0)),),
    "hourglass": (((-0.8, -0.95), (0.8, -0.95), (0.18, 0.0), (0.8, 0.95), (-0.8, 0.95), (-0.18, 0.0)),),
    "corner": (((-0.8, -0.95), (-0.2, -0.95), (-0.2, 0.35), (0.85, 0.35), (0.85, 0.95), (-0.8, 0.95)),),
    "slab": (((-0.45, -0.6), (1.0, -0.6), (0.45, 0.6), (-1.0, 0.6)),),
    "clover": (tuple(_clover()),),
}
"""Outlines that Shapes lacks, for a stage 1 that was trained on objects of other classes."""


@dataclass(frozen=True)
class Placed:
    """One object of a layout; lengths are shares of the image side."""

    label: int
    """Dataset id, 1-based."""
    x: float
    y: float
    diameter: float
    angle: float
    """Degrees."""
    aspect: float
    """Width over height, before rotation."""


def coverage(outline: Outline, placed: Placed, size: int) -> np.ndarray:
    """(size, size) uint8: how much of each pixel the object covers, 0..255."""
    side = size * SUPERSAMPLING
    cosine, sine = math.cos(math.radians(placed.angle)), math.sin(math.radians(placed.angle))
    width = 0.5 * placed.diameter * math.sqrt(placed.aspect)
    height = 0.5 * placed.diameter / math.sqrt(placed.aspect)
    canvas = Image.new("L", (side, side))
    draw = ImageDraw.Draw(canvas)
    for part, polygon in enumerate(outline):
        corners = [
            (
                round(side * (placed.x + cosine * x * width - sine * y * height)),
                round(side * (placed.y + sine * x * width + cosine * y * height)),
            )
            for x, y in polygon
        ]
        draw.polygon(corners, fill=0 if part else 255)
    return np.asarray(canvas.reduce(SUPERSAMPLING))


def random_colour(rng: np.random.Generator, saturation: tuple[float, float], value: tuple[float, float]) -> np.ndarray:
    """(3,) float32 in 0..255."""
    hue, s, v = rng.uniform(0.0, 1.0), rng.uniform(*saturation), rng.uniform(*value)
    return np.array([255.0 * channel for channel in colorsys.hsv_to_rgb(hue, s, v)], dtype=np.float32)


def _contrasting(rng: np.random.Generator, against: np.ndarray) -> np.ndarray:
    """Of a few colours the one farthest from `against`: objects must be seen, whatever their class."""
    candidates = [random_colour(rng, (0.35, 1.0), (0.35, 1.0)) for _ in range(4)]
    return max(candidates, key=lambda colour: float(((colour - against) ** 2).sum()))


def pattern(rng: np.random.Generator, kind: str, shape: tuple[int, ...], period: tuple[float, float]) -> np.ndarray:
    """`shape` (H, W) float32 in 0..1: a turned and shifted pattern that repeats after `period` pixels."""
    angle = math.radians(rng.uniform(0.0, 180.0))
    waves = 1.0 / rng.uniform(*period)  # per pixel
    cosine, sine = np.float32(waves * math.cos(angle)), np.float32(waves * math.sin(angle))
    shift = rng.uniform(0.0, 1.0, 2).astype(np.float32)
    y, x = np.arange(shape[0], dtype=np.float32)[:, None], np.arange(shape[1], dtype=np.float32)
    along = _triangle_wave((x * cosine + shift[0]) + y * sine)
    if kind == "stripes":
        return along
    across = _triangle_wave((y * cosine + shift[1]) - x * sine)
    if kind == "checks":
        return np.clip(0.5 + 8.0 * (along - 0.5) * (across - 0.5), 0.0, 1.0)
    return np.clip(3.0 * (along + across - 1.2), 0.0, 1.0)  # dots


def _triangle_wave(phase: np.ndarray) -> np.ndarray:
    return np.abs(2.0 * (phase - np.floor(phase)) - 1.0)


def background(rng: np.random.Generator, size: int) -> np.ndarray:
    """(size, size, 3) float32 in 0..255: clouds or a gradient, sometimes with a faint pattern."""
    base = random_colour(rng, (0.05, 0.55), (0.25, 0.9))
    cells = 2 if rng.uniform() < 0.35 else int(rng.integers(3, 7))  # two cells make a gradient
    light = rng.uniform(-30.0, 30.0, (cells, cells, 1)) + rng.uniform(-12.0, 12.0, (cells, cells, 3))
    coarse = np.clip(base + light, 0.0, 255.0).astype(np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC)).astype(np.float32)
    if rng.uniform() < 0.5:
        kind = TEXTURES[int(rng.integers(1, len(TEXTURES)))]
        strength = np.float32(rng.uniform(-24.0, 24.0))
        smooth += strength * (pattern(rng, kind, (size, size), (size / 12, size / 4))[..., None] - np.float32(0.5))
    return smooth


def paint(rng: np.random.Generator, canvas: np.ndarray, cover: np.ndarray) -> None:
    """Put one object of coverage `cover` (S, S) onto `canvas` (S, S, 3), in a random colour and texture."""
    size = len(cover)
    offset = max(1, size // 32)  # of the light, which comes from the upper left
    reach = offset + size // 40 + 1
    rows, columns = np.flatnonzero(cover.any(axis=1)), np.flatnonzero(cover.any(axis=0))
    vertical = slice(max(0, int(rows[0]) - reach), int(rows[-1]) + 1 + reach)
    horizontal = slice(max(0, int(columns[0]) - reach), int(columns[-1]) + 1 + reach)
    # A coarse mean is enough; rounded, because the order of summation differs between machines.
    main = _contrasting(rng, canvas[4::8, 4::8].mean(axis=(0, 1)).round())

    cover = cover[vertical, horizontal]  # (h, w)
    below = canvas[vertical, horizontal]  # (h, w, 3), a view
    share = cover.astype(np.float32) / np.float32(255.0)
    blurred = Image.fromarray(cover).filter(ImageFilter.BoxBlur(size / 40))
    soft = np.asarray(blurred).astype(np.float32) / np.float32(255.0)
    shifted = np.zeros_like(soft)
    shifted[offset:, offset:] = soft[:-offset, :-offset]
    below *= (np.float32(1.0) - np.float32(0.4) * shifted)[..., None]  # the shadow

    colour = main
    kind = TEXTURES[int(rng.integers(len(TEXTURES)))]
    if kind != "plain":
        second = np.clip(main + np.float32(rng.choice((-1.0, 1.0)) * rng.uniform(12.0, 36.0)), 0.0, 255.0)
        colour = main + (second - main) * pattern(rng, kind, share.shape, (size / 12, size / 6))[..., None]
    # The blurred coverage falls off at the edges: its slope along the light makes the object look rounded.
    height, width = share.shape
    fall = np.arange(height, dtype=np.float32)[:, None] / height + np.arange(width, dtype=np.float32) / width
    shade = np.float32(1.14) - np.float32(0.11) * fall + np.float32(0.55) * (soft - shifted)
    below += share[..., None] * (colour * shade[..., None] - below)
