"""One class added to a model of 15: what `learn` and its alternatives give it and leave of the others, on photographs.

    comastre train voc-15-5-cpu --data.root VOC --backbone.weights FILE --seed S --out runs/S   (its first step, S 0, 1)
    comastre train voc-15-5-cpu --method joint --data.root VOC --backbone.weights FILE --seed S --out runs/joint-S
    python benchmarks/add_a_class.py --voc VOC --models runs/0/steps/00 runs/1/steps/00 \\
        --joint runs/joint-0/steps/00 runs/joint-1/steps/00 --out runs/add

Rows are those of the table that a vendor of detectors published for boxes. Each lesson has the same few training images
that show its class, labelled for it alone, and every row that trains the same number of iterations; rows with old
images get labelled ones of the old classes beside them. Every lesson meets the gate of `learn`, with its defaults.
`learn` makes two models and hands over one of them: the trained one, where it is kept aside, is the row
`learn --no-instant`, which is trained again only where it is not. The row `joint` is what could be had: one model of
each seed that learned all 20 classes at once, from all training images; it is given, not trained here. Models are
scored on val.txt, where objects that nobody taught are background. Stopped, the same command goes on with the cells
that are missing; of `--part 1/2` and `--part 2/2`, in two processes, each takes half of them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import comastre
from comastre.config.run import DataConfig
from comastre.data.build import build_dataset
from comastre.data.dataset import SegmentationDataset as Dataset
from comastre.data.sources import parse_source
from comastre.evaluation.scoring import Options, score
from comastre.files import write_whole
from comastre.prediction.model import load
from comastre.training.environment import environment
from lesson_tables import BASE, CLASSES, IMAGES, MACHINE, PARTS, Key, read_cells

FEWER = {"pottedplant": (10, 20), "sheep": (10, 20)}
TRAINED, TEST = "learn --no-instant", "test-"
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
    joint: bool = False
    """Whether a given model that learned all classes at once is scored."""


ROWS = {
    "learn --instant": Row({"instant": True}, trains=False),
    "learn --guarantee exact": Row({"guarantee": "exact"}, trains=False),
    "learn --guarantee exact, 10 own queries": Row(
        {"guarantee": "exact", "settings": {"comastre": {"own_queries": {"number": 10}}}}
    ),
    "learn": Row(),
    TRAINED: Row({"instant": False}),
    "fine-tuning": Row(FINETUNE),
    "fine-tuning, classifier rebuilt": Row(FINETUNE, rebuilt=True),
    "fine-tuning, 100 old images": Row(FINETUNE, old_images=100),
    "fine-tuning, 300 old images": Row(FINETUNE, old_images=300),
    "joint": Row(trains=False, joint=True),
}


def cells(seeds: Sequence[int], rows: Sequence[str]) -> Iterator[Key]:
    """Those that take seconds first, then seed by seed and class by class, so that a stopped benchmark has whole
    lines; then fewer images, what `learn` may have given by then, and at the end what may still be in training."""
    quick = [row for row in rows if not ROWS[row].trains and not ROWS[row].joint]
    long = [row for row in rows if ROWS[row].trains and row != TRAINED]
    for some in (quick, long):
        for seed in seeds:
            yield from (Key(row, name, IMAGES, seed) for name in CLASSES for row in some)
    from_images = [row for row in rows if not ROWS[row].joint]
    for some in ([row for row in from_images if row != TRAINED], [row for row in from_images if row == TRAINED]):
        for seed in seeds:
            for name, counts in FEWER.items():
                yield from (Key(row, name, count, seed) for count in counts for row in some)
    for seed in seeds:
        yield from (Key(row, name, IMAGES, seed) for name in CLASSES for row in rows if row == TRAINED)
    for seed in seeds:
        yield from (Key(row, name, IMAGES, seed) for name in CLASSES for row in rows if ROWS[row].joint)


def folder_of(cell: Key) -> str:
    return "".join(each if each.isalnum() else "-" for each in str(cell))


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


def made_once(out: Path, make: Callable[[Path], object]) -> Path:
    """A folder that several processes may want: each makes its own, and the first to finish gives it its name."""
    if not out.exists():
        own = out.with_name(f"{out.name}-{os.getpid()}")
        make(own)
        try:
            own.rename(out)
        except OSError:  # another process was faster
            shutil.rmtree(own)
    return out


def rebuilt(model: Path, out: Path) -> None:
    """The model with a classifier of old classes that knows nothing."""
    anew = load(model)
    for classifier in anew.segmenter.class_decoder.classifiers:
        classifier.reset_parameters()
    anew.save(out)


def scores_of(model: Path, test: Path) -> dict[str, float]:
    """Of every class; what the same weights had before, they have again: rows may hand over one and the same model."""
    weights = hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()
    knows_it = test.name.removeprefix(TEST) in load(model).classes.names  # or it is background, as all others are
    file = test.parent / "scores" / f"{test.name if knows_it else TEST}-{weights[:32]}.json"
    if not file.exists():
        found = score(load(model), parse_source(test), None, Options(batch_size=4)).result.per_class
        file.parent.mkdir(exist_ok=True)
        write_whole(file, json.dumps({name: value for name, value in found.items() if value is not None}).encode())
    known: dict[str, float] = json.loads(file.read_text())
    return known


def mean_of(found: Mapping[str, float], names: Sequence[str]) -> float:
    return float(np.mean([found[name] for name in names if name in found]))


class Table:
    """The cells that are known, in a file that is written after each."""

    def __init__(self, out: Path, part: str) -> None:
        self.file = out / f"cells-{part.replace('/', '-of-')}.json"
        self.own: dict[str, Any] = read_cells([self.file] if self.file.exists() else [])
        found = environment(torch.device("cpu"), 1)
        self.own[MACHINE] = {name: found[name] for name in ("comastre", "torch", "device", "cores")}
        self.known = self.own

    def look(self) -> None:
        """What other processes know by now is known here, too."""
        self.known = read_cells(sorted(self.file.parent.glob("cells*.json"))) | self.own

    def add(self, key: str, found: Mapping[str, Any]) -> None:
        self.own[key] = self.known[key] = found
        write_whole(self.file, json.dumps(self.own, indent=1).encode())


def lesson(cell: Key, given: argparse.Namespace, training: Dataset, validation: Dataset, table: Table) -> None:
    """One cell: its data, its lesson and what the model scores."""
    row, model = ROWS[cell.row], given.models[cell.seed]
    old_names = load(model).classes.names
    ids = {name: place for place, name in enumerate(training.class_names, start=1)}
    old, new = [ids[name] for name in old_names], ids[cell.name]
    others = [place for name, place in ids.items() if name not in old_names and place != new]
    everything = dict.fromkeys(range(len(validation)), (*old, new))
    names = (*old_names, cell.name)
    test = made_once(given.out / f"{TEST}{cell.name}", lambda out: write(out, validation, everything, names))
    base = f"{BASE} | {cell.name} | {cell.seed}"
    if base not in table.known:
        found = scores_of(model, test)
        table.add(base, {"old": mean_of(found, old_names), "per_class": found})
    before = table.known[base]["old"]
    said: dict[str, Any]  # by learn
    began = time.process_time()
    if row.joint:
        grown, said = given.joint[cell.seed], {}
    else:
        chosen = images_of(training, new, others, cell.images, 1000 + cell.seed)
        labelled: dict[int, Sequence[int]] = dict.fromkeys(chosen, (new,))
        for place in old_images(training, old, row.old_images, 2000 + cell.seed):
            labelled.setdefault(place, old)
        taught = names if row.old_images else (cell.name,)
        data = write(given.out / "data" / folder_of(cell), training, labelled, taught)
        if row.rebuilt:
            model = made_once(given.out / f"rebuilt-{cell.seed}", lambda out: rebuilt(given.models[cell.seed], out))
        iterations = {"iterations": given.iterations} if row.trains and given.iterations else {}
        out = given.out / "models" / folder_of(cell)
        learned = comastre.learn(model, data, out=out, say=lambda _: None, **row.options, **iterations)
        grown = learned.path
        said = {"chosen": learned.chosen, "refused": learned.refused, "largest_change": learned.largest_change}
    seconds = time.process_time() - began

    def add(row: str, bundle: Path, seconds: float, **said: object) -> None:
        found = scores_of(bundle, test)
        after = mean_of(found, old_names)
        outcome = {"new": found.get(cell.name, 0.0), "old": after, "kept": 100 * after / before, "seconds": seconds}
        table.add(str(cell._replace(row=row)), {**outcome, **said, "per_class": found})

    add(cell.row, grown, seconds, **said)
    if cell.row == "learn" and learned.aside is not None:  # the same training, which the gate let pass
        add(TRAINED, learned.aside, 0.0, chosen="trained", refused=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--voc", type=Path, required=True, help="Pascal VOC, as --data.root")
    parser.add_argument("--models", type=Path, nargs="+", required=True, help="a model of 15 classes for each seed")
    parser.add_argument("--joint", type=Path, nargs="+", default=[], help="a model of all 20 classes for each seed")
    parser.add_argument("--out", type=Path, required=True, help="folder for everything")
    parser.add_argument("--iterations", type=int, help="of every lesson that trains; by default as learn chooses")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--part", default="1/1", help="as in 1/2: every second cell, from the first on")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    data = DataConfig(dataset="voc", root=str(given.voc))
    training, validation = build_dataset(data, "train"), build_dataset(data, "val")
    number, parts = map(int, given.part.split("/"))
    table = Table(given.out, given.part)
    wanted = [
        cell
        for cell in cells(range(len(given.models)), given.rows)
        if not ROWS[cell.row].joint or cell.seed < len(given.joint)
    ]
    for cell in wanted[number - 1 :: parts]:
        table.look()
        if str(cell) not in table.known:
            lesson(cell, given, training, validation, table)
        print(f"{cell}: { ({k: v for k, v in table.known[str(cell)].items() if k != 'per_class'}) }", flush=True)
    table.look()
    for part in PARTS.values():
        print(f"\n{part(table.known)}", end="")


if __name__ == "__main__":
    main()
