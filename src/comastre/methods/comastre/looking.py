"""One look at images: what the masks of each class look like, and what proposals that show none of them look like."""

from __future__ import annotations

import torch
from torch import Tensor

from comastre.data.dataset import IGNORE
from comastre.methods.class_statistics import NOTHING, Sums, on_labelled
from comastre.methods.comastre.inference import recognise_confident
from comastre.methods.comastre.segmenter import Segmenter
from comastre.methods.features_in_masks import LEVELS
from comastre.methods.protocol import Batches
from comastre.nets.outputs import StageOne
from comastre.stream.loading import Batch


@torch.no_grad()
def look(model: Segmenter, images: Batches, by_itself: bool) -> Sums:
    """Sums over labelled objects, and over proposals beside them, which are nothing.

    `by_itself`, what the model recognises among those is a sample of its old classes.
    """
    sums = Sums.zeros(model.num_classes, LEVELS * model.config.pixel_decoder.dim)
    training = model.training
    model.eval()
    for batch in images():
        stage_one = model.propose(batch.images, batch.padding, every_layer=False)
        masks, known = _at_mask_size(batch, stage_one)
        labelled, seen = model.look_at(stage_one.pixels, masks)
        sums.add(labelled[seen], batch.targets.labels[seen])
        proposed, seen = model.look_at(stage_one.pixels, stage_one.final.mask_logits >= 0)
        seen &= ~_on_labelled(batch, stage_one, masks, known)  # those, the labels themselves speak of
        taken_for = torch.full(seen.shape, NOTHING, device=seen.device)
        if by_itself:
            _, trained = recognise_confident(model, stage_one)
            probability, recognised = trained.max(dim=-1)
            taken_for = torch.where(probability > 0, recognised, taken_for)
        sums.add(proposed[seen], taken_for[seen])
    model.train(training)
    return sums.over_processes(next(model.parameters()).device)


def _at_mask_size(batch: Batch, stage_one: StageOne) -> tuple[Tensor, Tensor]:
    """The labelled masks (B, G, h, w) as coarse as proposals are, and where anything is known (B, h, w)."""
    stride = batch.images.shape[-1] // stage_one.final.mask_logits.shape[-1]
    centres = slice(stride // 2, None, stride)
    return batch.targets.masks[:, :, centres, centres], (batch.labels != IGNORE)[:, centres, centres]


def _on_labelled(batch: Batch, stage_one: StageOne, masks: Tensor, known: Tensor) -> Tensor:
    """(B, N) bool: whether a proposal shows a labelled object."""
    proposed = stage_one.final.mask_logits >= 0
    rows = enumerate(batch.targets.counts)
    return torch.stack([on_labelled(proposed[row], masks[row, :count], known[row]) for row, count in rows])
