"""How much a lesson learns from few images: heart taught to a model of six shapes by `learn` and its alternatives.

    python benchmarks/few_images.py --out runs/few

Trains the six shapes first, as `comastre demo` does, unless --model names such a model (one of an earlier version gets
its statistics by benchmarks/add_statistics.py). A lesson has the first images of a seed that show a heart, labelled for
it alone, and is told nothing else; its model is then scored on 800 other images that show all shapes, of which it may
know seven. Stopped, the same command goes on with the cells that are missing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

import comastre
from comastre.bundle import store
from comastre.config.settings import load_config
from comastre.data.dataset import Sample
from comastre.data.sets.shapes import drawn_once
from comastre.data.sources import parse_source
from comastre.evaluation.scoring import Options, score
from comastre.prediction.model import load
from comastre.training.run import run

NEW = "heart"
COUNTS = (5, 10, 20, 40, 80)
WAYS: Mapping[str, Mapping[str, Any]] = {
    "learn": {},
    "learn --unlabelled": {"unlabelled": True},
    "learn --instant": {"instant": True},
    "learn --no-instant": {"instant": False},
    "learn --guarantee exact": {"guarantee": "exact"},
    "learn --guarantee exact --own_queries.number 8": {
        "guarantee": "exact",
        "settings": {"comastre": {"own_queries": {"number": 8}}},
    },
    "learn --method finetune": {"settings": {"method": "finetune"}},
}
TEST_IMAGES, TEST_SEED = 800, 900
UNLABELLED_IMAGES, UNLABELLED_SEED = 60, 800
"""Other images of all shapes, by which `learn --unlabelled` compares its two models."""


def six_shapes(out: Path) -> Path:
    """The model of a first step that knows six shapes."""
    only_first = {"continual": {"setting": "6-4"}, "training": {"iterations_per_class": 1}}
    run(load_config("demo", only_first), out)
    return out / "steps" / "00"


def samples(count: int, seed: int, others: int = 0) -> list[Sample]:
    """The first images of a stream that show the new class, and some that do not."""
    stream = drawn_once("train", 64, 4000, seed)
    label = stream.class_names.index(NEW) + 1
    shown: dict[bool, list[Sample]] = {True: [], False: []}
    for index in range(len(stream)):
        shown[bool((stream[index].semantic == label).any())].append(stream[index])
        if len(shown[True]) >= count and len(shown[False]) >= others:
            break
    return [*shown[True][:count], *shown[False][:others]]


def write(folder: Path, images: Sequence[Sample], names: Sequence[str]) -> Path:
    """As a user's folder, labelled for these classes alone."""
    known = drawn_once("train", 64, 1, 0).class_names
    table = np.zeros(256, np.uint8)
    for place, name in enumerate(names, start=1):
        table[known.index(name) + 1] = place
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    for number, sample in enumerate(images):
        Image.fromarray(sample.image).save(folder / "images" / f"{number:04d}.png")
        Image.fromarray(table[sample.semantic]).save(folder / "masks" / f"{number:04d}.png")
    (folder / "classes.txt").write_text("".join(f"{name}\n" for name in names))
    return folder


def scores_of(model: Path, data: Path) -> Mapping[str, float | None]:
    """IoU in percent of every class that the data shows."""
    return score(load(model), parse_source(data), None, Options(batch_size=50)).result.per_class


def cell(model: Path, data: Path, test: Path, out: Path, options: Mapping[str, Any], before: float) -> dict[str, Any]:
    """One lesson, and what its model scores."""
    began = time.process_time()
    learned = comastre.learn(model, data, out=out, keep=0, say=lambda _: None, **options)
    seconds = time.process_time() - began
    found = scores_of(learned.path, test)
    old = [found[name] for name in learned.classes.names if name != NEW]
    after = float(np.mean([value for value in old if value is not None]))
    return {"new": found[NEW], "kept": 100 * after / before, "seconds": seconds, "chosen": learned.chosen}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for everything")
    parser.add_argument("--model", type=Path, help="a model of six shapes; by default it is trained")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="of the images to learn from")
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS)
    parser.add_argument("--others", type=int, default=0, help="images without a heart for each with one")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    model = given.model or six_shapes(given.out / "six")
    known = store.load(model).classes.names
    test = write(given.out / "test", _drawn("val", TEST_IMAGES, TEST_SEED), (*known, NEW))
    unlabelled = write(given.out / "unlabelled", _drawn("train", UNLABELLED_IMAGES, UNLABELLED_SEED), ()) / "images"
    file = given.out / "cells.json"
    done = json.loads(file.read_text()) if file.exists() else {}
    if "before" not in done:
        found = scores_of(model, test)
        done["before"] = float(np.mean([value for name in known if (value := found[name]) is not None]))
    before = done["before"]
    cells = [(way, count, seed) for seed in given.seeds for count in given.counts for way in given.ways]
    for way, count, seed in sorted(cells, key=_cost):
        others = given.others * count
        key, name = f"{way} | {count} | {others} | {seed}", f"{count}-{others}-{seed}"
        if key not in done:
            data = write(given.out / f"data-{name}", samples(count, 500 + seed, others), (NEW,))
            options = dict(WAYS[way])
            if "unlabelled" in options:
                options["unlabelled"] = unlabelled
            done[key] = cell(model, data, test, given.out / f"{way.replace(' ', '')}-{name}", options, before)
            file.write_text(json.dumps(done, indent=1))
        print(f"{key}: {done[key]}", flush=True)
    print(f"\nold classes before: {before:.1f}\n")
    print_table(done, given)


def _cost(cell: tuple[str, int, int]) -> tuple[int, int]:
    """The quick ones first: one look takes seconds."""
    way, count, seed = cell
    looks_only = WAYS[way].get("instant") or (WAYS[way].get("guarantee") and "settings" not in WAYS[way])
    return seed, 0 if looks_only else count


def _drawn(part: Literal["train", "val"], count: int, seed: int) -> list[Sample]:
    stream = drawn_once(part, 64, count, seed)
    return [stream[index] for index in range(count)]


def print_table(done: Mapping[str, Mapping[str, Any]], given: argparse.Namespace) -> None:
    """Means over the seeds, as the page has them."""
    print(f"| images of the class | {' | '.join(given.ways)} |\n|---|{'---|' * len(given.ways)}")
    for count in given.counts:
        cells = []
        for way in given.ways:
            found = [done[f"{way} | {count} | {given.others * count} | {seed}"] for seed in given.seeds]
            new, kept = (np.mean([each[name] or 0.0 for each in found]) for name in ("new", "kept"))
            cells.append(f"{new:.1f}, {kept:.0f} %")
        print(f"| {count} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
