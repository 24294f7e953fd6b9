"""Mask2Former in a stream: its classifier grows by each task; fine-tuning and joint training are the same losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from comastre.errors import UserError
from comastre.losses.points import PointSource
from comastre.methods.mask2former.config import Mask2FormerConfig
from comastre.methods.mask2former.model import Mask2Former, build_model
from comastre.methods.mask2former.objective import supervise
from comastre.methods.optimiser import adamw
from comastre.methods.protocol import Method, Setup
from comastre.stream.loading import Batch
from comastre.stream.scenario import Task


class QueryMethod(Method):
    """Learn a task's labels with all weights; nothing old is kept."""

    def __init__(self, setup: Setup) -> None:
        assert isinstance(setup.settings, Mask2FormerConfig)
        self.setup = setup
        self.settings = setup.settings
        self.task: Task | None = None

    # --- the model ---------------------------------------------------------------------------------------------------

    def build(self, tasks: Sequence[int]) -> Mask2Former:
        return self._new_model(self.setup.without_weights(), tasks)

    def begin(self, task: Task, previous: nn.Module | None, init: nn.Module | None = None) -> Mask2Former:
        """With `init`, a model of this kind, all but the classifier starts as there."""
        self.task = task
        if previous is None:
            setup = self.setup if init is None else self.setup.without_weights()
            model = self._new_model(setup, [len(task.new_classes)])
            if init is not None:
                _adopt(model, init)
        else:
            assert isinstance(previous, Mask2Former)
            model = previous
            model.add_task(len(task.new_classes))
        model.backbone.enter_step(task.step)
        return model

    def _new_model(self, setup: Setup, tasks: Sequence[int]) -> Mask2Former:
        return build_model(self.settings, setup.backbone, tasks)

    # --- training ----------------------------------------------------------------------------------------------------

    def losses(self, model: nn.Module, batch: Batch, points: PointSource) -> dict[str, Tensor]:
        assert isinstance(model, Mask2Former)
        predicted = model(batch.images, batch.padding)
        softmax_masks = self.settings.mask_decoder.softmax_masks
        return supervise(predicted, batch.targets, points, self.settings, softmax_masks)

    def weights(self) -> Mapping[str, float]:
        return self.settings.weights.model_dump()

    def optimiser(self, model: nn.Module, step: int) -> Optimizer:
        return adamw([model], self.settings.optimiser, step)

    # --- a kill ------------------------------------------------------------------------------------------------------

    def restore(self, task: Task | None, model: nn.Module, state: Mapping[str, Tensor]) -> None:
        assert isinstance(model, Mask2Former)
        self.task = task
        if task is not None:
            model.backbone.enter_step(task.step)


def mask2former(setup: Setup) -> QueryMethod:
    """The original."""
    return QueryMethod(setup)


def _adopt(model: Mask2Former, given: nn.Module) -> None:
    """Give `model` all of `given` but its classes; it must be built alike."""
    if not isinstance(given, Mask2Former):
        raise UserError("--init must be a model of Mask2Former's kind, which this one starts from: give another model")
    theirs = {name: tensor for name, tensor in given.state_dict().items() if not name.startswith("class_head.")}
    ours = model.state_dict()
    for name in sorted(theirs.keys() | {name for name in ours if not name.startswith("class_head.")}):
        found, wanted = theirs.get(name), ours.get(name)
        if found is None or wanted is None or found.shape != wanted.shape:
            raise UserError(
                f"--init does not fit: {name} is {_shape(found)} there but {_shape(wanted)} here; "
                "give the same backbone and sizes, or start from another model"
            )
    model.load_state_dict(theirs, strict=False)


def _shape(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else str(tuple(tensor.shape))
