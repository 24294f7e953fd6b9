"""CoMasTRe with an exact guarantee: after its first step nothing that was learned moves, to the bit.

A later step is one look at its images. What the proposals on a new class's objects look like becomes a row of
statistics, beside those of all classes before it; nothing is trained, and the order of classes does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from torch import Tensor, nn
from torch.optim import Optimizer

from comastre.data.targets import Targets
from comastre.errors import UserError
from comastre.losses.points import PointSource
from comastre.methods.class_statistics import Sums
from comastre.methods.comastre.looking import look
from comastre.methods.comastre.method import TwoStageMethod
from comastre.methods.comastre.objective import compute_terms
from comastre.methods.comastre.segmenter import Segmenter
from comastre.methods.comastre.step import StepInputs
from comastre.methods.exact.config import ExactConfig
from comastre.methods.exact.model import ExactSegmenter, build_exact
from comastre.methods.exact.own_queries import OwnView
from comastre.methods.protocol import Batches, Setup
from comastre.stream.loading import Batch
from comastre.stream.scenario import Task
from comastre.text import readable_time


class ExactMethod(TwoStageMethod):
    """The first step is CoMasTRe's; later ones gather statistics."""

    images_per_class = None  # every image counts: there is nothing else to learn from

    def __init__(self, setup: Setup) -> None:
        assert isinstance(setup.settings, ExactConfig)
        super().__init__(setup, setup.settings.loss)
        self.statistics = setup.settings.statistics
        self.own_queries = setup.settings.own_queries.number
        self.said: tuple[str, ...] = ()
        self.cost = ""

    # --- the model ---------------------------------------------------------------------------------------------------

    def build(self, tasks: Sequence[int]) -> ExactSegmenter:
        return build_exact(self.model_config(pretrained=False), tasks, self.statistics.trained_tasks, self.own_queries)

    def first_model(self, num_classes: int, pretrained: bool) -> ExactSegmenter:
        if self.statistics.trained_tasks != 1:
            raise UserError(
                f"statistics.trained_tasks is {self.statistics.trained_tasks}, which is for models that another "
                "method has trained: leave it at 1"
            )
        return build_exact(self.model_config(pretrained), [num_classes], 1, self.own_queries)

    def begin(self, task: Task, previous: nn.Module | None, init: nn.Module | None = None) -> Segmenter:
        if previous is None:
            return super().begin(task, previous, init)
        assert isinstance(previous, ExactSegmenter)
        previous.refuse_changed(previous.num_classes)
        self.task, self.old_model, self.auxiliary_head = task, None, None
        previous.add_task(len(task.new_classes))
        previous.hold_still()
        return previous

    def adopt(self, model: nn.Module, images: Batches) -> nn.Module:
        """A segmenter of CoMasTRe's: the statistics of its classes come from images, or are those that it kept."""
        if isinstance(model, ExactSegmenter):
            return model
        assert isinstance(model, Segmenter)
        adopted = self.build(model.tasks).to(next(model.parameters()).device)
        adopted.load_state_dict(adopted.state_dict() | model.state_dict())
        sums = look(adopted, images, by_itself=False)
        if sums.counts.any() or model.statistics is None:
            self._learn_all(adopted, sums)
        else:  # nobody has the images any more
            adopted.discriminant.take(model.statistics, self.statistics.shrinkage)
        adopted.close(adopted.num_classes)
        return adopted

    # --- learning ----------------------------------------------------------------------------------------------------

    def losses(self, model: nn.Module, batch: Batch, points: PointSource) -> dict[str, Tensor]:
        """Of CoMasTRe's first step; in later ones the newest queries alone learn to find and name the new classes."""
        assert isinstance(model, ExactSegmenter) and self.task is not None
        if self.task.step == 0:
            return super().losses(model, batch, points)
        targets = batch.targets
        if self.task.labelled_old:
            targets = _of_new_classes(targets, model.num_classes - model.tasks[-1])
        view = cast(Segmenter, OwnView(model))  # it has all that losses ask for
        ignored = self.ignored(batch)
        inputs = StepInputs(view, None, batch.images, batch.padding, targets, points, self.loss, ignored=ignored)
        return compute_terms(inputs)

    def optimiser(self, model: nn.Module, step: int) -> Optimizer:
        assert isinstance(model, ExactSegmenter)
        return super().optimiser(model if step == 0 else model.newest, step)

    def restore(self, task: Task | None, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        super().restore(task, model, state)
        assert isinstance(model, ExactSegmenter)
        if task is not None and task.step > 0:
            model.hold_still()

    @property
    def gathers(self) -> bool:
        return True

    def gather(self, model: nn.Module, images: Batches) -> None:
        """The statistics of the task's classes; of all classes where there are none yet."""
        assert isinstance(model, ExactSegmenter) and self.task is not None
        self.said = ()
        if self.task.step == 0:
            self._learn_all(model, look(model, images, by_itself=False))
        elif model.discriminant.counts.any():
            model.discriminant.learn_newest(look(model, images, by_itself=False), model.tasks[-1])
        else:
            known = model.num_classes - model.tasks[-1]
            sums = look(model, images, by_itself=True)
            model.refuse_changed(known)
            self._learn_all(model, sums)
            model.close(known)
            self.said = (_gathered_by_itself(model),)

    def _learn_all(self, model: ExactSegmenter, sums: Sums) -> None:
        if sums.counts.sum() > 0:
            model.discriminant.learn_all(sums, self.statistics.shrinkage)

    def after_training(self, task: Task, model: nn.Module) -> nn.Module:
        """Nothing old may have moved; what is new is sealed with it."""
        super().after_training(task, model)
        assert isinstance(model, ExactSegmenter)
        if task.step > 0:
            model.refuse_changed(model.num_classes - model.tasks[-1])
            self.cost = _cost(model)
        model.close(model.num_classes)
        return model

    def remarks(self, seconds: float = 0.0) -> tuple[str, ...]:
        return (*self.said, *((f"{self.cost} in {readable_time(seconds)}",) if self.cost else ()))


def _of_new_classes(targets: Targets, num_old: int) -> Targets:
    """Without the masks of old classes, which are not for new queries."""
    device = targets.labels.device
    chosen = [targets.labels[row, :count] >= num_old for row, count in enumerate(targets.counts)]
    masks = [targets.masks[row, : len(rows)][rows].cpu() for row, rows in enumerate(chosen)]
    labels = [targets.labels[row, : len(rows)][rows].cpu() for row, rows in enumerate(chosen)]
    return Targets.stack(masks, labels, targets.image_ids).to(device)


def _cost(model: ExactSegmenter) -> str:
    """What the newest step added."""
    statistics = model.tasks[-1] * (model.discriminant.width + 1)
    if not model.own:
        return f"{statistics:,} numbers more, of statistics,"
    own = sum(parameter.numel() for parameter in model.newest.parameters())
    return f"{model.num_own} queries more, {own:,} weights of theirs and {statistics:,} numbers of statistics,"


def _gathered_by_itself(model: ExactSegmenter) -> str:
    old = model.num_classes - model.tasks[-1]
    seen = int(model.discriminant.known[:old].sum())
    text = (
        f"the model had kept no statistics: those of {seen} of its {old} classes come from what it recognises in these "
        "images itself"
    )
    if seen == old:
        return text
    return f"{text}; what it takes for one of the other {old - seen} keeps that name, also where it is new"


def exact(setup: Setup) -> ExactMethod:
    """Nothing that was learned moves."""
    return ExactMethod(setup)
