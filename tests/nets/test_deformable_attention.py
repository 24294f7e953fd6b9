"""Deformable attention against the slow obvious version, against transformers, and at the edges."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from comastre.nets.deformable_attention import DeformableAttention, _softmax_of_few, sample_and_sum, sample_grids

LEVELS = {
    "usual": [(4, 4), (8, 8), (16, 16)],
    "odd": [(3, 5), (5, 9), (9, 17)],
    "thin": [(1, 1), (1, 7), (6, 1)],
    "one": [(5, 3)],
}


def slow_sample_and_sum(
    values: Tensor, shapes: Sequence[tuple[int, int]], locations: Tensor, weights: Tensor
) -> Tensor:
    """grid_sample image by image, head by head, level by level."""
    images = []
    for image in range(values.shape[0]):
        for head in range(values.shape[2]):
            start, total = 0, torch.zeros(())
            for level, (height, width) in enumerate(shapes):
                pixels = values[image, start : start + height * width, head]
                start += height * width
                grid = 2 * locations[image, :, head, level] - 1
                samples = F.grid_sample(pixels.T.reshape(1, -1, height, width), grid[None], align_corners=False)[0]
                total = total + (samples * weights[image, :, head, level]).sum(dim=-1)  # (dh, Q)
            images.append(total.T)
    return torch.stack(images).unflatten(0, (values.shape[0], -1)).transpose(1, 2).flatten(2)


def random_inputs(
    shapes: Sequence[tuple[int, int]],
    *,
    batch: int = 2,
    queries: int = 7,
    heads: int = 3,
    points: int = 2,
    channels: int = 5,
    reach: float = 1.5,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:
    """Values, locations (the middle of the image plus or minus reach / 2) and weights."""
    generator = torch.Generator().manual_seed(0)
    pixels = sum(height * width for height, width in shapes)
    values = torch.randn(batch, pixels, heads, channels, generator=generator, dtype=dtype)
    size = (batch, queries, heads, len(shapes), points)
    locations = 0.5 + reach * (torch.rand(*size, 2, generator=generator, dtype=dtype) - 0.5)
    weights = torch.rand(size, generator=generator, dtype=dtype)
    return values.requires_grad_(), locations.requires_grad_(), weights.requires_grad_()


@pytest.mark.parametrize("shapes", LEVELS.values(), ids=LEVELS.keys())
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("reach", [0.5, 1.5, 8.0])
def test_values_and_gradients_are_those_of_grid_sample(shapes, batch, reach):
    inputs = random_inputs(shapes, batch=batch, reach=reach)
    values, locations, weights = inputs
    fast = sample_and_sum(values, shapes, locations, weights)
    slow = slow_sample_and_sum(values, shapes, locations, weights)
    torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-5)
    assert slow.abs().max() > 0.01
    upstream = torch.randn(slow.shape, generator=torch.Generator().manual_seed(1))
    for name, ours, theirs in zip(
        ("values", "locations", "weights"),
        torch.autograd.grad(fast, inputs, upstream),
        torch.autograd.grad(slow, inputs, upstream),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


def test_form_for_accelerators_gives_the_same_numbers():
    shapes = LEVELS["odd"]
    values, locations, weights = random_inputs(shapes)
    sizes = torch.tensor([(width, height) for height, width in shapes])
    x, y = (locations * sizes[:, None] - 0.5).unbind(-1)
    torch.testing.assert_close(
        sample_grids(values, shapes, x, y, weights), slow_sample_and_sum(values, shapes, locations, weights)
    )


def test_same_as_transformers():
    reference = pytest.importorskip("transformers.models.mask2former.modeling_mask2former")
    shapes = LEVELS["usual"]
    values, locations, weights = random_inputs(shapes, queries=40, heads=8, points=4, channels=8)
    theirs = reference.multi_scale_deformable_attention(values, shapes, locations, weights)
    torch.testing.assert_close(sample_and_sum(values, shapes, locations, weights), theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("reach", [0.8, 2.5])
def test_gradcheck(reach):
    shapes = [(2, 3), (1, 2)]
    inputs = random_inputs(shapes, queries=3, heads=2, channels=2, reach=reach, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda *tensors: sample_and_sum(tensors[0], shapes, *tensors[1:]), inputs)


@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_gradient_of_one_input_alone(wanted):
    shapes = LEVELS["odd"]
    inputs = random_inputs(shapes)
    complete = torch.autograd.grad(sample_and_sum(inputs[0], shapes, *inputs[1:]).sum(), inputs)[wanted]
    alone = [tensor.detach().requires_grad_(place == wanted) for place, tensor in enumerate(inputs)]
    sample_and_sum(alone[0], shapes, *alone[1:]).sum().backward()
    assert torch.equal(alone[wanted].grad, complete)


def test_non_contiguous_inputs():
    shapes = LEVELS["odd"]
    inputs = [tensor.detach() for tensor in random_inputs(shapes)]
    scattered = [tensor.transpose(0, -1).contiguous().transpose(0, -1).requires_grad_() for tensor in inputs]
    assert not any(tensor.is_contiguous() for tensor in scattered)
    plain = [tensor.requires_grad_() for tensor in inputs]
    ours = sample_and_sum(scattered[0], shapes, *scattered[1:])
    expected = sample_and_sum(plain[0], shapes, *plain[1:])
    torch.testing.assert_close(ours, expected, atol=0, rtol=0)
    # expand() gives the backward a gradient without memory of its own.
    ones = torch.ones(()).expand(ours.shape)
    for left, right in zip(
        torch.autograd.grad(ours, scattered, ones), torch.autograd.grad(expected, plain, ones), strict=True
    ):
        torch.testing.assert_close(left, right, atol=0, rtol=0)


def test_far_away_reads_zero_and_has_no_gradient():
    shapes = [(3, 4), (2, 2)]
    values, locations, weights = random_inputs(shapes)
    far = torch.tensor([-1e30, -50.0, 50.0, 1e30]).repeat(locations.numel() // 4).view(locations.shape).requires_grad_()
    result = sample_and_sum(values, shapes, far, weights)
    assert torch.equal(result, torch.zeros_like(result))
    for gradient in torch.autograd.grad(result.sum(), (values, far, weights)):
        assert torch.equal(gradient, torch.zeros_like(gradient))


def test_not_a_number_spreads_only_to_its_own_query():
    shapes = LEVELS["odd"]
    values, locations, weights = (tensor.detach() for tensor in random_inputs(shapes))
    expected = sample_and_sum(values, shapes, locations, weights)
    locations[0, 2] = float("nan")
    result = sample_and_sum(values, shapes, locations, weights)
    assert result[0, 2].isnan().all()
    kept = torch.ones(result.shape[:2], dtype=torch.bool)
    kept[0, 2] = False
    assert torch.equal(result[kept], expected[kept])


def centres(shapes: Sequence[tuple[int, int]]) -> Tensor:
    """(S, 2) x and y of all pixel centres."""
    return torch.cat(
        [
            torch.tensor([((x + 0.5) / width, (y + 0.5) / height) for y in range(height) for x in range(width)])
            for height, width in shapes
        ]
    )


def random_attention(shapes: Sequence[tuple[int, int]], heads: int = 4, points: int = 3) -> DeformableAttention:
    torch.manual_seed(0)
    attention = DeformableAttention(16, heads, len(shapes), points)
    torch.nn.init.normal_(attention.sampling_offsets.weight, std=0.3)
    torch.nn.init.normal_(attention.attention_weights.weight, std=0.3)
    return attention


def test_first_offsets_walk_outwards_in_eight_directions():
    attention = DeformableAttention(16, 8, 2, 3)
    offsets = attention.sampling_offsets.bias.view(8, 2, 3, 2)
    torch.testing.assert_close(offsets[0, 0], torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]]), atol=1e-5, rtol=0)
    torch.testing.assert_close(offsets[1, 1], torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]), atol=1e-5, rtol=0)
    torch.testing.assert_close(offsets[6, 0, 2], torch.tensor([0.0, -3.0]), atol=1e-5, rtol=0)


def test_module_reads_reference_plus_offset_in_pixels():
    """One head, one point, identity projections, all offsets (1, 0): every pixel gets its right neighbour."""
    attention = DeformableAttention(4, 1, 1, 1)
    with torch.no_grad():
        for projection in (attention.value_projection, attention.output_projection):
            projection.weight.copy_(torch.eye(4))
    source = torch.randn(1, 6, 4, generator=torch.Generator().manual_seed(0))
    result = attention(source, source, attention.origins(centres([(2, 3)]), [(2, 3)]), [(2, 3)]).view(2, 3, 4)
    expected = torch.zeros(2, 3, 4)
    expected[:, :2] = source.view(2, 3, 4)[:, 1:]
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)


def test_module_is_transformers_module_with_the_same_weights():
    reference = pytest.importorskip("transformers.models.mask2former.modeling_mask2former")
    shapes = LEVELS["odd"]
    ours = random_attention(shapes)
    theirs = reference.Mask2FormerPixelDecoderEncoderMultiscaleDeformableAttention(16, 4, 3, 3)
    names = {"value_projection": "value_proj", "output_projection": "output_proj"}
    theirs.load_state_dict(
        {".".join((names.get(key.split(".")[0], key.split(".")[0]), key.split(".")[1])): value
         for key, value in ours.state_dict().items()}
    )  # fmt: skip
    points = centres(shapes)
    generator = torch.Generator().manual_seed(0)
    source = torch.randn(2, len(points), 16, generator=generator)
    positions = torch.randn(2, len(points), 16, generator=generator)
    padding = torch.rand(2, len(points), generator=generator) < 0.2
    expected, _ = theirs(
        source,
        attention_mask=padding,
        encoder_hidden_states=source,
        position_embeddings=positions,
        reference_points=points[None, :, None].expand(2, -1, len(shapes), -1),
        spatial_shapes_list=shapes,
    )
    result = ours(source + positions, source, ours.origins(points, shapes), shapes, padding)
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)


def test_softmax_of_short_rows_is_that_of_torch():
    logits = 30 * torch.randn(2, 5, 4, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits[0, 0] += 2000
    logits[0, 1] -= 2000
    logits.requires_grad_()
    ours, theirs = _softmax_of_few(logits), logits.softmax(-1)
    torch.testing.assert_close(ours, theirs)
    upstream = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (of_ours,) = torch.autograd.grad(ours, logits, upstream)
    (of_theirs,) = torch.autograd.grad(theirs, logits, upstream)
    torch.testing.assert_close(of_ours, of_theirs)


def test_padded_pixels_are_never_read():
    shapes = LEVELS["odd"]
    attention, points = random_attention(shapes), centres(shapes)
    source = torch.randn(1, len(points), 16, generator=torch.Generator().manual_seed(0))
    padding = points[None, :, 0] > 0.6
    changed = torch.where(padding[..., None], 1e3, source)
    origins = attention.origins(points, shapes)
    result = attention(source, source, origins, shapes, padding)
    assert torch.equal(result, attention(source, changed, origins, shapes, padding))
    assert not torch.equal(result, attention(source, source, origins, shapes, None))


def test_batch_of_many_is_many_batches_of_one():
    shapes = LEVELS["usual"]
    attention, points = random_attention(shapes), centres(shapes)
    origins = attention.origins(points, shapes)
    source = torch.randn(3, len(points), 16, generator=torch.Generator().manual_seed(0))
    together = attention(source, source, origins, shapes)
    apart = torch.cat([attention(image[None], image[None], origins, shapes) for image in source])
    torch.testing.assert_close(together, apart, atol=1e-5, rtol=1e-5)


def test_mixed_precision_trains_near_full_precision():
    shapes = LEVELS["usual"]
    attention, points = random_attention(shapes), centres(shapes)
    origins = attention.origins(points, shapes)
    source = torch.randn(1, len(points), 16, generator=torch.Generator().manual_seed(0))
    exact = attention(source, source, origins, shapes)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = attention(source, source, origins, shapes)
    assert result.dtype == torch.bfloat16
    assert (result.float() - exact).abs().max() < 0.1 * exact.abs().max()
    result.float().square().mean().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in attention.parameters())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_whole_module_in_another_type(dtype):
    shapes = LEVELS["odd"]
    attention, points = random_attention(shapes), centres(shapes)
    origins = attention.origins(points, shapes)
    source = torch.randn(1, len(points), 16, generator=torch.Generator().manual_seed(0))
    exact = attention(source, source, origins, shapes)
    result = attention.to(dtype)(source.to(dtype), source.to(dtype), origins, shapes)
    assert result.dtype == dtype
    assert (result - exact).abs().max() < (0.1 if dtype == torch.bfloat16 else 1e-4) * exact.abs().max()
