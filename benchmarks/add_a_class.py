"""One class added to a model of 15: what `learn` and its alternatives give it and leave of the others, on photographs.

    comastre train voc-15-5-cpu --data.root VOC --backbone.weights FILE --seed S --out runs/S   (its first step, S 0, 1)
    python benchmarks/add_a_class.py --voc VOC --models runs/0/steps/00 runs/1/steps/00 --weights FILE --out runs/add

Rows are those of the table that a vendor of detectors published for boxes. Each lesson has the same few training images
that show its class, labelled for it alone, and every row that trains the same number of iterations; rows with old
images get labelled ones of the old classes beside them. The row `joint` is what could be had: a model that learns the
old classes and the new one at once, from all images that are labelled for one of them, from the same start as the first
step and for as long as that step and a lesson together. It takes hours, comes last, and `--rows` can leave it out.
Models are scored on val.txt, where objects that nobody taught are background. Stopped, the same command goes on with
the cells that are missing; of `--part 1/2` and `--part 2/2`, in two processes, each takes half of them.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import comastre
from comastre.config.run import DataConfig, RunConfig
from comastre.config.run_files import step_bundle
from comastre.config.settings import load_config
from comastre.data.build import build_dataset
from comastre.data.dataset import SegmentationDataset as Dataset
from comastre.data.sources import parse_source
from comastre.evaluation.scoring import Options, score
from comastre.learning.images import HELD_OUT
from comastre.learning.plan import NameChoices, make_plan
from comastre.learning.schedule import choose, total_iterations
from comastre.learning.starting_model import open_model, run_settings
from comastre.prediction.model import load
from comastre.training.run import run

CLASSES = ("pottedplant", "sheep", "sofa", "train", "tvmonitor")
IMAGES = 40
FEWER = {"pottedplant": (10, 20), "sheep": (10, 20)}
FINETUNE = {"settings": {"method": "finetune"}}
FIRST_STEP = "voc-15-5-cpu"
"""What the models of 15 classes were trained with."""


@dataclass(frozen=True)
class Row:
    """One way to add a class."""

    options: Mapping[str, Any] = field(default_factory=dict)
    old_images: int = 0
    """Labelled images of old classes that are mixed in."""
    rebuilt: bool = False
    """Whether the classifier of the old classes begins anew, as libraries do that build a head for the new number."""
    trains: bool = True
    joint: bool = False
    """Whether all classes are learned at once, with no model before."""


ROWS = {
    "learn --instant": Row({"instant": True}, trains=False),
    "learn --guarantee exact": Row({"guarantee": "exact"}, trains=False),
    "learn": Row(),
    "fine-tuning": Row(FINETUNE),
    "fine-tuning, classifier rebuilt": Row(FINETUNE, rebuilt=True),
    "fine-tuning, 100 old images": Row(FINETUNE, old_images=100),
    "fine-tuning, 300 old images": Row(FINETUNE, old_images=300),
    "joint": Row(joint=True),
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
    """Those that take seconds first, then class by class, so that a stopped benchmark has whole lines; hours last."""
    for quick in (True, False):
        for seed in seeds:
            for name in CLASSES:
                for row in rows:
                    if ROWS[row].trains != quick and not ROWS[row].joint:
                        yield Cell(row, name, IMAGES, seed)
    for seed in seeds:
        for name, counts in FEWER.items():
            for count in counts:
                for row in rows:
                    if row.startswith("learn"):
                        yield Cell(row, name, count, seed)
    for seed in seeds:
        for name in CLASSES:
            for row in rows:
                if ROWS[row].joint:
                    yield Cell(row, name, IMAGES, seed)


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


def joint_config(data: Path, seed: int, weights: Path, iterations: int) -> RunConfig:
    """The first step of the models of 15 classes, with one class more and for longer."""
    fields = {
        "method": "joint",
        "seed": seed,
        "backbone": {"weights": str(weights)},
        "data": {"dataset": "folder", "root": str(data)},
        "continual": {"setting": "joint"},
        "training": {"iterations": iterations},
    }
    return load_config(FIRST_STEP, fields)


def iterations_of_lesson(model: Path, data: Path) -> int:
    """As many as `learn` chooses for the data."""
    starting = open_model(model)
    plan = make_plan(starting.known, data, None, None, NameChoices({}, (), ()), HELD_OUT)
    config = choose(run_settings(starting), plan.amounts, plan.lesson.source.settings(), {})
    return total_iterations(config, plan.amounts)


def train_joint(
    cell: Cell, given: argparse.Namespace, training: Dataset, labels: Sequence[int], names: Sequence[str], lesson: Path
) -> Path:
    """The model that learns `labels`, called `names`, at once; `lesson` is the data of the lesson beside it."""
    data, out = given.out / "data" / f"{cell.folder}-all", given.out / "models" / cell.folder
    if not (data / "classes.txt").exists():
        shown = [place for place, seen in enumerate(training.presence()) if seen & set(labels)]
        write(data, training, dict.fromkeys(shown, labels), names)
        # All images are for training; the run must score something, and the benchmark has its own images for it.
        listed = [f"{place:05d}\n" for place in shown]
        (data / "train.txt").write_text("".join(listed))
        (data / "val.txt").write_text("".join(listed[:2]))
    first = given.first_iterations or load_config(FIRST_STEP).training.iterations
    later = given.iterations or iterations_of_lesson(given.models[cell.seed], lesson)
    run(joint_config(data, cell.seed, given.weights, first + later), out)
    shutil.rmtree(data)  # hundreds of megabytes, and there is one for each cell
    return step_bundle(out, 0)


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
    if row.joint:
        grown, chosen_model = train_joint(cell, given, training, (*old, new), (*old_names, cell.name), data), "trained"
    else:
        out = given.out / "models" / cell.folder
        learned = comastre.learn(start, data, out=out, keep=0, say=lambda _: None, **row.options, **iterations)
        grown, chosen_model = learned.path, learned.chosen
    seconds = time.process_time() - began
    found = scores_of(grown, test)
    after = mean_of(found, old_names)
    outcome = {"new": found.get(cell.name, 0.0), "old": after, "kept": 100 * after / before["old"], "seconds": seconds}
    table.add(cell.key, {**outcome, "chosen": chosen_model, "per_class": found})


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


def print_classes(known: Mapping[str, Any], seeds: Sequence[int], rows: Sequence[str]) -> None:
    """Each lesson: new class IoU / what is kept of the old classes, means over seeds."""
    print(f"\n| training | {' | '.join(CLASSES)} |\n|---|{'---|' * len(CLASSES)}")
    for row in rows:
        for images in sorted({IMAGES, *(count for counts in FEWER.values() for count in counts)}):
            texts = []
            for name in CLASSES:
                keys = [Cell(row, name, images, seed).key for seed in seeds]
                found = [known[key] for key in keys if key in known]
                new, kept = (np.mean([each[what] for each in found] or [0.0]) for what in ("new", "kept"))
                texts.append(f"{new:.1f} / {kept:.0f} %" if found else "")
            if any(texts):
                print(f"| {row if images == IMAGES else f'{row}, {images} images'} | {' | '.join(texts)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--voc", type=Path, required=True, help="Pascal VOC, as --data.root")
    parser.add_argument("--models", type=Path, nargs="+", required=True, help="a model of 15 classes for each seed")
    parser.add_argument("--out", type=Path, required=True, help="folder for everything")
    parser.add_argument("--iterations", type=int, help="of every lesson that trains; by default as learn chooses")
    parser.add_argument("--weights", type=Path, help="of the backbone, as the first steps had them: for the row joint")
    parser.add_argument("--first-iterations", type=int, help=f"of the first step; by default those of {FIRST_STEP}")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--part", default="1/1", help="as in 1/2: every second cell, from the first on")
    given = parser.parse_args()
    if given.weights is None and any(ROWS[row].joint for row in given.rows):
        parser.error("the row joint needs --weights FILE, the backbone's: give it, or leave joint out with --rows")
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
    print_classes(table.known, seeds, given.rows)


if __name__ == "__main__":
    main()
