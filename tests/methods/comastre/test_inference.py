"""The merge gives every pixel to the right proposal, and inference does not depend on the rest of the batch."""

from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from comastre.methods.comastre.config import InferenceConfig, ModelConfig
from comastre.methods.comastre.inference import merge
from comastre.methods.comastre.segmenter import Segmenter, build_segmenter
from comastre.segmentation import Frame, ProposedMasks, Segmentation

DEFAULTS = InferenceConfig()


def logits_of(*rows: str) -> Tensor:
    """Masks of a one-row image, one string per proposal: '#' is sure, '+' is likely, '.' is outside."""
    values = {"#": 9.0, "+": 1.0, ".": -9.0}
    return torch.tensor([[[values[mark] for mark in row]] for row in rows])


def one_class_each(count: int, probability: float = 0.9) -> Tensor:
    return torch.eye(count) * probability


def slow_merge(
    masks: Tensor, objectness: Tensor, class_scores: Tensor, config: InferenceConfig
) -> tuple[list[list[int]], list[list[int]], list[tuple[int, int, int]]]:
    """The merge a pixel at a time (docs/specification.md, Merge): both maps, (query, class, area) of each segment."""
    number, height, width = masks.shape
    confident = [query for query in range(number) if objectness[query] > config.alpha]
    score = {query: objectness[query] * class_scores[query].max() for query in confident}
    taken: dict[int, list[tuple[int, int]]] = {query: [] for query in confident}
    won = dict.fromkeys(confident, 0)
    for row in range(height):
        for column in range(width):
            best = None
            for query in confident:
                value = masks[query, row, column] * score[query]
                if best is None or value > masks[best, row, column] * score[best]:
                    best = query
            if best is None:
                continue
            inside = bool(masks[best, row, column] >= config.mask_threshold)
            if inside:
                taken[best].append((row, column))
            won[best] += inside or config.merge == "mask2former"
    labels = [[0] * width for _ in range(height)]
    numbers = [[0] * width for _ in range(height)]
    segments = []
    for query in confident:
        own = int((masks[query] >= config.mask_threshold).sum())
        if taken[query] and won[query] / own >= config.overlap:
            recognised = class_scores[query].tolist()
            index = recognised.index(max(recognised))
            segments.append((query, index, len(taken[query])))
            for row, column in taken[query]:
                labels[row][column] = index + 1
                numbers[row][column] = len(segments)
    return labels, numbers, segments


def proposals_of(found: Segmentation) -> ProposedMasks:
    assert found.proposals is not None
    return found.proposals


