"""One class added to a model of 15: what `learn` and its alternatives give it and leave of the others, on photographs.

    comastre train voc-15-5-cpu --data.root VOC --backbone.weights FILE --seed S --out runs/S   (its first step, S 0, 1)
    python benchmarks/add_a_class.py --voc VOC --models runs/0/steps/00 runs/1/steps/00 --out runs/add

Rows are those of the table that a vendor of detectors published for boxes. Each lesson has the same few training images
that show its class, labelled for it alone, and every row that trains the same number of iterations; rows with old
images get labelled ones of the old classes beside them. Models are scored on val.txt, where objects that nobody taught
are background. Stopped, the same command goes on with the cells that are missing; of `--part 1/2` and `--part 2/2`, in
two processes, each takes half of them.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import comastre
from comastre.config.run import DataConfig
from comastre.data.build import build_dataset
from comastre.data.dataset import SegmentationDataset as Dataset
from comastre.data.sources import parse_source
from comastre.evaluation.scoring import Options, score
from comastre.prediction.model import load

CLASSES = ("pottedplant", "sheep", "sofa", "train", "tvmonitor")
IMAGES = 40
FEWER = {"pottedplant": (10, 20), "sheep": (10, 20)}
FINETUNE = {"settings": {"method": "finetune"}}


@dataclass(frozen=True)
class Row:
    """One way to add a class."""

    options: Mapping[str, Any] = field(default_factory=dict)
    old_images: int = 0
    """Labelled images of old classes that are mixed in."""
    rebuilt: bool = False
    """Whether the classifier of the old classes begins anew, as libraries do that build a head for the new number."""
    trains: bool = True


ROWS = {
    "learn --instant": Row({"instant": True}, trains=False),
    "learn --guarantee exact": Row({"guarantee": "exact"}, trains=False),
    "learn": Row(),
    "fine-tuning": Row(FINETUNE),
    "fine-tuning, classifier rebuilt": Row(FINETUNE, rebuilt=True),
    "fine-tuning, 100 old images": Row(FINETUNE, old_images=100),
    "fine-tuning, 300 old images": Row(FINETUNE, old_images=300),
}


@dataclass(frozen=True)
class Cell:
    row: str
    name: str
    images: int
    seed: int

    @property
    def key(self) -> str:
        return f"{self.row} | {self.name} | {self.images} | {self.seed}"

    @property
    def folder(self) -> str:
        return "".join(each if each.isalnum() else "-" for each in self.key)


def cells(seeds: Sequence[int], rows: Sequence[str]) -> Iterator[Cell]:
    """Those that take seconds first, then class by class, so that a stopped benchmark has whole lines."""
    for quick in (True, False):
        for seed in seeds:
            for name in CLASSES:
                for row in rows:
                    if ROWS[row].trains != quick:
                        yield Cell(row, name, IMAGES, seed)
    for seed in seeds:
        for name, counts in FEWER.items():
            for count in counts:
                for row in rows:
                    if row.startswith("learn"):
                        yield Cell(row, name, count, seed)


def images_of(dataset: Dataset, shows: int, never: Sequence[int], count: int, seed: int) -> list[int]:
    """Training images drawn by the seed that show a class and none of others; fewer are the first of more."""
    fit = [place for place, seen in enumerate(dataset.presence()) if shows in seen and not seen & set(never)]
    random.Random(seed).shuffle(fit)
    return fit[:count]


def old_images(dataset: Dataset, old: Sequence[int], count: int, seed: int) -> list[int]:
    """Images that show old classes and nothing else."""
    fit = [place for place, seen in enumerate(dataset.presence()) if seen and seen <= set(old)]
    random.Random(seed).shuffle(fit)
    return fit[:count]


def write(folder: Path, dataset: Dataset, labelled: Mapping[int, Sequence[int]], names: Sequence[str]) -> Path:
    """A user's folder: images by place, each with the ids that are labelled in it; classes are counted by `names`."""
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    for place, ids in labelled.items():
        sample = dataset[place]
        table = np.zeros(256, np.uint8)
        table[255] = 255
        for label in ids:
            table[label] = 1 + names.index(dataset.class_names[label - 1])
        Image.fromarray(sample.image).save(folder / "images" / f"{place:05d}.png")
        Image.fromarray(table[sample.semantic.astype(np.uint8)]).save(folder / "masks" / f"{place:05d}.png")
    (folder / "classes.txt").write_text("".join(f"{name}\n" for name in names))
    return folder


def rebuilt(model: Path, out: Path) -> Path:
    """The model with a classifier of old classes that knows nothing."""
    if not out.exists():
        anew = load(model)
        for classifier in anew.segmenter.class_decoder.classifiers:
            classifier.reset_parameters()
        anew.save(out)
    return out


def scores_of(model: Path, test: Path) -> dict[str, float]:
    found = score(load(model), parse_source(test), None, Options(batch_size=4)).result.per_class
    return {name: value for name, value in found.items() if value is not None}


