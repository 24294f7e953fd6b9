"""Every choice of a run as one frozen, typed tree; defaults are the paper's.

Importing this file is cheap (no torch), so the command line can read presets and explain fields at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    Field,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from comastre.config import methods
from comastre.config.conventions import PAPER, ConventionName
from comastre.config.datasets import readers_of
from comastre.config.older import upgraded
from comastre.config.sections import BACKBONES, BackboneConfig, MethodConfig, PositiveFloat, PositiveInt, Size
from comastre.config.view import ViewConfig
from comastre.errors import UserError
from comastre.section import Section, merge

MOST_ITERATIONS, MOST_IMAGES, MOST_PIXELS = 10**8, 8192, 8192
"""Of a step, of a batch, and of a crop's side: what is larger, nobody can have meant."""
MOST_GENERATED = 10**6
"""Images of a generated dataset, which lie in memory."""
METHOD_SETTINGS = "method_settings"
"""The field that holds the method's own section; in files the section has the method's name for it."""


class ContinualConfig(Section):
    setting: str = "15-5"
    """'B-I': B base classes, then I per step; or 'joint'."""
    protocol: Literal["overlapped", "disjoint", "sequential"] = "overlapped"
    """Which images a step sees and which of their classes are labelled."""
    class_order: tuple[int, ...] | None = None
    """Dataset class ids (1..C) in learning order; by default ascending."""
    partition: str | None = None
    """Folder of train-0.npy, train-1.npy, ... with fixed image indices per step (MiB's ADE20K tradition)."""


