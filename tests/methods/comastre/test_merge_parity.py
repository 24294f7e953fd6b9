"""The merge decides as Mask2Former's does, on smooth random masks; the peer is transformers.

transformers differs from the released Mask2Former in two details, which these tests keep apart. It multiplies the masks
by their scores before it looks which pixels lie in a mask: there is no difference where every score is 1. And a segment
gets all pixels that it wins, also those outside its own mask, which Mask2Former leaves to nobody.
"""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from comastre.methods.comastre.config import InferenceConfig
from comastre.methods.comastre.inference import merge

CASES = 300
SIDE = 384  # to which transformers brings all masks


def smooth_masks(generator: torch.Generator, number: int) -> Tensor:
    """Mask logits (N, 12, 12) of blobs that overlap."""
    coarse = 4 * torch.randn(1, number, 4, 4, generator=generator) - 1
    return F.interpolate(coarse, size=(12, 12), mode="bicubic", align_corners=False)[0]


def labels_of(result: dict) -> Tensor:  # type: ignore[type-arg]
    """The label map (H, W) of transformers' segments: 0 where there is none."""
    labels = torch.zeros(result["segmentation"].shape, dtype=torch.long)
    for segment in result["segments_info"]:
        labels[result["segmentation"] == segment["id"]] = segment["label_id"] + 1
    return labels


def test_label_maps_are_those_of_transformers() -> None:
    processing = pytest.importorskip("transformers.models.mask2former.image_processing_mask2former")
    processor = processing.Mask2FormerImageProcessor()
    generator = torch.Generator().manual_seed(0)
    seen_segments = differences = 0
    for _ in range(CASES):
        number, classes = int(torch.randint(1, 9, (), generator=generator)), 5
        size = (int(torch.randint(8, 40, (), generator=generator)), int(torch.randint(8, 40, (), generator=generator)))
        mask_threshold = float(torch.rand((), generator=generator)) * 0.4 + 0.3
        overlap = float(torch.rand((), generator=generator))
        logits = smooth_masks(generator, number)
        chosen = torch.randint(0, classes, (number,), generator=generator)
        one_hot = F.one_hot(chosen, classes + 1).float()  # the last is "no object"
        outputs = SimpleNamespace(class_queries_logits=200.0 * one_hot[None], masks_queries_logits=logits[None])
        (theirs,) = processor.post_process_panoptic_segmentation(
            outputs, 0.5, mask_threshold, overlap, set(), target_sizes=[size]
        )
        # It resizes probabilities to the target, we resize logits: hand over what it has after that.
        at_384 = F.interpolate(logits[None], size=(SIDE, SIDE), mode="bilinear", align_corners=False).sigmoid()
        probabilities = F.interpolate(at_384, size=size, mode="bilinear", align_corners=False)[0]  # (N, H, W)
        settings = InferenceConfig(alpha=0.5, overlap=overlap, mask_threshold=mask_threshold)
        ours = merge(probabilities.double().logit(), torch.ones(number), one_hot[:, :classes], size, settings)
        inside = probabilities.max(dim=0).values >= mask_threshold
        assert torch.equal(ours.label_map, torch.where(inside, labels_of(theirs), 0))
        strict = settings.model_copy(update={"merge": "strict"})
        stricter = merge(probabilities.double().logit(), torch.ones(number), one_hot[:, :classes], size, strict)
        seen_segments += len(ours.segments)
        differences += not torch.equal(ours.label_map, stricter.label_map)
    assert seen_segments > CASES and differences > CASES // 10  # the cases are such that a rule can be told by them


def test_the_same_segments_are_kept_where_scores_differ() -> None:
    processing = pytest.importorskip("transformers.models.mask2former.image_processing_mask2former")
    generator = torch.Generator().manual_seed(1)
    kept = dropped = 0
    for _ in range(CASES):
        number = int(torch.randint(2, 9, (), generator=generator))
        probabilities = smooth_masks(generator, number).sigmoid()
        scores = 0.5 + 0.5 * torch.rand(number, generator=generator)
        settings = InferenceConfig(alpha=0.0, overlap=float(torch.rand((), generator=generator)))
        ours = merge(probabilities.double().logit(), torch.ones(number), scores[:, None], (12, 12), settings)
        winner = (probabilities * scores[:, None, None]).argmax(dim=0)
        expected = torch.zeros(12, 12, dtype=torch.bool)
        for query in range(number):
            exists, won = processing.check_segment_validity(winner, probabilities, query, 0.5, settings.overlap)
            mine = won & (probabilities[query] >= 0.5)
            expected |= mine & bool(exists)
            kept, dropped = kept + bool(exists), dropped + (not exists)
        assert torch.equal(ours.label_map > 0, expected)
    assert kept > CASES and dropped > CASES
