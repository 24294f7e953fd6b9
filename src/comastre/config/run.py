"""Every choice of a run as one frozen, typed tree; defaults are the paper's (SPEC sections 2 to 7).

Importing this file is cheap (no torch), so the command line can read presets and explain fields at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from comastre.section import Section, merge

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Weight = Annotated[float, Field(ge=0.0)]
PositiveInt = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0.0)]


# --- the model (SPEC section 2) --------------------------------------------------------------------------------------


class BackboneConfig(Section):
    name: str = "resnet101.tv_in1k"
    """Any timm model that gives features at strides 4, 8, 16 and 32."""
    weights: str = "hub"
    """'hub' (pretrained, downloaded), 'none' (random), or the path of a .safetensors or state-dict file."""
    frozen_batch_norm: bool = False
    """Keep BatchNorm statistics fixed from the first step on."""
    frozen_stride: Literal[0, 4, 8, 16, 32] = 0
    """Never train the layers up to the features of this stride (0: all learn); saves most of their backward pass."""
    mean: tuple[float, float, float] | None = None
    """Image mean in 0..1; by default what the backbone was trained with."""
    std: tuple[float, float, float] | None = None
    """Image standard deviation in 0..1; by default what the backbone was trained with."""


class PixelDecoderConfig(Section):
    dim: PositiveInt = 256
    """Channels d of all pixel and query embeddings."""
    layers: Annotated[int, Field(ge=0)] = 6
    """Deformable encoder layers over strides 32, 16 and 8."""
    top_down: bool = False
    """First add each level, upsampled, to the next finer one, as a feature pyramid does (ours: cheaper than layers)."""
    heads: PositiveInt = 8
    """Attention heads."""
    points: PositiveInt = 4
    """Sampling points per head and level."""
    feedforward: PositiveInt = 1024
    """Hidden width of the feed-forward layers."""


class MaskDecoderConfig(Section):
    num_queries: PositiveInt = 20
    """Positional queries N: 20 on VOC, 100 on ADE20K."""
    layers: PositiveInt = 9
    """Decoder layers L."""
    heads: PositiveInt = 8
    """Attention heads."""
    feedforward: PositiveInt = 2048
    """Hidden width of the feed-forward layers."""


class ClassDecoderConfig(Section):
    heads: PositiveInt = 8
    """Attention heads."""
    feedforward: PositiveInt = 2048
    """Hidden width of the feed-forward layer."""
    level: Literal[8, 16, 32] = 32
    """Stride of the pixel embedding that is read; 32 is the level that Mask2Former's first block reads."""
    masked_attention: bool = False
    """Let a proposal look only inside its own mask (ours; the paper's attention is unrestricted)."""
    task_queries: bool = True
    """One query per task; off: one query for all tasks (paper Table 7)."""


class InferenceConfig(Section):
    alpha: Share = 0.8
    """Only proposals with objectness above this are recognised."""
    overlap: Share = 0.8
    """A segment must keep this share of its own mask after the merge."""
    mask_threshold: Share = 0.5
    """Mask probability from which a pixel belongs to a proposal."""


_SIZES: dict[str, dict[str, Any]] = {
    # For 64 to 128 px on a CPU: about half a million weights, no download.
    "tiny": {
        "backbone": {"name": "test_resnet", "weights": "none"},
        "pixel_decoder": {"dim": 64, "layers": 1, "heads": 4, "points": 4, "feedforward": 128},
        "mask_decoder": {"num_queries": 16, "layers": 3, "heads": 4, "feedforward": 128},
        "class_decoder": {"heads": 4, "feedforward": 128, "level": 8, "masked_attention": True},
    },
    # For real photographs on a CPU.
    "small": {
        "backbone": {"name": "tf_efficientnet_lite0"},
        "pixel_decoder": {"dim": 128, "layers": 2, "heads": 8, "points": 4, "feedforward": 256},
        "mask_decoder": {"num_queries": 20, "layers": 6, "heads": 8, "feedforward": 512},
        "class_decoder": {"heads": 8, "feedforward": 512, "level": 16, "masked_attention": True},
    },
    "r50": {"backbone": {"name": "resnet50.tv_in1k"}},
    "r101": {"backbone": {"name": "resnet101.tv_in1k"}},
}