class DataConfig(Section):
    dataset: str = "shapes"
    """Name of a dataset; `comastre data list` shows all that are installed."""
    root: str | None = None
    """Folder of the dataset, where it needs one."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of a dataset that another package brings, as in '{year: 2020}'."""
    coco_labels: Literal["auto", "panoptic", "instances"] = "auto"
    """Labels of coco: panoptic PNGs (133 classes) or instance JSON (80); auto takes panoptic where it is there."""
    without: tuple[str, ...] = ()
    """Classes to take out of coco or coco_json, by name; 'voc' stands for the 20 of VOC (paper Table 4)."""
    without_removes: Literal["objects", "images"] = "objects"
    """What goes with `without`: objects, whose pixels become background (the paper's), or images that show one."""
    train_json: str | None = None
    """Annotation file of coco_json, label_studio or cvat, relative to root; by default the first usual place."""
    val_json: str | None = None
    """Validation annotation file of coco_json, relative to root; without one a share is held out."""
    held_out: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    """Share of images for validation where your own data has no validation split; names decide which."""
    crop: Annotated[int, Field(ge=1, le=MOST_PIXELS)] = 512
    """Training crop in pixels."""
    scale: tuple[PositiveFloat, PositiveFloat] = (0.5, 2.0)
    """Random rescaling relative to the crop (short side)."""
    later_scale: tuple[PositiveFloat, PositiveFloat] | None = None
    """Random rescaling in later steps; by default as in the first."""
    later_beside: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Share of later steps' crops that are taken beside the labelled objects, where there is room (ours)."""
    flip: bool = True
    """Random horizontal flip."""
    colour_jitter: bool = True
    """Random brightness, contrast, saturation and hue, as Mask2Former's."""
    train_images: Annotated[int, Field(ge=1, le=MOST_GENERATED)] = 2000
    """Training images of a generated dataset (shapes)."""
    val_images: Annotated[int, Field(ge=1, le=MOST_GENERATED)] = 300
    """Validation images of a generated dataset (shapes)."""
    image_size: PositiveInt = 64
    """Image side of a generated dataset (shapes), 64 to 128."""
    seed: int = 0
    """Seed of a generated dataset (shapes): which images exist, apart from the training seed."""
    masks: Literal["semantic", "instance"] = "semantic"
    """One target mask per class present, or per object where the dataset knows objects."""
    workers: Annotated[int, Field(ge=0, le=1024)] = 2
    """Loader processes per training process."""

    @field_validator("without", mode="before")
    @classmethod
    def _one_name(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else given

    @model_validator(mode="after")
    def _check_without(self) -> DataConfig:
        if self.without and self.dataset not in (readers := readers_of("without")):
            known = " and ".join(readers)
            raise ValueError(f"without takes classes out of {known} only, but dataset is {self.dataset}")
        return self


class TrainingConfig(Section):
    iterations: Annotated[int, Field(ge=1, le=MOST_ITERATIONS)] = 20000
    """Iterations of the first step."""
    iterations_per_class: Annotated[int, Field(ge=1, le=MOST_ITERATIONS)] = 1000
    """Iterations per new class of every later step."""
    joint_length: Literal["first_step", "stream"] = "first_step"
    """How long joint training takes on a setting of several steps: as its first, or as all of them together."""
    batch_size: Annotated[int, Field(ge=1, le=MOST_IMAGES)] = 16
    """Images per iteration over all devices."""
    accumulate: PositiveInt = 1
    """Split the batch into this many parts whose gradients are added up; each has its own BatchNorm statistics."""
    sync_batch_norm: bool = True
    """BatchNorm statistics over all devices, so that results do not depend on their number."""
    devices: PositiveInt = 1
    """Devices per node."""
    nodes: PositiveInt = 1
    """Nodes."""
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Kind of device."""
    strategy: str = "auto"
    """lightning-fabric strategy, such as ddp (ddp_spawn and ddp_fork mean the same here)."""
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    """Numeric precision."""
    recompute: bool = False
    """Keep few activations and compute the rest again for the gradient: less memory, more time, the same gradients."""
    log_every: PositiveInt = 50
    """Iterations between log lines."""
    checkpoint_every: PositiveInt = 500
    """Iterations between checkpoints."""
    loggers: tuple[Literal["wandb", "mlflow"], ...] = ()
    """Services that get losses and scores besides TensorBoard, where installed; by default none."""

    @field_validator("loggers", mode="before")
    @classmethod
    def _one_logger(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else given

    @model_validator(mode="after")
    def _check_split(self) -> TrainingConfig:
        parts = self.devices * self.nodes * self.accumulate
        if self.batch_size % parts:
            raise ValueError(
                f"batch_size is {self.batch_size} but must be a multiple of devices x nodes x accumulate = {parts}"
            )
        return self


class EvaluationConfig(Section):
    batch_size: Annotated[int, Field(ge=1, le=MOST_IMAGES)] = 1
    """Images per forward pass at evaluation, at most; scores do not depend on it."""
    convention: ConventionName = PAPER
    """Which convention the headline numbers follow; all are in results.json."""
    parts_as_proposals: bool = False
    """Score the connected parts of label maps as proposals, where a model has none (paper Figure 1)."""


class RunConfig(Section):
    """One continual run: what `config.yaml` in a run directory holds."""

    method: str = methods.DEFAULT
    """How old knowledge is kept; `comastre methods` lists the methods."""
    init: str | None = None
    """A run or a model bundle that the first step starts from: of CoMasTRe's, stage 1 (paper Table 4)."""
    seed: int = 0
    """Seed of weights, order, augmentation and points."""
    size: Size = "r101"
    """Named size that fills every field of backbone and model that is not given: r101 and r50 are the paper's."""
    backbone: BackboneConfig = BackboneConfig()
    method_settings: SerializeAsAny[MethodConfig]
    """The method's own section."""
    data: DataConfig = DataConfig()
    continual: ContinualConfig = ContinualConfig()
    training: TrainingConfig = TrainingConfig()
    view: ViewConfig = ViewConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    if TYPE_CHECKING:  # the section of the method may be given under its own name, and need not be

        def __init__(self, **given: Any) -> None: ...

    @property
    def spec(self) -> methods.MethodSpec:
        """The method."""
        return methods.find(self.method)

    @property
    def trains_as_a_stream(self) -> bool:
        """Whether all classes are learned at once, for as long as the steps of the setting take together."""
        several = self.continual.setting != "joint"
        return self.training.joint_length == "stream" and several and self.spec.all_at_once

    @model_validator(mode="before")
    @classmethod
    def _take_the_methods_section(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        try:
            spec = methods.find(str(given.get("method", methods.DEFAULT)))
        except UserError as error:
            raise ValueError(str(error)) from None
        plain = {name: value.model_dump() if isinstance(value, Section) else value for name, value in given.items()}
        if METHOD_SETTINGS in plain:
            plain[spec.section_name] = plain.pop(METHOD_SETTINGS)
        plain = upgraded(plain, spec.section_name)
        size = str(plain.get("size", cls.model_fields["size"].default))
        backbone, own = plain.get("backbone", {}), plain.pop(spec.section_name, {})
        if isinstance(backbone, Mapping):
            plain["backbone"] = merge(BACKBONES.get(size, {}), backbone)
        if isinstance(own, Mapping):
            own = merge(spec.config.for_size(size), own)
        return plain | {METHOD_SETTINGS: _validated(spec, own)}

    @model_serializer(mode="wrap")
    def _name_the_methods_section(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = handler(self)
        return {self.spec.section_name if name == METHOD_SETTINGS else name: value for name, value in written.items()}


def _validated(spec: methods.MethodSpec, own: Any) -> MethodConfig:
    """The method's section, typed; what is wrong in it is named with the section's name in front."""
    try:
        return spec.config.model_validate(own)
    except ValidationError as error:
        lines: Any = [
            {
                "type": each["type"],
                "loc": (spec.section_name, *each["loc"]),
                "input": each["input"],
                "ctx": each.get("ctx", {}),
            }
            for each in error.errors()
        ]
        raise ValidationError.from_exception_data(error.title, lines) from None
