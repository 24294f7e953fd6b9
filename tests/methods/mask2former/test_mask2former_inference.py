"""Both styles of inference: against transformers' post-processing, and by hand."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from comastre.methods.mask2former.config import QueryInferenceConfig
from comastre.methods.mask2former.inference import label
from comastre.methods.merge import merge_masks
from comastre.segmentation import Frame

SIDE = 384  # to which transformers brings all masks
CLASSES = 3


def random_queries(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Mask logits (N, 12, 12) of blobs that overlap, and class logits (N, C + 1)."""
    number = int(torch.randint(2, 10, (), generator=generator))
    coarse = 4 * torch.randn(1, number, 4, 4, generator=generator)
    masks = F.interpolate(coarse, size=(12, 12), mode="bicubic", align_corners=False)[0]
    return masks, 3 * torch.randn(number, CLASSES + 1, generator=generator)


def test_panoptic_equals_transformers_post_processing() -> None:
    processing = pytest.importorskip("transformers.models.mask2former.image_processing_mask2former")
    processor = processing.Mask2FormerImageProcessor()
    generator = torch.Generator().manual_seed(0)
    compared = fused = 0
    for _ in range(40):
        masks, classes = random_queries(generator)
        outputs = SimpleNamespace(class_queries_logits=classes[None], masks_queries_logits=masks[None])
        (theirs,) = processor.post_process_panoptic_segmentation(outputs, 0.5, 0.5, 0.6, {0, 2})
        infos = theirs["segments_info"]
        # Where a class is fused, transformers goes on counting from its number and may give one twice: no comparison.
        numbers = {(info["id"], info["label_id"]) for info in infos}
        if len(numbers) != len({number for number, _ in numbers}):
            continue
        settings = QueryInferenceConfig(score=0.5, merge="transformers", overlap=0.6, stuff=(0, 2))
        ours = label(masks, classes, (SIDE, SIDE), settings)
        assert torch.equal(ours.segment_map, theirs["segmentation"].long().clamp(min=0))
        assert {(each.number, each.class_index) for each in ours.segments} == numbers
        assert sum(each.area for each in ours.segments) == int((ours.segment_map > 0).sum())
        compared, fused = compared + 1, fused + (len(infos) > len(numbers))
    assert compared > 20 and fused > 3


def test_semantic_equals_transformers_post_processing() -> None:
    processing = pytest.importorskip("transformers.models.mask2former.image_processing_mask2former")
    processor = processing.Mask2FormerImageProcessor()
    masks, classes = random_queries(torch.Generator().manual_seed(1))
    outputs = SimpleNamespace(class_queries_logits=classes[None], masks_queries_logits=masks[None])
    (theirs,) = processor.post_process_semantic_segmentation(outputs)
    ours = label(masks, classes, (SIDE, SIDE), QueryInferenceConfig(style="semantic"))
    assert torch.equal(ours.label_map, theirs.long() + 1)
    assert sum(each.area for each in ours.segments) == SIDE * SIDE  # dense: nothing is left over


def test_a_stuff_class_is_one_segment_and_a_thing_is_not() -> None:
    masks = torch.zeros(4, 2, 4)
    for query in range(4):
        masks[query, :, query] = 1.0
    scores, classes = torch.tensor([0.9, 0.6, 0.7, 0.8]), torch.tensor([1, 0, 0, 1])
    rule = QueryInferenceConfig()
    merged = merge_masks(masks, scores, classes, torch.arange(4), rule, stuff=(0,))
    assert merged.label_map[0].tolist() == [2, 1, 1, 2]
    assert merged.segment_map[0].tolist() == [1, 2, 2, 3]
    assert [(each.number, each.area, each.query) for each in merged.segments] == [(1, 2, 0), (2, 4, 2), (3, 2, 3)]
    assert merged.segments[1].score == pytest.approx(0.7)


def test_softmax_masks_share_each_pixel() -> None:
    masks = torch.tensor([[[2.0, 2.0]], [[3.0, -3.0]]])  # both above one half as sigmoids at the first pixel
    classes = torch.tensor([[9.0, 0.0, 0.0], [0.0, 9.0, 0.0]])
    settings = QueryInferenceConfig(merge="strict", overlap=0.0)
    found = label(masks, classes, (1, 2), settings, softmax=True)
    assert found.label_map.tolist() == [[2, 1]]
    assert found.proposals is not None
    assert found.proposals.masks().tolist() == [[[False, True]], [[True, False]]]


@pytest.mark.parametrize("softmax", [False, True])
def test_an_image_of_nothing_is_background(softmax: bool) -> None:
    classes = torch.tensor([[0.0, 0.0, 9.0], [1.0, 0.9, 0.9]])  # nothing, and not sure enough
    found = label(torch.randn(2, 4, 4), classes, (16, 12), QueryInferenceConfig(), Frame((16, 16), (16, 12)), softmax)
    assert found.segments == () and not found.label_map.any() and found.segment_map.shape == (16, 12)
    assert found.proposals is not None and found.proposals.masks().shape == (2, 16, 12)
