"""CoMasTRe, and the two ends of its scale: plain fine-tuning and joint training, on the same two-stage segmenter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from comastre.data.dataset import IGNORE
from comastre.errors import UserError
from comastre.losses.points import PointSource
from comastre.methods.class_statistics import KeptStatistics
from comastre.methods.comastre.config import (
    ClassificationConfig,
    ComastreConfig,
    DistillationConfig,
    LossConfig,
    ModelConfig,
)
from comastre.methods.comastre.looking import look
from comastre.methods.comastre.objective import compute_terms
from comastre.methods.comastre.segmenter import Segmenter, auxiliary_head, build_segmenter
from comastre.methods.comastre.step import StepInputs
from comastre.methods.comastre.terms import term_weights
from comastre.methods.mask2former.model import Mask2Former
from comastre.methods.optimiser import adamw
from comastre.methods.protocol import Batches, Method, Setup
from comastre.methods.teacher import below, frozen_copy, state_of
from comastre.stream.loading import Batch
from comastre.stream.scenario import Task

# The paper transfers stage 1; the class decoder starts afresh, whatever it knew before.
_STAGE_ONE = ("backbone", "pixel_decoder", "mask_decoder")
_AUXILIARY = "auxiliary_head/"
_STATISTICS = "statistics/"


class TwoStageMethod(Method):
    """Learn a task with the configured losses; what is kept of the old model is a matter of their switches."""

    images_per_class: int | None = 100  # more move the means and the covariance by little

    def __init__(
        self, setup: Setup, loss: LossConfig, keeps_statistics: bool = False, first_loss: LossConfig | None = None
    ) -> None:
        self.setup = setup
        self.keeps_statistics = keeps_statistics
        self.kept: KeptStatistics | None = None
        self.settings = settings_of(setup)
        self.loss = loss
        self.first_loss = first_loss or loss
        self.task: Task | None = None
        self.old_model: Segmenter | None = None
        self.auxiliary_head: nn.Module | None = None
        self.begin_alike: bool | None = None
        """Whether both backbones begin alike; None where nobody has looked yet."""

    # --- the model ---------------------------------------------------------------------------------------------------

    def build(self, tasks: Sequence[int]) -> Segmenter:
        return build_segmenter(self.model_config(pretrained=False), tasks)

    def begin(self, task: Task, previous: nn.Module | None, init: nn.Module | None = None) -> Segmenter:
        """With `init`, stage 1 starts as that model's, which is then taught on in the first step, too (Table 4).

        A Mask2Former has no objectness: that starts afresh, and there is nothing to teach on.
        """
        self.task, self.old_model, self.auxiliary_head, self.begin_alike = task, None, None, None
        self.kept = previous.statistics if isinstance(previous, Segmenter) else None
        if previous is None:
            model = self.first_model(len(task.new_classes), pretrained=init is None)
            if init is not None:
                adopt_stage_one(model, init)
                if self.loss.distillation.from_init and isinstance(init, Segmenter):
                    self.old_model = frozen_copy(model)
        else:
            assert isinstance(previous, Segmenter)
            if self.keeps_old_model:
                self.old_model = frozen_copy(previous)
            model = previous
            model.add_task(len(task.new_classes))
            self.auxiliary_head = auxiliary_head(model)
        model.backbone.enter_step(task.step)
        return model

    def first_model(self, num_classes: int, pretrained: bool) -> Segmenter:
        """The model of a first step; where it starts from another model, backbone weights are not looked for."""
        return build_segmenter(self.model_config(pretrained), [num_classes])

    def model_config(self, pretrained: bool) -> ModelConfig:
        """The configured segmenter, with or without the backbone's weights."""
        setup = self.setup if pretrained else self.setup.without_weights()
        return self.settings.model(setup.size, setup.backbone)

    @property
    def keeps_old_model(self) -> bool:
        ours = self.loss.classification
        return self.loss.distillation != DistillationConfig.none() or ours.negatives_for_new or ours.across_tasks

    # --- training ----------------------------------------------------------------------------------------------------

    def losses(self, model: nn.Module, batch: Batch, points: PointSource) -> dict[str, Tensor]:
        assert isinstance(model, Segmenter) and self.task is not None
        inputs = StepInputs(
            model,
            self.old_model,
            batch.images,
            batch.padding,
            batch.targets,
            points,
            self.loss_now,
            self.task.labelled_old,
            self._begin_alike(model),
            self.ignored(batch),
        )
        return compute_terms(inputs, self.auxiliary_head)

    @property
    def loss_now(self) -> LossConfig:
        """The losses of the task that is being learned."""
        return self.first_loss if self.task is not None and self.task.step == 0 else self.loss

    def ignored(self, batch: Batch) -> Tensor | None:
        """Pixels (B, H, W) of which the labels say nothing, where a term asks for them."""
        return batch.labels == IGNORE if self.loss_now.classification.unlabelled_negatives else None

    def _begin_alike(self, model: Segmenter) -> bool:
        """Whether the old model's backbone begins like the new one's, asked at the first batch of a step or a start."""
        if self.begin_alike is None:
            self.begin_alike = self.old_model is not None and model.backbone.begins_like(self.old_model.backbone)
        return self.begin_alike

    def weights(self) -> Mapping[str, float]:
        return term_weights(self.loss.weights)

    def optimiser(self, model: nn.Module, step: int) -> Optimizer:
        return adamw(filter(None, (model, self.auxiliary_head)), self.settings.optimiser, step)

    def training_modules(self) -> nn.Module | None:
        return self.auxiliary_head

    @property
    def gathers(self) -> bool:
        return self.keeps_statistics

    def gather(self, model: nn.Module, images: Batches) -> None:
        """What the classes look like, for lessons that are one look (`methods/exact`).

        In a later step only the new ones' is added: old classes are not labelled, and to look at what the model takes
        for them would keep its mistakes. Where nothing was kept, it is all there is.
        """
        assert isinstance(model, Segmenter) and self.task is not None
        if not self.keeps_statistics:
            model.statistics = self.kept = None  # of the model before, which had fewer classes
            return
        if self.kept is None or self.task.step == 0:
            model.statistics = KeptStatistics.of(look(model, images, by_itself=self.task.step > 0))
        else:
            model.statistics = self.kept.with_newest(look(model, images, by_itself=False), model.tasks[-1])
        self.kept = model.statistics

    def after_training(self, task: Task, model: nn.Module) -> nn.Module:
        """The teacher and the head that only training needs have done their work."""
        self.old_model = self.auxiliary_head = None
        return model

    # --- a kill ------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        kept = self.kept.tensors() if self.kept is not None else {}
        statistics = {f"{_STATISTICS}{name}": tensor for name, tensor in kept.items()}
        return state_of(self.old_model) | state_of(self.auxiliary_head, _AUXILIARY) | statistics

    def restore(self, task: Task | None, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        assert isinstance(model, Segmenter)
        self.task, self.old_model, self.auxiliary_head, self.begin_alike = task, None, None, None
        if task is not None:
            model.backbone.enter_step(task.step)
        device = next(model.parameters()).device
        old, head, kept = below(state), below(state, _AUXILIARY), below(state, _STATISTICS)
        self.kept = KeptStatistics(**{name: tensor.cpu() for name, tensor in kept.items()}) if kept else None
        model.statistics = self.kept
        if old:
            # At a first step that started from another model there is no task before.
            self.old_model = frozen_copy(self.build(model.tasks[:-1] or model.tasks)).to(device)
            self.old_model.load_state_dict(old)
        if head:
            self.auxiliary_head = auxiliary_head(model)
            self.auxiliary_head.load_state_dict(head)


def settings_of(setup: Setup) -> ComastreConfig:
    """The method's own section, which the registry has made of its type."""
    assert isinstance(setup.settings, ComastreConfig)
    return setup.settings


def comastre(setup: Setup) -> TwoStageMethod:
    """The paper's method, with the switches of the configuration."""
    return TwoStageMethod(setup, settings_of(setup).loss, keeps_statistics=True)


def finetune(setup: Setup) -> TwoStageMethod:
    """The same segmenter and losses on new classes, with nothing that remembers.

    Later steps go without unlabelled negatives, too: there they say of old objects that they are no new ones.
    """
    loss = settings_of(setup).loss
    nothing_old = dict.fromkeys(("negatives_for_new", "negatives_for_old", "across_tasks"), False)
    first = loss.classification.model_dump() | nothing_old
    plain, plain_first = (
        loss.model_copy(
            update={
                "distillation": DistillationConfig.none(),
                "classification": ClassificationConfig.model_validate(classification),
            }
        )
        for classification in (first | {"unlabelled_negatives": False}, first)
    )
    return TwoStageMethod(setup, plain, first_loss=plain_first)


def joint(setup: Setup) -> TwoStageMethod:
    """All classes at once: the ceiling."""
    return TwoStageMethod(setup, settings_of(setup).loss, keeps_statistics=True)


def adopt_stage_one(model: Segmenter, given: nn.Module) -> None:
    """Give `model` the stage 1 of `given`, which must be built alike."""
    if not isinstance(given, Segmenter | Mask2Former):
        raise UserError(
            "--init must be a model of CoMasTRe's or Mask2Former's kind, with a stage 1 to start from: "
            "give another model"
        )
    if isinstance(given, Mask2Former) and given.config.mask_decoder.softmax_masks:
        raise UserError("--init does not fit: its masks share each pixel (softmax_masks); start from another model")
    for field, theirs, ours in _stage_one_fields(given, model):
        if theirs != ours:
            raise UserError(
                f"--init does not fit: {field} is {theirs} there but {ours} here; "
                f"set --{field} {_written(theirs)}, or start from another model"
            )
    for part in _STAGE_ONE:
        theirs = getattr(given, part).state_dict()
        ours = getattr(model, part)
        # All of it is there but objectness, which only a model of this kind has.
        own = {name: value for name, value in ours.state_dict().items() if name.startswith("objectness_head.")}
        ours.load_state_dict(own | theirs)


def _stage_one_fields(given: Segmenter | Mask2Former, model: Segmenter) -> Iterator[tuple[str, Any, Any]]:
    """Everything that decides what stage 1 is: the field, its value in `given` and in `model`."""
    yield "backbone.name", given.backbone.config.name, model.backbone.config.name
    for name in ("mean", "std"):
        theirs, ours = (tuple(getattr(each.backbone, name).flatten().tolist()) for each in (given, model))
        yield f"backbone.{name}", theirs, ours
    for section in ("pixel_decoder", "mask_decoder"):
        theirs, ours = getattr(given.config, section), getattr(model.config, section)
        for name in type(ours).model_fields:
            if name != "float32":  # how its numbers are computed, not what they are
                yield f"{section}.{name}", getattr(theirs, name), getattr(ours, name)


def _written(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