def summary(found: Segmentation) -> tuple[list[list[int]], list[list[int]], list[tuple[int, int, int]]]:
    segments = [(each.query, each.class_index, each.area) for each in found.segments]
    return found.label_map.tolist(), found.segment_map.tolist(), segments


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    number=st.integers(1, 12),
    height=st.integers(1, 6),
    width=st.integers(1, 6),
    classes=st.integers(1, 4),
    levels=st.sampled_from([3, 5, 1000]),
    overlap=st.sampled_from([0.0, 0.3, 0.5, 0.8, 1.0]),
    alpha=st.sampled_from([0.0, 0.5, 0.8]),
    rule=st.sampled_from(["mask2former", "strict"]),
)
def test_merge_equals_a_loop_over_pixels(
    seed: int,
    number: int,
    height: int,
    width: int,
    classes: int,
    levels: int,
    overlap: float,
    alpha: float,
    rule: Literal["mask2former", "strict"],
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:  # few levels make ties common
        return torch.randint(0, levels + 1, shape, generator=generator) / levels

    config = InferenceConfig(alpha=alpha, overlap=overlap, merge=rule)
    logits, objectness, class_scores = 4 * draw(number, height, width) - 2, draw(number), draw(number, classes)
    found = merge(logits, objectness, class_scores, (height, width), config)
    assert summary(found) == slow_merge(logits.sigmoid(), objectness, class_scores, config)


def test_the_better_of_two_overlapping_proposals_takes_the_pixels_and_the_other_keeps_the_rest() -> None:
    found = merge(logits_of("#####.", "....##"), torch.tensor([0.85, 0.95]), one_class_each(2), (1, 6), DEFAULTS)
    assert found.label_map.tolist() == [[1, 1, 1, 1, 2, 2]]  # 4 of 5 pixels are exactly the share that is needed
    assert [(each.query, each.class_index, each.area) for each in found.segments] == [(0, 0, 4), (1, 1, 2)]
    assert [each.score for each in found.segments] == pytest.approx([0.85 * 0.9, 0.95 * 0.9])


def test_a_segment_that_keeps_too_little_of_its_mask_is_dropped_and_its_pixels_are_background() -> None:
    found = merge(logits_of("####..", "...###"), torch.tensor([0.85, 0.95]), one_class_each(2), (1, 6), DEFAULTS)
    assert found.label_map.tolist() == [[0, 0, 0, 2, 2, 2]]  # 3 of 4 pixels
    assert found.segment_map.tolist() == [[0, 0, 0, 1, 1, 1]]
    assert [each.query for each in found.segments] == [1]
    lenient = InferenceConfig(overlap=0.75)
    kept = merge(logits_of("####..", "...###"), torch.tensor([0.85, 0.95]), one_class_each(2), (1, 6), lenient)
    assert kept.label_map.tolist() == [[1, 1, 1, 2, 2, 2]]


def test_what_is_won_outside_the_own_mask_counts_for_mask2former_only() -> None:
    # The first proposal loses 2 of its 4 pixels, and is the likelier of two unlikely ones on 3 others.
    logits = torch.tensor([[[9.0, 9.0, 9.0, 9.0, -1.0, -1.0, -1.0]], [[-9.0, -9.0, 9.0, 9.0, -2.0, -2.0, -2.0]]])
    objectness = torch.tensor([0.85, 0.95])
    found = {
        rule: merge(logits, objectness, one_class_each(2), (1, 7), InferenceConfig(merge=rule)).label_map.tolist()
        for rule in ("mask2former", "strict")
    }
    assert found == {"mask2former": [[1, 1, 2, 2, 0, 0, 0]], "strict": [[0, 0, 2, 2, 0, 0, 0]]}


@pytest.mark.parametrize(("overlap", "kept"), [(0.7, 7), (0.6, 3), (0.3, 3), (0.9, 9), (0.1, 1)])
def test_exactly_the_needed_share_is_enough(overlap: float, kept: int) -> None:
    whole = 5 if overlap == 0.6 else 10
    lost = whole - kept
    logits = logits_of("#" * whole, "." * kept + "#" * lost) if lost else logits_of("#" * whole)
    scores = torch.tensor([0.85, 0.95][: len(logits)])
    config = InferenceConfig(overlap=overlap)
    found = merge(logits, scores, one_class_each(len(logits)), (1, whole), config)
    assert found.segments[0].area == kept


def test_of_equal_proposals_the_first_wins() -> None:
    logits = logits_of("####", "####", "####")
    for _ in range(3):
        found = merge(logits, torch.full((3,), 0.9), one_class_each(3), (1, 4), DEFAULTS)
        assert found.label_map.tolist() == [[1, 1, 1, 1]]
        assert [each.query for each in found.segments] == [0]
    tied_classes = merge(logits[:1], torch.tensor([0.9]), torch.tensor([[0.2, 0.7, 0.7]]), (1, 4), DEFAULTS)
    assert tied_classes.label_map.tolist() == [[2, 2, 2, 2]]


def test_a_pixel_outside_its_winners_mask_is_background() -> None:
    found = merge(torch.tensor([[[9.0, -0.1]]]), torch.tensor([0.9]), one_class_each(1), (1, 2), DEFAULTS)
    assert found.label_map.tolist() == [[1, 0]]
    on_the_threshold = merge(torch.tensor([[[9.0, 0.0]]]), torch.tensor([0.9]), one_class_each(1), (1, 2), DEFAULTS)
    assert on_the_threshold.label_map.tolist() == [[1, 1]]


def test_a_winner_is_chosen_by_score_times_mask() -> None:
    # 0.9 * 0.9 * sigmoid(1) = 0.592 loses to 0.85 * 0.9 * sigmoid(9) = 0.765; between '#' and '#' the score decides.
    found = merge(
        logits_of("+#", "##"), torch.tensor([0.9, 0.85]), one_class_each(2), (1, 2), InferenceConfig(overlap=0)
    )
    assert found.label_map.tolist() == [[2, 1]]


@pytest.mark.parametrize("objectness", [0.0, 0.5, 0.8])
def test_nothing_above_alpha_is_all_background(objectness: float) -> None:
    found = merge(logits_of("###", "#.."), torch.full((2,), objectness), one_class_each(2), (1, 3), DEFAULTS)
    assert found.label_map.tolist() == [[0, 0, 0]]
    assert found.segments == ()
    assert proposals_of(found).masks().sum(dim=(1, 2)).tolist() == [3, 1]  # proposals stay available
    just_above = torch.nextafter(torch.full((2,), 0.8), torch.ones(2))
    assert merge(logits_of("###", "#.."), just_above, one_class_each(2), (1, 3), DEFAULTS).segments


def test_more_proposals_than_pixels() -> None:
    objectness = torch.linspace(0.81, 0.99, 50)
    found = merge(torch.full((50, 1, 2), 9.0), objectness, one_class_each(50), (1, 2), DEFAULTS)
    assert found.label_map.tolist() == [[50, 50]]
    assert [(each.query, each.area) for each in found.segments] == [(49, 2)]


def test_an_image_of_one_pixel() -> None:
    found = merge(torch.tensor([[[9.0]]]), torch.tensor([0.9]), torch.tensor([[0.1, 0.6]]), (1, 1), DEFAULTS)
    assert found.label_map.tolist() == [[2]]
    assert found.segments[0].area == 1


def test_without_classes_everything_is_background() -> None:
    found = merge(logits_of("##"), torch.tensor([0.9]), torch.zeros(1, 0), (1, 2), DEFAULTS)
    assert found.label_map.tolist() == [[0, 0]]
    assert found.segments == ()


def test_two_proposals_of_one_class_are_two_segments() -> None:
    class_scores = torch.tensor([[0.1, 0.9], [0.2, 0.8]])
    found = merge(logits_of("##..", "..##"), torch.tensor([0.9, 0.95]), class_scores, (1, 4), DEFAULTS)
    assert found.label_map.tolist() == [[2, 2, 2, 2]]
    assert found.segment_map.tolist() == [[1, 1, 2, 2]]
    assert [each.class_index for each in found.segments] == [1, 1]


def test_masks_go_up_to_the_padded_input_then_are_cut_then_go_to_the_original_size() -> None:
    logits = torch.randn(5, 6, 8, generator=torch.Generator().manual_seed(0)) * 3
    frame = Frame(padded=(24, 32), content=(17, 30))
    config = InferenceConfig(alpha=0.0, overlap=0.0)
    found = merge(logits, torch.full((5,), 0.9), one_class_each(5), (40, 51), config, frame)
    full = F.interpolate(logits[None], size=(24, 32), mode="bilinear", align_corners=False)
    cut = full[..., :17, :30]
    original = F.interpolate(cut, size=(40, 51), mode="bilinear", align_corners=False)[0]
    proposals = proposals_of(found)
    assert torch.equal(proposals.masks(), original.sigmoid() >= 0.5)
    expected = slow_merge(original.sigmoid(), proposals.objectness, proposals.class_scores, config)
    assert summary(found) == expected


# --- segment: a whole model ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model() -> Segmenter:
    """A random tiny model whose proposals are confident about half of the time and never nearly tied."""
    torch.manual_seed(0)
    config = ModelConfig.model_validate({"size": "tiny", "inference": {"alpha": 0.5, "overlap": 0.1}})
    built = build_segmenter(config, [3, 2])
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if name.startswith(("mask_decoder", "class_decoder")) and parameter.dim() > 1:
                parameter.mul_(1.5)
        head = built.mask_decoder.objectness_head
        head.weight.mul_(4)
        typical = built.eval().propose(torch.rand(4, 3, 64, 64)).final.objectness_logits
        head.bias.sub_(typical.median())  # whatever random layers start at, half of the proposals are above alpha
    return built.eval()


def assert_same(one: Segmentation, other: Segmentation) -> None:
    ours, theirs = proposals_of(one), proposals_of(other)
    torch.testing.assert_close(ours.objectness, theirs.objectness, atol=1e-4, rtol=0)
    torch.testing.assert_close(ours.class_scores, theirs.class_scores, atol=1e-3, rtol=0)
    assert one.label_map.shape == other.label_map.shape
    assert (one.label_map != other.label_map).float().mean() < 0.01  # rounding may move a pixel on a border
    assert [each.query for each in one.segments] == [each.query for each in other.segments]


def test_the_fixture_makes_segments(model: Segmenter) -> None:
    found = model.segment(torch.rand(4, 3, 64, 64, generator=torch.Generator().manual_seed(1)))
    proposals = [proposals_of(each) for each in found]
    confident = torch.stack([each.objectness > 0.5 for each in proposals])
    assert confident.any(dim=1).all() and not confident.all(dim=1).any()
    assert all(each.segments for each in found)
    assert all(each.confident == 0.5 for each in proposals)
    assert all((each.class_scores[each.objectness <= 0.5] == 0).all() for each in proposals)
    assert all((each.class_scores[each.objectness > 0.5] > 0).all() for each in proposals)


def test_a_batch_of_one_equals_a_batch_of_many(model: Segmenter) -> None:
    images = torch.rand(5, 3, 64, 96, generator=torch.Generator().manual_seed(2))
    images[1] *= 0.2
    images[2, :, :32] = 0.9
    for image, together in zip(images, model.segment(images), strict=True):
        (alone,) = model.segment(image[None])
        assert_same(alone, together)


def test_other_images_of_a_padded_batch_change_nothing(model: Segmenter) -> None:
    sizes = [(64, 96), (50, 70), (33, 96), (64, 17)]
    generator = torch.Generator().manual_seed(3)
    images = torch.rand(len(sizes), 3, 64, 96, generator=generator)
    padding = torch.ones(len(sizes), 64, 96, dtype=torch.bool)
    for index, (height, width) in enumerate(sizes):
        padding[index, :height, :width] = False
    together = model.segment(images, padding, sizes)
    for index, size in enumerate(sizes):
        (alone,) = model.segment(images[index : index + 1], padding[index : index + 1], [size])
        assert alone.label_map.shape == size
        assert_same(alone, together[index])


def test_results_have_the_original_size(model: Segmenter) -> None:
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(4))
    originals = [(111, 77), (30, 200)]
    for found, size in zip(model.segment(images, original_sizes=originals), originals, strict=True):
        assert found.label_map.shape == found.segment_map.shape == size
        proposals = proposals_of(found)
        assert proposals.masks().shape == (16, *size)
        assert proposals.objectness.shape == (16,)
        assert proposals.class_scores.shape == (16, 5)
        assert sum(each.area for each in found.segments) == int((found.segment_map > 0).sum())


def test_a_model_without_classes_still_proposes() -> None:
    config = ModelConfig.model_validate({"size": "tiny", "inference": {"alpha": 0.0}})
    (found,) = build_segmenter(config, []).eval().segment(torch.rand(1, 3, 64, 64))
    assert found.segments == ()
    assert proposals_of(found).class_scores.shape == (16, 0)
    assert proposals_of(found).classes.tolist() == [-1] * 16
    assert proposals_of(found).masks().shape == (16, 64, 64)
