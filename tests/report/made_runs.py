"""Run directories made by hand: known numbers, no training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from comastre.config.conventions import CONVENTIONS
from comastre.config.run import RunConfig
from comastre.config.settings import write_config
from comastre.evaluation.recall import Recall
from comastre.evaluation.results import ClassErrors, Results, StepResult
from comastre.evaluation.scores import Miou

CLASSES = ("cat", "dog", "cow", "bus")
COLOURS = ((0, 0, 0), (220, 20, 60), (30, 144, 255), (34, 139, 34), (255, 165, 0))


def step_result(step: int, base: float, new: float | None, proposals: bool = True) -> StepResult:
    """After step 0 cat and dog are known, then one class more each; without `proposals` pixels are labelled at once."""
    learned = CLASSES[: 2 + step]
    ious = {name: base if name in CLASSES[:2] else new for name in learned}
    right = round(base / 10)
    errors = {name: ClassErrors(not_proposed=1, below_alpha=2, wrong_class=10 - right, right=right) for name in learned}
    confusion = np.full((step + 2, step + 2), 10) + np.eye(step + 2, dtype=int) * 60
    return StepResult(
        step=step,
        new_classes=learned if step == 0 else learned[-1:],
        images=100,
        conventions=dict.fromkeys(CONVENTIONS, Miou(base, new, base if new is None else (base + new) / 2)),
        per_class={"background": 90.0, **ious},
        recall=Recall(80.0 - step, 70.0 - 2 * step) if proposals else None,
        recall_per_class=dict.fromkeys(learned, Recall(80.0, 70.0)) if proposals else {},
        later_recall=Recall(40.0 + step, 20.0) if proposals and step < 2 else None,
        later_recall_per_class={name: Recall(41.0 + step, 20.0) for name in CLASSES[2 + step :]} if proposals else {},
        errors=errors if proposals else {},
        alpha=0.8 if proposals else None,
        task_confusion=tuple(tuple(row) for row in confusion.tolist()),
        seconds=1.0,
    )


def make_run(
    folder: Path,
    bases: Sequence[float] = (60.0, 50.0, 40.0),
    *,
    method: str = "comastre",
    dataset: str = "shapes",
    setting: str = "2-1",
    seed: int = 0,
    examples: bool = True,
    proposals: bool = True,
) -> Path:
    """A run that has finished as many steps as `bases` has scores; on classes learned later it scores 30."""
    folder.mkdir(parents=True)
    config = {
        "method": method,
        "seed": seed,
        "data": {"dataset": dataset},
        "continual": {"setting": setting},
        "model": {"size": "tiny"},
        "training": {"iterations": 100, "iterations_per_class": 20},
    }
    write_config(RunConfig.model_validate(config), folder / "config.yaml")
    steps = tuple(step_result(step, base, 30.0 if step else None, proposals) for step, base in enumerate(bases))
    if bases:
        results = Results(method, dataset, setting, "overlapped", seed, True, CLASSES, steps=steps)
        results.write(folder / "results.json")
    lines = [
        {"step": step, "iteration": iteration, "total": 9.0 / iteration + step, "mask_bce": 1.0, "learning_rate": 0.1}
        for step in range(max(1, len(bases)))
        for iteration in (range(10, 101, 10) if step == 0 else (10, 20))
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if examples and bases:
        make_examples(folder, len(bases))
    return folder


def make_joint(folder: Path, ious: Sequence[float] = (90.0, 80.0, 70.0, 60.0)) -> Path:
    """A joint run with these IoUs, and 95 on background."""
    make_run(folder, (75.0,), method="joint", setting="joint", examples=False)
    step = StepResult(
        step=0,
        new_classes=CLASSES,
        images=400,
        conventions=dict.fromkeys(CONVENTIONS, Miou(75.0, None, 75.0)),
        per_class={"background": 95.0, **dict(zip(CLASSES, ious, strict=True))},
        recall=Recall(85.0, 80.0),
    )
    Results("joint", "shapes", "joint", "overlapped", 0, True, CLASSES, steps=(step,)).write(folder / "results.json")
    return folder


def make_examples(run: Path, steps: int, count: int = 2) -> None:
    """Pictures of 40 x 30 px: the left half is a cat, which every step but the first takes for class `step` + 1."""
    parts = {"image": ".jpg", "truth": ".png"} | {f"step-{step:02d}": ".png" for step in range(steps)}
    for part, suffix in parts.items():
        (run / "examples" / part).mkdir(parents=True)
        for number in range(count):
            labels = np.zeros((30, 40), np.uint8)
            labels[:, :20] = 1 if part == "truth" else int(part[5:] or 0) + 1 if part.startswith("step") else 0
            if suffix == ".png":
                picture = Image.fromarray(labels)
                picture.putpalette([channel for colour in COLOURS for channel in colour])
            else:
                picture = Image.fromarray(np.full((30, 40, 3), 120, np.uint8))
            picture.save(run / "examples" / part / f"{number:02d}{suffix}")
    images = [{"name": f"image-{n}", "height": 30, "width": 40, "classes": ["cat"]} for n in range(count)]
    labels_of = [
        {"name": name, "colour": colour} for name, colour in zip(("background", *CLASSES), COLOURS, strict=True)
    ]
    index = {"version": 1, "images": images, "labels": labels_of}
    (run / "examples" / "index.json").write_text(json.dumps(index))
