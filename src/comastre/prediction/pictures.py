"""Pictures of predictions: label maps with a palette, and overlays that anybody can read on any image.

Colour alone tells nothing in an overlay: every segment has a number that the legend explains, and its outline has a
light and a dark edge, one of which stands out on any image. The colours are those of Okabe and Ito, which people with
any kind of colour blindness tell apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from comastre.class_table import Colour

Entry = tuple[str, int, float]
"""Name, label and score of a segment."""

OKABE_ITO: tuple[Colour, ...] = (
    (230, 159, 0),  # orange
    (86, 180, 233),  # sky blue
    (204, 121, 167),  # reddish purple
    (240, 228, 66),  # yellow
    (0, 158, 115),  # bluish green
    (213, 94, 0),  # vermilion
    (0, 114, 178),  # blue
)
_SMALLEST, _LARGEST = 640, 1280  # long side of the image in an overlay
_FILL = 0.3  # share of the colour inside a segment
_LINE = 5  # pixels of colour along the edge, inside
_DARK, _LIGHT = (20, 20, 20), (255, 255, 255)
_TEXT = 20
_ROW = 34
_MARGIN = 16
_WIDEST_NAME = 320


def label_picture(label_map: np.ndarray, colours: Sequence[Colour]) -> Image.Image:
    """A picture whose values are the labels (H, W), shown in the classes' colours."""
    if len(colours) > 256:  # a palette has no room for more
        return Image.fromarray(label_map.astype(np.uint16))
    picture = Image.fromarray(label_map.astype(np.uint8))
    picture.putpalette([channel for colour in colours for channel in colour])
    return picture


def draw_overlay(image: np.ndarray, segment_map: np.ndarray, entries: Sequence[Entry]) -> Image.Image:
    """The image (H, W, 3) with segments outlined and numbered (segment_map i + 1 is entries[i]) and a legend beside it.

    Small images are enlarged and large ones reduced, so that numbers and outlines have a readable size.
    """
    numbers = _resized_map(segment_map)
    height, width = numbers.shape
    enlarged = width > image.shape[1]
    resampling = Image.Resampling.NEAREST if enlarged else Image.Resampling.LANCZOS
    pixels = np.asarray(Image.fromarray(image).resize((width, height), resampling))
    colours = distinct_colours([label for _, label, _ in entries])
    picture = Image.fromarray(_painted(pixels, numbers, colours))
    draw = ImageDraw.Draw(picture)
    taken: list[tuple[float, float, float, float]] = []
    for number in range(1, len(entries) + 1):
        taken.append(_draw_number(draw, number, numbers == number, colours[number - 1], taken))
    return _beside(picture, _legend(entries, colours, height))


def distinct_colours(labels: Sequence[int]) -> list[Colour]:
    """A colour per label: the same in every image, unless another class of the image has it already."""
    chosen: dict[int, int] = {}
    for label in labels:
        if label in chosen:
            continue
        wanted = [(label - 1 + shift) % len(OKABE_ITO) for shift in range(len(OKABE_ITO))]
        free = [place for place in wanted if place not in chosen.values()]
        chosen[label] = (free or wanted)[0]
    return [OKABE_ITO[chosen[label]] for label in labels]


