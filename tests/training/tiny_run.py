"""A run small enough to be killed many times: real loop, loader, evaluation and files around a model of a few weights.

Started as a script it makes a reference run, then for every kill point a run that is killed there and started again.
Each start is a fork, so that torch is imported once.
"""

from __future__ import annotations

import copy
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter  # noqa: F401 (imported before forking, to save time)

from comastre.config.run import RunConfig
from comastre.data.dataset import Sample
from comastre.evaluation.evaluate import EvaluationPlan, evaluate
from comastre.evaluation.results import Results, StepResult
from comastre.segmentation import ProposedMasks, Segmentation
from comastre.stream.loading import training_batches
from comastre.stream.scenario import Scenario, Task, build_scenario
from comastre.training import checkpoint
from comastre.training.parts import Parts
from comastre.training.run import run

SIDE = 32
NUM_CLASSES = 4


def tiny_config(frozen: bool = False, **training: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "seed": 3,
            "model": {"size": "tiny", "backbone": {"frozen_batch_norm": frozen}},
            "data": {"crop": SIDE, "workers": 0},
            "continual": {"setting": "2-1"},
            "training": {
                "iterations": 6,
                "iterations_per_class": 5,
                "batch_size": 4,
                "learning_rate": 0.05,
                "later_learning_rate": 0.02,
                "clip": 1.0,
                "warmup": 2,
                "accelerator": "cpu",
                "log_every": 1,
                "checkpoint_every": 2,
                **training,
            },
        }
    )


class TinyData:
    """A bright bar in the channel pattern of one class, on noise."""

    name = "bars"
    class_names = ("a", "b", "c", "d")
    colours = ((0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0), (4, 0, 0))
    has_background = True

    def __init__(self, count: int, seed: int) -> None:
        self.count = count
        self.seed = seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Sample:
        random = np.random.default_rng((self.seed, index))
        image = random.integers(0, 60, (SIDE, SIDE, 3), dtype=np.uint8)
        semantic = np.zeros((SIDE, SIDE), np.uint8)
        class_id = index % NUM_CLASSES + 1
        row = int(random.integers(0, SIDE - 12))
        semantic[row : row + 12] = class_id
        image[row : row + 12] = np.array([[250, 0, 0], [0, 250, 0], [0, 0, 250], [250, 250, 0]])[class_id - 1]
        return Sample(image, semantic, None, f"bar-{index}")

    def presence(self) -> list[frozenset[int]]:
        return [frozenset({index % NUM_CLASSES + 1}) for index in range(self.count)]


class TinyModel(nn.Module):
    def __init__(self, exact: bool) -> None:
        super().__init__()
        self.exact = exact
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 4, stride=4), nn.BatchNorm2d(8))
        self.dropout = nn.Dropout(0.0 if exact else 0.2)  # draws random numbers, which a restart must get right
        self.heads = nn.ModuleList()

    def freeze_batch_norm(self, frozen: bool = True) -> None:
        self.backbone.train(self.training and not frozen and not self.exact)

    def forward(self, work: Callable[..., Any], *args: Any) -> Any:
        return work(*args)

    def maps(self, images: Tensor) -> Tensor:
        """(B, C, h, w) class logits."""
        features = self.dropout(self.backbone(images.float() / 255).relu())
        return torch.cat([head(features) for head in self.heads], dim=1)


@dataclass(frozen=True)
class TinyTerms:
    recognition: Tensor
    points: Tensor
    memory: Tensor

    def items(self) -> list[tuple[str, Tensor]]:
        return [(name, getattr(self, name)) for name in ("recognition", "points", "memory")]


class TinyMethod:
    """Per-pixel binary classification of the new classes, and the old model's maps held for the old ones."""

    def __init__(self, config: RunConfig) -> None:
        self.old_model: TinyModel | None = None
        # Over two processes dropout cannot be that of one.
        self.exact = config.model.backbone.frozen_batch_norm

    def begin(self, task: Task, previous: TinyModel | None) -> TinyModel:
        self.old_model = None if previous is None else copy.deepcopy(previous).eval().requires_grad_(False)
        model = previous or TinyModel(self.exact)
        model.heads.append(nn.Conv2d(8, len(task.new_classes), 1))
        return model

    def losses(self, module: Any, batch: Any, points: Any) -> TinyTerms:
        model = module if isinstance(module, TinyModel) else module.module
        return TinyTerms(*module(lambda: self._losses(model, batch, points)))

    def _losses(self, model: TinyModel, batch: Any, points: Any) -> tuple[Tensor, Tensor, Tensor]:
        maps = model.maps(batch.images)
        num_new = model.heads[-1].out_channels
        num_old = maps.shape[1] - num_new
        truth = torch.zeros(len(maps), maps.shape[1], SIDE, SIDE)
        for row, count in enumerate(batch.targets.counts):
            truth[row, batch.targets.labels[row, :count]] = batch.targets.masks[row, :count].float()
        truth = nn.functional.avg_pool2d(truth, 4)
        recognition = nn.functional.binary_cross_entropy_with_logits(maps[:, num_old:], truth[:, num_old:])
        weights = points.draw(num_new)[..., 0]  # (B, new)
        noise = (maps[:, num_old:].mean(dim=(2, 3)) * weights).square().mean()
        memory = maps.sum() * 0.0
        if self.old_model is not None:
            with torch.no_grad():
                old = self.old_model.maps(batch.images)
            memory = (maps[:, :num_old] - old).square().mean()
        return recognition, noise, memory

    def weigh(self, terms: TinyTerms) -> Tensor:
        return terms.recognition + 0.1 * terms.points + terms.memory


