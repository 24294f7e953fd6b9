"""What the loss terms of one batch share: both models' proposals, their assignment, and what sums are divided by."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from comastre.data.targets import Targets
from comastre.distributed import average_over_processes
from comastre.losses.matching import Assignment, assign, matching_costs, on_labelled
from comastre.losses.objectness import objectness_normaliser
from comastre.losses.points import PointCounts, PointSource
from comastre.methods.comastre.config import LossConfig
from comastre.methods.comastre.segmenter import Segmenter
from comastre.methods.comastre.terms import Switches
from comastre.nets.outputs import Proposals, StageOne
from comastre.nets.precision import upcast

MOST_UNLABELLED = 8
"""Proposals of an image that show recognition what it has no name for: the surest, since they weigh by that."""


@dataclass(frozen=True)
class StepInputs:
    """What the losses of one batch are computed from."""

    model: Segmenter
    old_model: Segmenter | None
    images: Tensor
    """(B, 3, H, W)."""
    padding: Tensor | None
    """(B, H, W) bool, true outside an image of a mixed batch."""
    targets: Targets
    points: PointSource
    config: LossConfig
    labelled_old: tuple[int, ...] = ()
    """Places, in learning order, of past classes that the data labels too; other past classes look like background."""
    begin_alike: bool = False
    """Whether both backbones make the same of images in those first layers that stand still."""
    ignored: Tensor | None = None
    """(B, H, W) bool: pixels of which the labels say nothing; None where there are none."""


@dataclass(frozen=True)
class Learner:
    """A model, with what its stage 1 gave for the batch."""

    model: Segmenter
    stage_one: StageOne


@dataclass(frozen=True)
class Rows:
    """Some queries of each image, padded to the same number."""

    query: Tensor
    """(B, U) long; 0 in padding."""
    valid: Tensor
    """(B, U) bool."""
    count: int
    """Valid rows, known on the host."""


@dataclass(frozen=True)
class Unlabelled:
    """The surest proposals of each image that lie on nothing labelled."""

    query: Tensor
    """(B, U) long."""
    sureness: Tensor
    """(B, U): their objectness, without gradient; 0 where a proposal lies on something labelled after all."""


@dataclass(frozen=True)
class Normalisers:
    """What the terms divide by: counts known on the host, averaged over processes by one reduction."""

    masks: Tensor
    objectness: Tensor
    matched: Tensor
    unmatched: Tensor
    images_with_unmatched: Tensor
    old_objects: Tensor
    recognised: Tensor


@dataclass(frozen=True)
class Step:
    """Everything that a term may look at."""

    new: Learner
    old: Learner | None
    """None at the first task, and where no term asks for it."""
    targets: Targets
    assignment: Assignment
    old_objects: Rows
    """Unmatched queries that the old model is sure of."""
    unlabelled: Unlabelled | None
    """None where no term looks at them."""
    spared: Tensor | None
    """(B, N) bool: queries from which nothing is distilled; None where there are none."""
    candidates: Tensor
    """(B, C, 2) points of which a mask loss keeps the most uncertain."""
    uniform: Tensor
    """(B, U, 2) points that it takes as they are."""
    normalisers: Normalisers
    config: LossConfig
    switches: Switches
    labelled_old: tuple[int, ...]
    """Classes of earlier tasks whose labels are learned, too."""

    @property
    def num_old(self) -> int:
        """Classes of all tasks but the newest."""
        return self.new.model.num_classes - self.new.model.tasks[-1]


def prepare(inputs: StepInputs) -> Step:
    """Run stage 1 of both models, the old one only if a term needs it, and match proposals with masks."""
    model, old_model, config, targets = inputs.model, inputs.old_model, inputs.config, inputs.targets
    images, padding, points = inputs.images, inputs.padding, inputs.points
    switches = Switches.of(config, later=len(model.tasks) > 1, with_old_model=old_model is not None)
    begun = model.backbone.begin(images, padding)
    new = Learner(model, model.propose(images, padding, begun=begun))
    old = None
    if old_model is not None and switches.old_model:
        shared = begun if inputs.begin_alike else None
        with torch.no_grad():
            of_old = old_model.propose(images, padding, config.distillation.all_layers, shared)
        old = Learner(old_model, of_old)

    places = points.draw(config.matching.points)
    costs = matching_costs(new.stage_one.layers, targets, places, config.matching)
    # The old scores travel with the costs: one copy to the host for the whole step.
    old_scores = spared = None
    if old is not None:
        old_scores = old.stage_one.final.objectness_logits.sigmoid()
        if config.distillation.spare_labelled:
            spared = on_labelled(old.stage_one.final, targets, places)
            old_scores = old_scores.masked_fill(spared, 0.0)
    assignment = assign(costs, targets, old_scores)
    old_objects = _find_old_objects(assignment, config.distillation.alpha if switches.old_objects else None)
    counts = PointCounts.of(config.masks)
    return Step(
        new=new,
        old=old,
        targets=targets,
        assignment=assignment,
        old_objects=old_objects,
        unlabelled=_find_unlabelled(new.stage_one.final, inputs, assignment, places)
        if switches.computes("unlabelled_negatives")
        else None,
        spared=spared,
        candidates=points.draw(counts.candidates),
        uniform=points.draw(counts.uniform),
        normalisers=_normalise(assignment, targets, old_objects, config.weights.no_object),
        config=config,
        switches=switches,
        labelled_old=inputs.labelled_old,
    )


def _find_old_objects(assignment: Assignment, alpha: float | None) -> Rows:
    """Unmatched queries with an old score above `alpha` (none for None), found on the host, which has the scores."""
    matched = assignment.matched_on_host[-1]  # (B, N)
    if alpha is None or assignment.extra is None:
        chosen = torch.zeros_like(matched)
    else:
        chosen = ~matched & (assignment.extra > alpha)
    # Where no image has a mask, one row of padding is kept: resizing the masks of zero rows is an error in torch.
    most = max(int(chosen.sum(dim=1).max()), int(assignment.query.shape[2] == 0))
    query = chosen.to(torch.uint8).topk(most, dim=1).indices  # (B, U), the chosen ones first
    valid = chosen.gather(1, query)
    device = assignment.query.device
    query = torch.where(valid, query, 0)
    return Rows(query.to(device, non_blocking=True), valid.to(device, non_blocking=True), int(valid.sum()))


@torch.no_grad()
def _find_unlabelled(proposals: Proposals, inputs: StepInputs, assignment: Assignment, places: Tensor) -> Unlabelled:
    """A fixed number of queries, so that nothing has to be counted on the host; the sureness tells which of them do."""
    taken = assignment.matched[-1] | on_labelled(proposals, inputs.targets, places, inputs.ignored)
    sureness = upcast(proposals.objectness_logits).sigmoid().masked_fill(taken, 0.0)  # (B, N)
    sureness, query = sureness.topk(min(MOST_UNLABELLED, sureness.shape[1]), dim=1)
    return Unlabelled(query, sureness)


def _normalise(assignment: Assignment, targets: Targets, old_objects: Rows, no_object: float) -> Normalisers:
    matched = assignment.matched_on_host[-1]  # (B, N)
    counts = torch.tensor(
        [
            float(sum(targets.counts)),
            objectness_normaliser(targets.counts, assignment.num_queries, no_object),
            float(matched.sum()),
            float((~matched).sum()),
            float((~matched).any(dim=1).sum()),
            float(old_objects.count),
            float(matched.sum()) + old_objects.count,
        ]
    )
    # Mask2Former never divides the mask losses by less than one; the other sums are zero where their count is.
    floors = torch.tensor([1.0, *[1e-6] * (len(counts) - 1)])
    device = assignment.query.device
    averaged = average_over_processes(counts.to(device, non_blocking=True))
    return Normalisers(*torch.maximum(averaged, floors.to(device, non_blocking=True)))