def _resized_map(segment_map: np.ndarray) -> np.ndarray:
    height, width = segment_map.shape
    longest = max(height, width)
    if longest < _SMALLEST:
        factor = -(-_SMALLEST // longest)  # whole, so that every pixel stays a square
        return segment_map.repeat(factor, axis=0).repeat(factor, axis=1)
    if longest <= _LARGEST:
        return segment_map
    size = max(1, round(width * _LARGEST / longest)), max(1, round(height * _LARGEST / longest))
    numbers = segment_map.astype(np.uint8 if segment_map.max() < 256 else np.int32)
    return np.asarray(Image.fromarray(numbers).resize(size, Image.Resampling.NEAREST))


def _painted(pixels: np.ndarray, numbers: np.ndarray, colours: Sequence[Colour]) -> np.ndarray:
    """Pixels with tinted segments and their outlines."""
    table = np.array([(0, 0, 0), *colours], dtype=np.float32)
    inside = numbers > 0
    painted = pixels.astype(np.float32)
    tint = table[numbers]
    painted[inside] = (1 - _FILL) * painted[inside] + _FILL * tint[inside]
    # Around each edge, from outside to inside: dark on what is no segment, then light, then the colour.
    edges = _edges(numbers)
    near = {radius: _grown(edges, radius) for radius in (1, 2, _LINE)}
    painted[near[_LINE] & inside] = tint[near[_LINE] & inside]
    painted[near[2] & ~inside] = _DARK
    painted[near[1] & inside] = _LIGHT
    return painted.round().astype(np.uint8)


def _edges(numbers: np.ndarray) -> np.ndarray:
    """(H, W) bool: pixels beside one of another segment, and pixels of segments at the picture's edge."""
    framed = np.pad(numbers, 1)
    middle = framed[1:-1, 1:-1]
    neighbours = (framed[:-2, 1:-1], framed[2:, 1:-1], framed[1:-1, :-2], framed[1:-1, 2:])
    return np.logical_or.reduce([middle != each for each in neighbours])


def _grown(mask: np.ndarray, radius: int) -> np.ndarray:
    """The mask with everything less than `radius` pixels from it."""
    for axes in ((0, 1), (1, 0)):  # a square is grown along one axis, then along the other
        along = mask.transpose(axes)
        grown = along.copy()
        for shift in range(1, min(radius, len(along))):
            grown[shift:] |= along[:-shift]
            grown[:-shift] |= along[shift:]
        mask = grown.transpose(axes)
    return mask


def _draw_number(
    draw: ImageDraw.ImageDraw,
    number: int,
    mask: np.ndarray,
    colour: Colour,
    taken: Sequence[tuple[float, float, float, float]],
) -> tuple[float, float, float, float]:
    """Write the number where the segment is widest, beside the places that others have taken; gives its place."""
    high, wide = mask.shape
    text, font = str(number), _font(_TEXT)
    half_width, half_height = font.getlength(text) / 2 + 7, _TEXT / 2 + 5
    x, y = _widest_place(mask)
    shifts = [(0, 0), *((dx, dy) for reach in (1, 2, 3) for dx in (0, reach, -reach) for dy in (0, reach, -reach))]
    places = []
    for dx, dy in shifts:
        middle_x = min(max(x + dx * 2 * half_width, half_width), max(wide - half_width, half_width))
        middle_y = min(max(y + dy * 2 * half_height, half_height), max(high - half_height, half_height))
        places.append((middle_x - half_width, middle_y - half_height, middle_x + half_width, middle_y + half_height))
    place = next((each for each in places if not any(_overlap(each, other) for other in taken)), places[0])
    draw.rounded_rectangle(place, radius=6, fill=_DARK, outline=colour, width=3)
    draw.text(((place[0] + place[2]) / 2, (place[1] + place[3]) / 2), text, fill=_LIGHT, font=font, anchor="mm")
    return place


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _widest_place(mask: np.ndarray) -> tuple[float, float]:
    """x and y of the pixel that is farthest from the mask's edge."""
    step = max(1, max(mask.shape) // 200)  # a coarse map is good enough, and quick
    coarse = mask[::step, ::step]
    if not coarse.any():
        coarse, step = mask, 1
    if not coarse.any():  # lost where a large image was reduced
        return mask.shape[1] / 2, mask.shape[0] / 2
    distances = _squared_distances(coarse)
    row, column = np.unravel_index(int(distances.argmax()), distances.shape)
    return (int(column) + 0.5) * step, (int(row) + 0.5) * step


def _squared_distances(mask: np.ndarray) -> np.ndarray:
    """(H, W): of every pixel to the nearest one outside the mask, or outside the picture.

    Importing scipy's transform takes longer than all that is drawn.
    """
    framed = np.pad(mask, 1)
    rows = np.arange(len(framed))[:, None]
    above = rows - np.maximum.accumulate(np.where(framed, 0, rows), axis=0)
    below = np.minimum.accumulate(np.where(framed, len(framed) - 1, rows)[::-1], axis=0)[::-1] - rows
    in_column = np.minimum(above, below)[1:-1] ** 2  # (H, W + 2); 0 left and right of the picture
    width = in_column.shape[1]
    nearest = in_column.copy()
    for shift in range(1, width):
        if shift * shift >= nearest.max():
            break
        by_column = in_column + shift * shift
        nearest[:, shift:] = np.minimum(nearest[:, shift:], by_column[:, :-shift])
        nearest[:, :-shift] = np.minimum(nearest[:, :-shift], by_column[:, shift:])
    return nearest[:, 1:-1]


# --- the legend ------------------------------------------------------------------------------------------------------


def _legend(entries: Sequence[Entry], colours: Sequence[Colour], height: int) -> Image.Image:
    """A panel of at least the height: number, class and score of every segment."""
    font = _font(_TEXT)
    names = [_shortened(name) for name, _, _ in entries]
    scores = [f"{score:.2f}" for _, _, score in entries]
    number_width = 30 + font.getlength("0" * (len(str(len(entries))) - 1))
    name_width = max((font.getlength(name) for name in names), default=0.0)
    score_width = font.getlength("0.00")
    title = "class, score" if entries else "nothing found"
    width = max(3 * _MARGIN + number_width + name_width + score_width + 12, 2 * _MARGIN + font.getlength(title))
    panel = Image.new("RGB", (round(width), max(height, 2 * _MARGIN + _ROW * (len(entries) + 1))), (255, 255, 255))
    draw = ImageDraw.Draw(panel)
    draw.text((_MARGIN, _MARGIN + _ROW / 2), title, fill=(90, 90, 90), font=font, anchor="lm")
    for row, (name, score, colour) in enumerate(zip(names, scores, colours, strict=True), start=1):
        top = _MARGIN + _ROW * row
        box = (_MARGIN, top + 3, _MARGIN + number_width, top + _ROW - 3)
        draw.rounded_rectangle(box, radius=6, fill=_DARK, outline=colour, width=4)
        middle = top + _ROW / 2
        draw.text(((box[0] + box[2]) / 2, middle), str(row), fill=_LIGHT, font=font, anchor="mm")
        draw.text((box[2] + 12, middle), name, fill=_DARK, font=font, anchor="lm")
        draw.text((round(width) - _MARGIN, middle), score, fill=_DARK, font=font, anchor="rm")
    return panel


def _beside(picture: Image.Image, panel: Image.Image) -> Image.Image:
    whole = Image.new("RGB", (picture.width + panel.width, max(picture.height, panel.height)), (255, 255, 255))
    whole.paste(picture, (0, 0))
    whole.paste(panel, (picture.width, 0))
    return whole


def _shortened(name: str) -> str:
    """A name on one line that fits the legend."""
    name, font = " ".join(name.split()), _font(_TEXT)
    if font.getlength(name) <= _WIDEST_NAME:
        return name
    while font.getlength(f"{name}…") > _WIDEST_NAME:
        name = name[:-1]
    return f"{name}…"


@lru_cache(maxsize=4)
def _font(size: int) -> ImageFont.FreeTypeFont:
    """The font that comes with matplotlib: the same on every machine, with more alphabets than PIL's own."""
    found = find_spec("matplotlib")  # importing it takes longer than drawing a picture
    assert found is not None and found.origin is not None
    return ImageFont.truetype(str(Path(found.origin).with_name("mpl-data") / "fonts/ttf/DejaVuSans.ttf"), size)