def tiny_data(config: RunConfig) -> tuple[TinyData, TinyData]:
    return TinyData(16, seed=0), TinyData(7, seed=1)


def tiny_scenario(config: RunConfig, training_set: TinyData) -> Scenario:
    return build_scenario(training_set.presence(), NUM_CLASSES, config.continual.setting, config.continual.protocol)


def tiny_evaluate(model: TinyModel, plan: EvaluationPlan, device: Any) -> StepResult:
    def segment(images: Tensor, padding: Any, sizes: Sequence[tuple[int, int]]) -> list[Segmentation]:
        maps = nn.functional.interpolate(model.maps(images), scale_factor=4).sigmoid()  # (B, C, H, W)
        found = []
        for image in maps:
            best = image.max(dim=0)
            label_map = torch.where(best.values > 0.5, best.indices + 1, 0)
            proposals = ProposedMasks(image.amax(dim=(1, 2)), torch.eye(len(image)), 0.8, image.logit(), (SIDE, SIDE))
            found.append(replace(Segmentation.of_labels(label_map), proposals=proposals))
        return found

    return evaluate(segment, plan, device)


def tiny_save(
    model: TinyModel, folder: Path, data: Any, scenario: Scenario, step: int, config: RunConfig, results: Results
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(model.state_dict(), folder / "model.safetensors")


TINY = Parts(tiny_data, tiny_scenario, TinyMethod, training_batches, tiny_evaluate, tiny_save)


# --- killing ---------------------------------------------------------------------------------------------------------


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying_in_iteration(step: int, iteration: int) -> Parts:
    def batches(data: Any, task: Task, *rest: Any) -> Iterator[Any]:
        for batch in training_batches(data, task, *rest):
            if (task.step, batch[0].iteration) == (step, iteration):
                die()
            yield batch

    return replace(TINY, batches=batches)


def dying_in_evaluation(step: int) -> Parts:
    def evaluate_and_die(model: Any, data: Any, scenario: Any, now: int, *rest: Any) -> StepResult:
        if now == step:
            torch.rand(5)  # an evaluation that got somewhere
            die()
        return tiny_evaluate(model, data, scenario, now, *rest)

    return replace(TINY, evaluate=evaluate_and_die)


def dying_after_bundle(step: int) -> Parts:
    def save_and_die(model: Any, folder: Path, data: Any, scenario: Any, now: int, *rest: Any) -> None:
        tiny_save(model, folder, data, scenario, now, *rest)
        if now == step:
            die()

    return replace(TINY, save=save_and_die)


def dying_between_steps(step: int) -> Parts:
    class Dying(TinyMethod):
        def begin(self, task: Task, previous: Any) -> TinyModel:
            if task.step == step:
                die()
            return super().begin(task, previous)

    return replace(TINY, method=Dying)


def dying_in_checkpoint(number: int, renamed: bool) -> Parts:
    """During the `number`-th checkpoint: half written, or renamed already but older ones not yet dropped."""
    left = [number]
    write = checkpoint.write_atomically

    def write_and_die(path: Path, content: bytes) -> None:
        if path.suffix == ".safetensors":
            left[0] -= 1
            if left[0] == 0:
                if renamed:
                    write(path, content)
                else:
                    path.parent.mkdir(exist_ok=True)
                    path.with_name(f".{path.name}.partial").write_bytes(content[: len(content) // 2])
                die()
        write(path, content)

    checkpoint.write_atomically = write_and_die
    return TINY


KILLS: dict[str, Callable[[], Parts]] = {
    "before-first-checkpoint": lambda: dying_in_iteration(0, 1),
    "inside-step-0": lambda: dying_in_iteration(0, 5),
    "evaluation-of-step-0": lambda: dying_in_evaluation(0),
    "after-bundle-of-step-0": lambda: dying_after_bundle(0),
    "between-steps": lambda: dying_between_steps(1),
    "inside-step-1": lambda: dying_in_iteration(1, 3),
    "checkpoint-half-written": lambda: dying_in_checkpoint(2, renamed=False),
    "checkpoint-just-renamed": lambda: dying_in_checkpoint(1, renamed=True),
    "last-evaluation": lambda: dying_in_evaluation(2),
    "after-last-bundle": lambda: dying_after_bundle(2),
}


def in_fork(work: Callable[[], Any]) -> int:
    """Status of a forked process that did `work`: 0, 1 after an error, minus the signal that killed it."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    config = tiny_config()
    statuses = {"reference": [in_fork(lambda: run(config, folder / "reference", parts=TINY))]}
    for name, kill in KILLS.items():
        out = folder / name
        statuses[name] = [
            in_fork(lambda: run(config, out, parts=kill())),  # noqa: B023 (called at once)
            in_fork(lambda: run(config, out, parts=TINY)),  # noqa: B023
        ]
    # One unlucky run that is killed everywhere, one time after the other.
    out = folder / "everywhere"
    statuses["everywhere"] = [in_fork(lambda kill=kill: run(config, out, parts=kill())) for kill in KILLS.values()]
    statuses["everywhere"].append(in_fork(lambda: run(config, out, parts=TINY)))
    (folder / "statuses.json").write_text(json.dumps(statuses))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