def mean_of(found: Mapping[str, float], names: Sequence[str]) -> float:
    return float(np.mean([found[name] for name in names if name in found]))


class Table:
    """The cells that are known, in a file that is written after each."""

    def __init__(self, out: Path, part: str) -> None:
        self.files = sorted(out.glob("cells*.json"))
        self.file = out / f"cells-{part.replace('/', '-of-')}.json"
        self.own: dict[str, Any] = json.loads(self.file.read_text()) if self.file.exists() else {}
        self.known: dict[str, Any] = {}
        for file in self.files:
            self.known |= json.loads(file.read_text())

    def add(self, key: str, found: Mapping[str, Any]) -> None:
        self.own[key] = self.known[key] = found
        self.file.write_text(json.dumps(self.own, indent=1))


def lesson(cell: Cell, given: argparse.Namespace, training: Dataset, validation: Dataset, table: Table) -> None:
    """One cell: its data, its lesson and what the model scores."""
    row, model = ROWS[cell.row], given.models[cell.seed]
    old_names = load(model).classes.names
    ids = {name: place for place, name in enumerate(training.class_names, start=1)}
    old, new = [ids[name] for name in old_names], ids[cell.name]
    others = [place for name, place in ids.items() if name not in old_names and place != new]
    test = given.out / f"test-{cell.name}"
    if not (test / "classes.txt").exists():
        everything = dict.fromkeys(range(len(validation)), (*old, new))
        write(test, validation, everything, (*old_names, cell.name))
    before = table.known.get(f"base | {cell.name} | {cell.seed}")
    if before is None:
        found = scores_of(model, test)
        before = {"old": mean_of(found, old_names), "per_class": found}
        table.add(f"base | {cell.name} | {cell.seed}", before)
    chosen = images_of(training, new, others, cell.images, 1000 + cell.seed)
    labelled: dict[int, Sequence[int]] = dict.fromkeys(chosen, (new,))
    for place in old_images(training, old, row.old_images, 2000 + cell.seed):
        labelled.setdefault(place, old)
    names = (*old_names, cell.name) if row.old_images else (cell.name,)
    data = write(given.out / "data" / cell.folder, training, labelled, names)
    start = rebuilt(model, given.out / f"rebuilt-{cell.seed}") if row.rebuilt else model
    iterations = {"iterations": given.iterations} if row.trains and given.iterations else {}
    began = time.process_time()
    learned = comastre.learn(
        start, data, out=given.out / "models" / cell.folder, keep=0, say=lambda _: None, **row.options, **iterations
    )
    seconds = time.process_time() - began
    found = scores_of(learned.path, test)
    after = mean_of(found, old_names)
    outcome = {"new": found.get(cell.name, 0.0), "old": after, "kept": 100 * after / before["old"], "seconds": seconds}
    table.add(cell.key, {**outcome, "chosen": learned.chosen, "per_class": found})


def print_table(known: Mapping[str, Any], seeds: Sequence[int], rows: Sequence[str]) -> None:
    """Means over classes and seeds, and the lesson that kept least."""
    base = [value["old"] for key, value in known.items() if key.startswith("base")]
    print(
        "\n| training | lessons | new class IoU | old classes mIoU | kept | worst lesson |\n|---|---|---|---|---|---|"
    )
    print(f"| base model | | - | {np.mean(base):.1f} | 100 % | |" if base else "| base model | | | | | |")
    for row in rows:
        for images in sorted({IMAGES, *(count for counts in FEWER.values() for count in counts)}):
            wanted = [Cell(row, name, images, seed).key for name in CLASSES for seed in seeds]
            found = [known[key] for key in wanted if key in known]
            if found:
                new, old, kept = (np.mean([each[name] for each in found]) for name in ("new", "old", "kept"))
                worst = min(each["kept"] for each in found)
                title = row if images == IMAGES else f"{row}, {images} images"
                print(f"| {title} | {len(found)} | {new:.1f} | {old:.1f} | {kept:.0f} % | {worst:.0f} % |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--voc", type=Path, required=True, help="Pascal VOC, as --data.root")
    parser.add_argument("--models", type=Path, nargs="+", required=True, help="a model of 15 classes for each seed")
    parser.add_argument("--out", type=Path, required=True, help="folder for everything")
    parser.add_argument("--iterations", type=int, help="of every lesson that trains; by default as learn chooses")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--part", default="1/1", help="as in 1/2: every second cell, from the first on")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    data = DataConfig(dataset="voc", root=str(given.voc))
    training, validation = build_dataset(data, "train"), build_dataset(data, "val")
    number, parts = map(int, given.part.split("/"))
    table, seeds = Table(given.out, given.part), range(len(given.models))
    for cell in list(cells(seeds, given.rows))[number - 1 :: parts]:
        if cell.key not in table.known:
            lesson(cell, given, training, validation, table)
        print(f"{cell.key}: { ({k: v for k, v in table.known[cell.key].items() if k != 'per_class'}) }", flush=True)
    print_table(table.known, seeds, given.rows)


if __name__ == "__main__":
    main()
