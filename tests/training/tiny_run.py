"""A run small enough to be killed many times: real loop, loader, evaluation and files around a model of a few weights.

Started as a script it makes a reference run, then for every kill point a run that is killed there and started again.
Each start is a fork, so that torch is imported once.
"""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.tensorboard import SummaryWriter  # noqa: F401 (imported before forking, to save time)

from comastre.config.run import RunConfig
from comastre.data.dataset import Sample
from comastre.distributed import average_over_processes
from comastre.evaluation.evaluate import evaluate
from comastre.evaluation.results import Results, StepResult
from comastre.methods.optimiser import adamw
from comastre.methods.protocol import Batches, Method
from comastre.segmentation import ProposedMasks, Segmentation, Size
from comastre.stream.loading import training_batches
from comastre.stream.scenario import Scenario, Task, build_scenario
from comastre.training import checkpoint, session, start
from comastre.training.parts import LearnedStep, Parts
from comastre.training.run import run
from comastre.training.start import Start

SIDE = 32
NUM_CLASSES = 4
AFTERWARDS = 0.125
"""What a bias loses after the last iteration."""


def tiny_config(frozen: bool = False, learning_rate: float = 0.05, **training: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "seed": 3,
            "size": "tiny",
            "backbone": {"freeze_batch_norm": "always" if frozen else "later"},
            "data": {"crop": SIDE, "workers": 0},
            "continual": {"setting": "2-1"},
            "comastre": {
                "optimiser": {"learning_rate": learning_rate, "later_learning_rate": 0.02, "clip": 1.0, "warmup": 2}
            },
            "training": {
                "iterations": 6,
                "iterations_per_class": 5,
                "batch_size": 4,
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
    def __init__(self, exact: bool, tasks: Sequence[int] = ()) -> None:
        super().__init__()
        self.exact = exact
        self.frozen = exact
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 4, stride=4), nn.BatchNorm2d(8))
        self.dropout = nn.Dropout(0.0 if exact else 0.2)  # draws random numbers, which a restart must get right
        self.heads = nn.ModuleList()
        for num_classes in tasks:
            self.add_task(num_classes)

    @property
    def tasks(self) -> tuple[int, ...]:
        return tuple(head.out_channels for head in self.heads)

    def add_task(self, num_classes: int) -> None:
        self.heads.append(nn.Conv2d(8, num_classes, 1))

    def enter_step(self, step: int) -> None:
        """BatchNorm follows the data in the first step only."""
        self.frozen = self.exact or step > 0

    def train(self, mode: bool = True) -> TinyModel:
        super().train(mode)
        self.backbone.train(mode and not self.frozen)
        return self

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, h, w) class logits."""
        features = self.dropout(self.backbone(images.float() / 255).relu())
        return torch.cat([head(features) for head in self.heads], dim=1)


class TinyMethod(Method):
    """Per-pixel binary classification of the new classes, and the old model's maps held for the old ones.

    It uses every hook that a kill may meet: an old model, a number that is measured before the first iteration and acts
    in the losses of the step, and a change of the model after the last one.
    """

    def __init__(self, config: RunConfig) -> None:
        self.settings = config.method_settings
        self.old_model: TinyModel | None = None
        self.brightness: Tensor | None = None
        # Over two processes dropout cannot be that of one.
        self.exact = config.backbone.freeze_batch_norm == "always"

    def build(self, tasks: Sequence[int]) -> TinyModel:
        return TinyModel(self.exact, tasks)

    def begin(self, task: Task, previous: nn.Module | None, init: nn.Module | None = None) -> TinyModel:
        assert previous is None or isinstance(previous, TinyModel)
        self.old_model = None if previous is None else copy.deepcopy(previous).eval().requires_grad_(False)
        self.brightness = None
        model = previous or TinyModel(self.exact)
        model.add_task(len(task.new_classes))
        model.enter_step(task.step)
        return model

    def before_training(self, model: nn.Module, batches: Batches) -> None:
        values = torch.stack([batch.images.float().mean() / 255 for batch in batches()])
        self.brightness = average_over_processes(values.mean())

    def losses(self, model: nn.Module, batch: Any, points: Any) -> dict[str, Tensor]:
        assert isinstance(model, TinyModel) and self.brightness is not None
        maps = model(batch.images)
        num_new = model.tasks[-1]
        num_old = maps.shape[1] - num_new
        truth = torch.zeros(len(maps), maps.shape[1], SIDE, SIDE)
        for row, count in enumerate(batch.targets.counts):
            truth[row, batch.targets.labels[row, :count]] = batch.targets.masks[row, :count].float()
        truth = nn.functional.avg_pool2d(truth, 4)
        recognition = nn.functional.binary_cross_entropy_with_logits(maps[:, num_old:], truth[:, num_old:])
        weights = points.draw(num_new)[..., 0]  # (B, new)
        noise = (maps[:, num_old:].mean(dim=(2, 3)) * weights).square().mean() * (1 + self.brightness)
        memory = maps.sum() * 0.0
        if self.old_model is not None:
            with torch.no_grad():
                old = self.old_model(batch.images)
            memory = (maps[:, :num_old] - old).square().mean()
        return {"recognition": recognition, "points": noise, "memory": memory}

    def weights(self) -> dict[str, float]:
        return {"recognition": 1.0, "points": 0.1, "memory": 1.0}

    def optimiser(self, model: nn.Module, step: int) -> Optimizer:
        return adamw([model], self.settings.optimiser, step)

    def after_training(self, task: Task, model: nn.Module) -> nn.Module:
        """The newest classes become a little less likely: once, however often the end of a step is met."""
        assert isinstance(model, TinyModel)
        with torch.no_grad():
            model.heads[-1].bias -= AFTERWARDS
        self.old_model = self.brightness = None
        return model

    def state(self) -> dict[str, Tensor]:
        state = {} if self.brightness is None else {"brightness": self.brightness}
        if self.old_model is not None:
            state |= {f"old/{name}": tensor for name, tensor in self.old_model.state_dict().items()}
        return state

    def restore(self, task: Task | None, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        assert isinstance(model, TinyModel)
        self.brightness, self.old_model = state.get("brightness"), None
        if task is not None:
            model.enter_step(task.step)
        old = {name.removeprefix("old/"): tensor for name, tensor in state.items() if name.startswith("old/")}
        if old:
            self.old_model = self.build(model.tasks[:-1]).eval().requires_grad_(False)
            self.old_model.load_state_dict(old)


def tiny_data(config: RunConfig) -> tuple[TinyData, TinyData]:
    return TinyData(16, seed=0), TinyData(7, seed=1)


def tiny_scenario(config: RunConfig, training_set: TinyData) -> Scenario:
    return build_scenario(training_set.presence(), NUM_CLASSES, config.continual.setting, config.continual.protocol)


def tiny_evaluate(learned: LearnedStep) -> StepResult:
    def segment(
        images: Tensor, padding: Any, sizes: Sequence[Size], original_sizes: Sequence[Size]
    ) -> list[Segmentation]:
        maps = nn.functional.interpolate(learned.model(images), scale_factor=4).sigmoid()  # (B, C, H, W)
        found = []
        for image in maps:
            best = image.max(dim=0)
            label_map = torch.where(best.values > 0.5, best.indices + 1, 0)
            proposals = ProposedMasks(image.amax(dim=(1, 2)), torch.eye(len(image)), 0.8, image.logit(), (SIDE, SIDE))
            found.append(replace(Segmentation.of_labels(label_map), proposals=proposals))
        return found

    return replace(evaluate(segment, learned.plan, learned.device), seconds=learned.seconds)


def tiny_save(learned: LearnedStep, folder: Path, results: Results) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    kind = {"exact": str(learned.model.exact)}
    save_file(learned.model.state_dict(), folder / "model.safetensors", metadata=kind)


def tiny_load(folder: Path) -> TinyModel:
    """What `tiny_save` wrote."""
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        exact = file.metadata()["exact"] == "True"
    tasks = [len(tensor) for name, tensor in sorted(tensors.items()) if re.fullmatch(r"heads\.\d+\.bias", name)]
    model = TinyModel(exact, tasks)
    model.load_state_dict(tensors)
    return model.eval()


TINY = Parts(tiny_data, tiny_scenario, TinyMethod, training_batches, tiny_evaluate, tiny_save, load=tiny_load)


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
    def evaluate_and_die(learned: LearnedStep) -> StepResult:
        if learned.task.step == step:
            torch.rand(5)  # an evaluation that got somewhere
            die()
        return tiny_evaluate(learned)

    return replace(TINY, evaluate=evaluate_and_die)


def dying_after_bundle(step: int) -> Parts:
    def save_and_die(learned: LearnedStep, folder: Path, results: Results) -> None:
        tiny_save(learned, folder, results)
        if learned.task.step == step:
            die()

    return replace(TINY, save=save_and_die)


def dying_between_steps(step: int) -> Parts:
    class Dying(TinyMethod):
        def begin(self, task: Task, previous: Any, init: Any = None) -> TinyModel:
            if task.step == step:
                die()
            return super().begin(task, previous, init)

    return replace(TINY, method=Dying)


def dying_before_training(step: int) -> Parts:
    """With what the step measures half measured."""

    class Dying(TinyMethod):
        def before_training(self, model: nn.Module, batches: Batches) -> None:
            if len(model.tasks) == step + 1:  # type: ignore[arg-type]
                next(batches())
                die()
            super().before_training(model, batches)

    return replace(TINY, method=Dying)


def dying_after_training(step: int) -> Parts:
    """With the model changed, and nothing of that written."""

    class Dying(TinyMethod):
        def after_training(self, task: Task, model: nn.Module) -> nn.Module:
            changed = super().after_training(task, model)
            if task.step == step:
                die()
            return changed

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
    "after-training-of-step-0": lambda: dying_after_training(0),
    "evaluation-of-step-0": lambda: dying_in_evaluation(0),
    "after-bundle-of-step-0": lambda: dying_after_bundle(0),
    "between-steps": lambda: dying_between_steps(1),
    "before-training-of-step-1": lambda: dying_before_training(1),
    "inside-step-1": lambda: dying_in_iteration(1, 3),
    "checkpoint-half-written": lambda: dying_in_checkpoint(2, renamed=False),
    "checkpoint-just-renamed": lambda: dying_in_checkpoint(1, renamed=True),
    "after-training-of-step-2": lambda: dying_after_training(2),
    "last-evaluation": lambda: dying_in_evaluation(2),
    "after-last-bundle": lambda: dying_after_bundle(2),
}


# --- starting from a model that has learned the first step ------------------------------------------------------------


def dying_while_copying() -> Parts:
    copy_files = start.copy_files

    def copy_and_die(*args: Any) -> None:
        copy_files(*args)
        die()

    start.copy_files = copy_and_die
    return TINY


def dying_before_checkpoint() -> Parts:
    """With everything in place but the first checkpoint."""
    session.save = lambda *args: die()
    return TINY


STARTS: dict[str, Callable[[], Parts]] = {
    "start-while-copying": dying_while_copying,
    "start-before-first-checkpoint": dying_before_checkpoint,
    "start-first-checkpoint-half-written": lambda: dying_in_checkpoint(1, renamed=False),
    "start-between-steps": lambda: dying_between_steps(1),
    "start-before-training": lambda: dying_before_training(1),
    "start-first-iteration": lambda: dying_in_iteration(1, 0),
    "start-inside-step-1": lambda: dying_in_iteration(1, 3),
}


def start_from(reference: Path) -> Start:
    """The reference run after its first step."""
    results = Results.load(reference / "results.json")
    return Start(reference / "steps" / "00", replace(results, steps=results.steps[:1]))


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
    start = start_from(folder / "reference")
    for name, kill in STARTS.items():
        out = folder / name
        statuses[name] = [
            in_fork(lambda: run(config, out, start=start, parts=kill())),  # noqa: B023
            in_fork(lambda: run(config, out, start=start, parts=TINY)),  # noqa: B023
        ]
    (folder / "statuses.json").write_text(json.dumps(statuses))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
