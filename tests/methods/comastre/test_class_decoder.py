"""The batched class decoder is Algorithm A1, and grows without touching what it knows."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from comastre.methods.comastre.class_decoder import ClassDecoder
from comastre.methods.comastre.config import ClassDecoderConfig
from comastre.nets.attention import MultiHeadAttention
from comastre.nets.mask_features import MaskFeatures
from comastre.nets.outputs import PixelEmbeddings
from comastre.nets.positions import sine_positions

DIM = 32


def make_decoder(tasks: list[int], **fields: object) -> ClassDecoder:
    torch.manual_seed(0)
    config = ClassDecoderConfig(heads=4, feedforward=48, level=8, **fields)
    decoder = ClassDecoder(DIM, config, tasks)
    for parameter in decoder.parameters():  # biases and norms too, so that nothing is compared at zero
        torch.nn.init.normal_(parameter, std=0.3)
    return decoder.eval()


def make_pixels(batch: int, padded: bool = False) -> PixelEmbeddings:
    generator = torch.Generator().manual_seed(1)
    levels = [torch.randn(batch, DIM, size, size + 1, generator=generator) for size in (2, 3, 5)]
    padding: list[Tensor | None] = [None, None, None]
    if padded:
        padding = [torch.zeros(batch, level.shape[2], level.shape[3], dtype=torch.bool) for level in levels]
        for mask in padding:
            mask[0, :, -1] = True  # type: ignore[index]
    mask_features = torch.randn(batch, DIM, 10, 12, generator=generator)
    finest = MaskFeatures(mask_features, torch.eye(DIM), torch.zeros(DIM))
    return PixelEmbeddings(tuple(levels), finest, tuple(padding))  # type: ignore[arg-type]


def full_attention(
    attention: MultiHeadAttention, queries: Tensor, keys: Tensor, values: Tensor, seen: Tensor
) -> Tensor:
    """Textbook attention of queries (Q, d) over keys (K, d), with `seen` (Q, K)."""
    heads = attention.heads
    q = attention.query_projection(queries).view(len(queries), heads, -1).transpose(0, 1)
    k = attention.key_projection(keys).view(len(keys), heads, -1).transpose(0, 1)
    v = attention.value_projection(values).view(len(values), heads, -1).transpose(0, 1)
    scores = (q @ k.transpose(1, 2) / k.shape[-1] ** 0.5).masked_fill(~seen, float("-inf"))
    return attention.output_projection((scores.softmax(-1) @ v).transpose(0, 1).flatten(1))


def algorithm_a1(
    decoder: ClassDecoder, pixels: PixelEmbeddings, image: int, embeddings: Tensor, masks: Tensor
) -> tuple[Tensor, Tensor]:
    """The paper's nested loop: one pair (e_i, theta_j) at a time through a whole decoder block."""
    level, padding = pixels.levels[2][image], pixels.padding[2]
    size = (level.shape[1], level.shape[2])
    values = level.flatten(1).T  # (K, d)
    image_padding = None if padding is None else padding[image : image + 1]
    keys = values + sine_positions(size, DIM, values.device, image_padding)[0]
    real = torch.ones(len(keys), dtype=torch.bool) if image_padding is None else ~image_padding.flatten()
    block = decoder.block
    all_logits, newest = [], []
    for i in range(len(embeddings)):
        seen = real
        if decoder.config.masked_attention:
            inside = (
                F.interpolate(masks[None, i : i + 1], size=size, mode="bilinear", align_corners=False).flatten() >= 0
            )
            seen = inside & real if (inside & real).any() else real
        logits = []
        for j, classifier in enumerate(decoder.classifiers):
            query = decoder.task_queries[j if decoder.config.task_queries else 0]
            pair = torch.stack((embeddings[i], query))  # (2, d)
            everything = torch.ones(2, 2, dtype=torch.bool)
            pair = block.self_norm(pair + full_attention(block.self_attention, pair, pair, pair, everything))
            attended = full_attention(block.cross_attention, pair, keys, values, seen.expand(2, -1))
            pair = block.feedforward(block.cross_norm(pair + attended))
            k_ij = pair[1]  # the output at theta_j's place; the other is dropped
            logits.append(classifier(k_ij))
        all_logits.append(torch.cat(logits))
        newest.append(k_ij)
    return torch.stack(all_logits), torch.stack(newest)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("tasks", [[3], [3, 2], [4, 1, 1, 2, 1]])