class ModelConfig(Section):
    size: Literal["tiny", "small", "r50", "r101"] = "r101"
    """Named size that fills every model field not given: r101 and r50 are the paper's."""
    backbone: BackboneConfig = BackboneConfig()
    pixel_decoder: PixelDecoderConfig = PixelDecoderConfig()
    mask_decoder: MaskDecoderConfig = MaskDecoderConfig()
    class_decoder: ClassDecoderConfig = ClassDecoderConfig()
    inference: InferenceConfig = InferenceConfig()

    @model_validator(mode="before")
    @classmethod
    def _fill_from_size(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        defaults = _SIZES.get(str(given.get("size", "r101")), {})
        given = {name: value.model_dump() if isinstance(value, Section) else value for name, value in given.items()}
        return merge(defaults, given)

    @model_validator(mode="after")
    def _check_divisible(self) -> ModelConfig:
        dim = self.pixel_decoder.dim
        if dim % 32:
            raise ValueError(f"pixel_decoder.dim is {dim} but GroupNorm needs a multiple of 32")
        heads = {
            "pixel_decoder": self.pixel_decoder.heads,
            "mask_decoder": self.mask_decoder.heads,
            "class_decoder": self.class_decoder.heads,
        }
        for name, number in heads.items():
            if dim % number:
                raise ValueError(f"{name}.heads is {number} but must divide pixel_decoder.dim = {dim}")
        return self


# --- losses (SPEC section 3) -----------------------------------------------------------------------------------------


class MatchingConfig(Section):
    bce: Weight = 5.0
    """Weight of the mask cross-entropy in the matching cost."""
    dice: Weight = 5.0
    """Weight of the dice distance in the matching cost."""
    objectness_cost: Weight = 0.0
    """Subtract this times the objectness from the cost (ours, SPEC section 9; the paper matches masks only)."""
    points: PositiveInt = 12544
    """Random points per image on which costs are computed."""


class MaskLossConfig(Section):
    points: PositiveInt = 12544
    """Points per mask on which the mask losses are computed."""
    oversample: Annotated[float, Field(ge=1.0)] = 3.0
    """Candidates drawn per point, from which the most uncertain are kept."""
    importance: Share = 0.75
    """Share of points chosen by uncertainty; the rest is uniform."""


class ClassificationConfig(Section):
    loss: Literal["focal", "cross_entropy"] = "focal"
    """Recognition loss over the current classes (paper Table 7)."""
    gamma: Weight = 2.0
    """Focusing strength of the focal loss."""
    negatives_for_new: bool = False
    """Old objects are negatives for the new classes (ours, SPEC section 9)."""
    negatives_for_old: bool = False
    """New objects are negatives for the old classes, in place of matched class distillation (ours, SPEC section 9)."""
    across_tasks: bool = False
    """Old and new classes compete in one softmax, as they do in a prediction (ours)."""


class DistillationConfig(Section):
    score: bool = True
    """Distil objectness scores (Eq. 3)."""
    mask: bool = True
    """Distil mask proposals (Eq. 4)."""
    position: bool = True
    """Distil positional embeddings (Eq. 5)."""
    unmatched_classes: bool = True
    """Distil class predictions of confident unmatched proposals."""
    matched_classes: bool = True
    """Distil class predictions of matched proposals."""
    auxiliary: bool = True
    """Auxiliary old-versus-new classifier (DER, DyTox)."""
    class_scores: Literal["softmax", "sigmoid"] = "softmax"
    """Distil the softmax over old classes (paper), or each class's own probability (ours): it sees all sink at once."""
    beta: Weight = 2.0
    """Strength of the objectness re-weighting of Eq. 4 and 5."""
    alpha: Share = 0.8
    """Old objectness from which an unmatched proposal counts as an old object."""
    spare_labelled: bool = False
    """Distil nothing from old proposals that lie on a labelled object: they take it for something else (ours)."""
    all_layers: bool = False
    """Distil objectness at every decoder layer, not only the last."""
    from_init: bool = True
    """With `init`, distil the objectness of that model in the first step, too (paper Table 4)."""

    @classmethod
    def none(cls) -> DistillationConfig:
        """Plain fine-tuning: nothing of the old model is kept."""
        return cls(
            score=False,
            mask=False,
            position=False,
            unmatched_classes=False,
            matched_classes=False,
            auxiliary=False,
            from_init=False,
        )


class LossWeights(Section):
    """Weights of the named terms; a distillation weight multiplies the weight of the loss that it mirrors."""

    objectness: Weight = 2.0
    """Objectness loss (Eq. 1); as for every weight, 0 switches the term off and skips its work."""
    no_object: Weight = 0.1
    """Weight of unmatched queries inside the objectness loss."""
    mask_bce: Weight = 5.0
    """Cross-entropy of matched masks (Eq. 1)."""
    mask_dice: Weight = 5.0
    """Dice loss of matched masks (Eq. 1)."""
    classification: Weight = 2.0
    """Recognition of matched proposals (Eq. 2)."""
    score_kd: Weight = 1.0
    """Objectness score distillation (Eq. 3), times `objectness`."""
    mask_kd: Weight = 1.0
    """Mask distillation (Eq. 4), times `mask_bce` and `mask_dice`."""
    position_kd: Weight = 1.0
    """Positional embedding distillation (Eq. 5)."""
    unmatched_class_kd: Weight = 1.0
    """Class distillation of old objects, times `classification`."""
    matched_class_kd: Weight = 1.0
    """Class distillation of new objects, times `classification`."""
    auxiliary: Weight = 0.1
    """Auxiliary old-versus-new loss."""
    negatives_for_new: Weight = 1.0
    """Old objects as negatives for new classes (ours), times `classification`."""
    negatives_for_old: Weight = 1.0
    """New objects as negatives for old classes (ours), times `classification`."""
    across_tasks: Weight = 1.0
    """Old and new classes against each other (ours), times `classification`."""


class LossConfig(Section):
    matching: MatchingConfig = MatchingConfig()
    masks: MaskLossConfig = MaskLossConfig()
    classification: ClassificationConfig = ClassificationConfig()
    distillation: DistillationConfig = DistillationConfig()
    weights: LossWeights = LossWeights()


# --- the run ---------------------------------------------------------------------------------------------------------


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
    """shapes, voc, ade20k, coco, folder (images/ and masks/) or coco_json (COCO's instance format)."""
    root: str | None = None
    """Folder of the dataset; not needed for shapes."""
    coco_labels: Literal["auto", "panoptic", "instances"] = "auto"
    """Labels of coco: panoptic PNGs (133 classes) or instance JSON (80); auto takes panoptic where it is there."""
    without: tuple[str, ...] = ()
    """Classes to take out of coco or coco_json, by name; 'voc' stands for the 20 of VOC (paper Table 4)."""
    without_removes: Literal["objects", "images"] = "objects"
    """What goes with `without`: objects, whose pixels become background (the paper's), or images that show one."""
    train_json: str | None = None
    """Annotation file of coco_json, relative to root; by default the first of the usual places."""
    val_json: str | None = None
    """Validation annotation file of coco_json, relative to root; without one a share is held out."""
    held_out: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    """Share of images for validation where folder or coco_json has no validation split; names decide which."""
    crop: PositiveInt = 512
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
    """SSD colour distortion."""
    train_images: PositiveInt = 2000
    """Training images of a generated dataset (shapes)."""
    val_images: PositiveInt = 300
    """Validation images of a generated dataset (shapes)."""
    image_size: PositiveInt = 64
    """Image side of a generated dataset (shapes), 64 to 128."""
    seed: int = 0
    """Seed of a generated dataset (shapes): which images exist, apart from the training seed."""
    masks: Literal["semantic", "instance"] = "semantic"
    """One target mask per class present, or per object where the dataset knows objects."""
    workers: Annotated[int, Field(ge=0)] = 2
    """Loader processes per training process."""

    @field_validator("without", mode="before")
    @classmethod
    def _one_name(cls, given: Any) -> Any:
        return (given,) if isinstance(given, str) else given

    @model_validator(mode="after")
    def _check_without(self) -> DataConfig:
        if self.without and self.dataset not in ("coco", "coco_json"):
            raise ValueError(f"without takes classes out of coco and coco_json only, but dataset is {self.dataset}")
        return self


class TrainingConfig(Section):
    iterations: PositiveInt = 20000
    """Iterations of the first step."""
    iterations_per_class: PositiveInt = 1000
    """Iterations per new class of every later step."""
    batch_size: PositiveInt = 16
    """Images per iteration over all devices."""
    accumulate: PositiveInt = 1
    """Split the batch into this many parts whose gradients are added up; each has its own BatchNorm statistics."""
    learning_rate: PositiveFloat = 1e-4
    """Learning rate of the first step."""
    later_learning_rate: PositiveFloat = 5e-5
    """Learning rate of later steps."""
    backbone_factor: Weight = 0.1
    """Learning-rate factor of the backbone."""
    later_backbone_factor: Weight | None = None
    """Learning-rate factor of the backbone in later steps; by default as in the first."""
    weight_decay: Weight = 0.05
    """AdamW weight decay (none on norms and embeddings)."""
    clip: Weight = 0.01
    """Gradient norm limit of the whole model; 0 switches clipping off."""
    warmup: Annotated[int, Field(ge=0)] = 0
    """Iterations of linear warm-up at the start of each step."""
    power: Weight = 0.9
    """Power of the polynomial schedule."""
    freeze_batch_norm_later: bool = True
    """Keep the backbone's BatchNorm statistics fixed after the first step."""
    sync_batch_norm: bool = True
    """BatchNorm statistics over all devices, so that results do not depend on their number."""
    devices: PositiveInt = 1
    """Devices per node."""
    nodes: PositiveInt = 1
    """Nodes."""
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Kind of device."""
    strategy: str = "auto"
    """lightning-fabric strategy, such as ddp."""
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    """Numeric precision."""
    log_every: PositiveInt = 50
    """Iterations between log lines."""
    checkpoint_every: PositiveInt = 500
    """Iterations between checkpoints."""

    @model_validator(mode="after")
    def _check_split(self) -> TrainingConfig:
        parts = self.devices * self.nodes * self.accumulate
        if self.batch_size % parts:
            raise ValueError(
                f"batch_size is {self.batch_size} but must be a multiple of devices x nodes x accumulate = {parts}"
            )
        return self


class EvaluationConfig(Section):
    batch_size: PositiveInt = 1
    """Images per forward pass at evaluation."""
    convention: Literal["paper", "no_background_in_base", "future_ignored", "no_background"] = "paper"
    """Which convention the headline numbers follow; all are in results.json."""


class RunConfig(Section):
    """One continual run: what `config.yaml` in a run directory holds."""

    method: Literal["comastre", "finetune", "joint", "objectness"] = "comastre"
    """How old knowledge is kept; joint learns all classes at once, objectness stage 1 alone (paper Table 4)."""
    init: str | None = None
    """A run or a model bundle whose stage 1 the first step starts from (paper Table 4); stage 2 starts afresh."""
    seed: int = 0
    """Seed of weights, order, augmentation and points."""
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    continual: ContinualConfig = ContinualConfig()
    matching: MatchingConfig = MatchingConfig()
    masks: MaskLossConfig = MaskLossConfig()
    classification: ClassificationConfig = ClassificationConfig()
    distillation: DistillationConfig = DistillationConfig()
    weights: LossWeights = LossWeights()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    @property
    def loss(self) -> LossConfig:
        """The sections that the losses need, as one value."""
        return LossConfig(
            matching=self.matching,
            masks=self.masks,
            classification=self.classification,
            distillation=self.distillation,
            weights=self.weights,
        )
