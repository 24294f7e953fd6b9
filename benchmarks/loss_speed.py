"""What learning without forgetting costs: a t = 2 step with all distillation beside the same step at t = 1.

    python benchmarks/loss_speed.py

Both steps see the same images and masks and run in turn in one process, so that whatever else the machine does falls
on both; times are medians. The parts are timed inside the t = 2 step, where they run.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

from comastre.data.targets import Targets
from comastre.losses.points import PointSource
from comastre.methods.comastre import objective, step
from comastre.methods.comastre.config import LossConfig, ModelConfig
from comastre.methods.comastre.objective import compute_terms
from comastre.methods.comastre.segmenter import Segmenter, build_segmenter
from comastre.methods.comastre.step import StepInputs
from comastre.methods.comastre.terms import total_loss

LIMIT = 1.6  # t = 2 over t = 1
MASKS_PER_IMAGE = 3


@dataclass(frozen=True)
class Case:
    """A model at a size of images."""

    name: str
    model: ModelConfig
    losses: LossConfig
    side: int
    batch: int


def cases() -> list[Case]:
    def r50(num_queries: int) -> ModelConfig:
        return ModelConfig.model_validate(
            {"size": "r50", "backbone": {"weights": "none"}, "mask_decoder": {"num_queries": num_queries}}
        )

    few_points = LossConfig.model_validate(
        {"matching": {"points": 1024, "objectness_cost": 2.0}, "masks": {"points": 1024}}
    )
    return [
        Case("tiny, N 16", ModelConfig(size="tiny"), few_points, 64, 16),
        Case("r50, N 20", r50(20), LossConfig(), 256, 2),
        Case("r50, N 100", r50(100), LossConfig(), 256, 2),
        Case("r50, N 20", r50(20), LossConfig(), 512, 2),
        Case("r50, N 100", r50(100), LossConfig(), 512, 2),
    ]


def make_targets(case: Case) -> Targets:
    """Rectangles of class 0 in every image."""
    generator = torch.Generator().manual_seed(1)
    masks = torch.zeros(case.batch, MASKS_PER_IMAGE, case.side, case.side, dtype=torch.bool)
    for mask in masks.flatten(0, 1):
        top, left = torch.randint(0, case.side // 2, (2,), generator=generator).tolist()
        mask[top : top + case.side // 2, left : left + case.side // 3] = True
    labels = [torch.zeros(MASKS_PER_IMAGE, dtype=torch.long)] * case.batch
    return Targets.stack(list(masks), labels, [f"image {place}" for place in range(case.batch)])


def learners(case: Case) -> tuple[Segmenter, Segmenter, Segmenter]:
    """(a model of the first task, the same grown by a second, the old model)."""
    torch.manual_seed(0)
    first = build_segmenter(case.model, [15])
    with torch.no_grad():
        # A trained model is sure of a few proposals and of few only: here of about one in ten.
        first.mask_decoder.objectness_head.weight.mul_(4)
        first.mask_decoder.objectness_head.bias.fill_(-2)
    old = copy.deepcopy(first).eval().requires_grad_(False)
    later = copy.deepcopy(first)
    later.add_task(5)
    return first.train(), later.train(), old


def relabel(targets: Targets, label: int) -> Targets:
    return Targets(targets.masks, torch.full_like(targets.labels, label), targets.counts, targets.image_ids)


class Clock:
    """Seconds spent in each part of a step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return function(*args, **kwargs)

        return run


# Where the objective looks up the functions that are its parts.
PARTS = (
    (step, "matching_costs", "matching cost"),
    (step, "assign", "assignment"),
    (objective, "matched_mask_losses", "mask losses"),
    (objective, "_distil_objectness", "objectness distillation"),
    (objective, "_recognise", "recognition"),
)


@contextmanager
def watched(clock: Clock, model: Segmenter, old: Segmenter | None) -> Iterator[None]:
    """Time the parts while the block runs."""
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in PARTS]
    learners_of = {"new model forward": model} | ({"old model forward": old} if old is not None else {})
    try:
        for owner, name, part in PARTS:
            setattr(owner, name, clock.timed(part, getattr(owner, name)))
        for part, learner in learners_of.items():
            learner.__dict__["propose"] = clock.timed(part, learner.propose)
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)
        for learner in learners_of.values():
            learner.__dict__.pop("propose", None)


def train_step(
    model: Segmenter, old: Segmenter | None, images: Tensor, targets: Targets, losses: LossConfig
) -> dict[str, float]:
    """Seconds of one step: in all, and by part."""
    model.zero_grad()
    clock = Clock()
    began = time.perf_counter()
    with watched(clock, model, old):
        points = PointSource(0, 0, slice(None), len(images), "cpu")
        total = total_loss(compute_terms(StepInputs(model, old, images, None, targets, points, losses)), losses.weights)
    with clock.part("backward"):
        total.backward()
    seconds = time.perf_counter() - began
    rest = seconds - sum(clock.seconds.values())
    return {"step": seconds} | clock.seconds | {"the rest": rest}


def measure(case: Case, rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Median seconds of the t = 1 and of the t = 2 step, by part."""
    first, later, old = learners(case)
    images = torch.rand(case.batch, 3, case.side, case.side, generator=torch.Generator().manual_seed(0))
    targets = make_targets(case)
    new_targets = relabel(targets, first.num_classes)
    runs: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
    for _ in range(rounds + 1):
        runs[0].append(train_step(first, None, images, targets, case.losses))
        runs[1].append(train_step(later, old, images, new_targets, case.losses))
    # The first round warms up.
    at_first, at_later = ({part: median(run[part] for run in kept[1:]) for part in kept[1]} for kept in runs)
    return at_first, at_later


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--only", default="", help="run the cases whose name and size contain this, such as 'N 20, 256'"
    )
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, medians of {options.rounds} rounds")
    for case in cases():
        title = f"{case.name}, {case.side} px, batch {case.batch}"
        if options.only not in title:
            continue
        first, later = measure(case, options.rounds)
        ratio = later["step"] / first["step"]
        print(f"\n{title}: t = 2 costs {ratio:.2f} x t = 1 ({'meets' if ratio <= LIMIT else 'MISSES'} {LIMIT})")
        print(f"{'':26}{'t = 1':>10}{'t = 2':>10}{'share':>8}")
        for part, seconds in later.items():
            before = f"{1000 * first[part]:8.1f}ms" if part in first else f"{'-':>10}"
            print(f"{part:26}{before}{1000 * seconds:8.1f}ms{100 * seconds / later['step']:7.1f}%", flush=True)


if __name__ == "__main__":
    main()
