"""`comastre predict`: label maps of image files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from comastre.api import Prediction, load
from comastre.class_table import Colour
from comastre.errors import UserError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp")


def predict_files(model_name: str, sources: Sequence[Path], out: Path, *, device: str = "cpu") -> list[Path]:
    """Write a label map and a list of segments per image to the folder `out`; gives the label maps' paths."""
    images = find_images(sources)
    model = load(model_name).to(device)
    stems = Counter(image.stem for image in images)
    names = [image.stem if stems[image.stem] == 1 else image.name.replace(".", "-") for image in images]
    clash = [name for name, times in Counter(names).items() if times > 1]
    if clash:
        raise UserError(
            f"two of the images are called {clash[0]}, so one result would replace the other: run them apart"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        return [
            write_prediction(model.predict(image), model.colours, image, out / name)
            for image, name in zip(images, names, strict=True)
        ]
    except OSError as error:
        raise UserError(f"results cannot be written to {out}: {error}") from error


def find_images(sources: Sequence[Path]) -> list[Path]:
    """The image files among `sources` and directly inside those that are folders, sorted within a folder."""
    found: list[Path] = []
    for source in sources:
        if source.is_dir():
            inside = sorted(file for file in source.iterdir() if file.suffix.lower() in SUFFIXES)
            if not inside:
                raise UserError(f"the folder {source} holds no images ({', '.join(SUFFIXES)})")
            found += inside
        elif source.is_file():
            found.append(source)
        else:
            raise UserError(f"there is no image or folder {source}: check the name")
    if not found:
        raise UserError("no images given: name image files or folders after the model")
    return list(dict.fromkeys(found))


def write_prediction(prediction: Prediction, colours: Sequence[Colour], image: Path, target: Path) -> Path:
    """Write `target`.png, whose values are labels, and `target`.json with the segments."""
    labels = prediction.label_map
    if len(colours) <= 256:
        picture = Image.fromarray(labels.astype(np.uint8))
        picture.putpalette([channel for colour in colours for channel in colour])
    else:  # a palette has no room for more
        picture = Image.fromarray(labels.astype(np.uint16))
    map_file = target.with_name(f"{target.name}.png")
    picture.save(map_file)
    segments = [
        {"class": prediction.classes.names[each.class_index], "score": each.score, "pixels": each.area}
        for each in prediction.segments
    ]
    present = {int(label): prediction.class_names[label] for label in np.unique(labels)}
    content = {"image": image.name, "labels": present, "segments": segments}
    target.with_name(f"{target.name}.json").write_text(
        json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8"
    )
    return map_file