@pytest.mark.parametrize("counts", [(1,), (3, 1), (5, 2, 4)])
def test_batched_form_equals_algorithm_a1(
    masked: bool, padded: bool, tasks: list[int], counts: tuple[int, ...]
) -> None:
    decoder = make_decoder(tasks, masked_attention=masked)
    pixels = make_pixels(len(counts), padded)
    generator = torch.Generator().manual_seed(2)
    embeddings = torch.randn(len(counts), max(counts), DIM, generator=generator)
    masks = torch.randn(len(counts), max(counts), 10, 12, generator=generator)
    masks[0, 0] = -1  # a proposal whose mask is empty may look everywhere
    with torch.no_grad():
        recognised = decoder(pixels, embeddings, masks)
        for image, count in enumerate(counts):  # rows beyond an image's count are padding
            logits, newest = algorithm_a1(decoder, pixels, image, embeddings[image, :count], masks[image, :count])
            assert (recognised.class_logits[image, :count] - logits).abs().max() < 1e-5
            assert (recognised.newest_embeddings[image, :count] - newest).abs().max() < 1e-5


def test_one_query_for_all_tasks_is_algorithm_a1_with_a_shared_query() -> None:
    decoder = make_decoder([2, 3], task_queries=False)
    assert len(decoder.task_queries) == 1
    embeddings, masks = torch.randn(1, 4, DIM), torch.randn(1, 4, 10, 12)
    pixels = make_pixels(1)
    with torch.no_grad():
        expected, _ = algorithm_a1(decoder, pixels, 0, embeddings[0], masks[0])
        assert (decoder(pixels, embeddings).class_logits[0] - expected).abs().max() < 1e-5


def test_leaving_out_early_tasks_gives_the_same_later_logits() -> None:
    decoder = make_decoder([2, 3, 1])
    pixels, embeddings = make_pixels(2), torch.randn(2, 3, DIM)
    with torch.no_grad():
        everything = decoder(pixels, embeddings).class_logits
        assert torch.equal(decoder(pixels, embeddings, first_task=2).class_logits, everything[..., 5:])


def test_level_is_the_stride_that_is_read() -> None:
    pixels = make_pixels(1)
    for stride, index in ((32, 0), (16, 1), (8, 2)):
        decoder = ClassDecoder(DIM, ClassDecoderConfig(heads=4, feedforward=48, level=stride), [2])
        embeddings = torch.randn(1, 2, DIM)
        before = decoder(pixels, embeddings).class_logits
        for level in range(3):
            changed = list(pixels.levels)
            changed[level] = changed[level] + 1
            after = decoder(PixelEmbeddings(tuple(changed), pixels.finest), embeddings).class_logits  # type: ignore[arg-type]
            assert torch.equal(before, after) == (level != index)


def test_keys_and_values_of_an_image_are_projected_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = make_decoder([1] * 7)
    seen: list[torch.Size] = []
    projection = decoder.block.cross_attention.key_projection
    projection.register_forward_hook(lambda module, args, output: seen.append(args[0].shape))
    decoder(make_pixels(2), torch.randn(2, 9, DIM))
    assert seen == [torch.Size([2, 30, DIM])]  # one call: per image, not per proposal or task


@pytest.mark.parametrize("masked", [False, True])
def test_growth_changes_no_earlier_logit_by_a_bit(masked: bool) -> None:
    decoder = make_decoder([3], masked_attention=masked)
    pixels, embeddings, masks = make_pixels(2), torch.randn(2, 6, DIM), torch.randn(2, 6, 10, 12)
    with torch.no_grad():
        logits = decoder(pixels, embeddings, masks).class_logits
        for task in range(2, 51):
            decoder.add_task(1 + task % 3)
            grown = decoder(pixels, embeddings, masks).class_logits
            assert torch.equal(grown[..., : logits.shape[-1]], logits)
            logits = grown
    assert len(decoder.classifiers) == 50


def test_fresh_parts_of_a_task() -> None:
    decoder = make_decoder([3])
    before = copy.deepcopy(decoder.state_dict())
    decoder.add_task(2)
    query = decoder.task_queries[1]
    assert query.std().item() == pytest.approx(0.02, rel=0.5)
    assert decoder.classifiers[1].out_features == 2  # type: ignore[union-attr]
    for name, value in before.items():
        assert torch.equal(decoder.state_dict()[name], value)


def test_no_proposals_give_no_rows() -> None:
    recognised = make_decoder([2, 2])(make_pixels(2), torch.zeros(2, 0, DIM))
    assert recognised.class_logits.shape == (2, 0, 4)


def test_masked_attention_asks_for_masks() -> None:
    with pytest.raises(ValueError, match="mask logits"):
        make_decoder([2], masked_attention=True)(make_pixels(1), torch.zeros(1, 1, DIM))
