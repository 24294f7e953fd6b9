"""How every layer starts: bounds computed by hand from Mask2Former's rules, or measured on torch's own layers."""

import math
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from comastre.config.sections import MaskDecoderConfig, PixelDecoderConfig
from comastre.methods.comastre.class_decoder import ClassDecoder
from comastre.methods.comastre.config import ClassDecoderConfig
from comastre.nets.attention import MultiHeadAttention, initialise_xavier
from comastre.nets.mask_decoder import MaskDecoder
from comastre.nets.pixel_decoder import PixelDecoder

DIM, ENCODER_HIDDEN, DECODER_HIDDEN = 256, 1024, 2048
CHANNELS = (256, 512, 1024, 2048)  # of a ResNet-50 or 101

Check = Callable[[Tensor], None]


def uniform(bound: float) -> Check:
    """Uniform in -bound..bound: the extremes reach the bound and do not pass it, and the deviation fits."""

    def check(values: Tensor) -> None:
        assert values.abs().max() <= bound * (1 + 1e-6)
        # Of n draws the largest is below bound x (1 - 8 / n) about once in 3,000 tensors.
        assert values.abs().max() >= bound * (1 - 8 / values.numel())
        spread = 4 / math.sqrt(values.numel())
        assert values.square().mean().sqrt().item() == pytest.approx(bound / math.sqrt(3), rel=spread)

    return check


def normal(deviation: float) -> Check:
    def check(values: Tensor) -> None:
        spread = 4 / math.sqrt(values.numel())
        assert values.std().item() == pytest.approx(deviation, rel=spread)
        assert abs(values.mean().item()) < deviation * spread

    return check


def constant(value: float) -> Check:
    def check(values: Tensor) -> None:
        assert torch.equal(values, torch.full_like(values, value))

    return check


def xavier(rows: int, columns: int) -> Check:
    return uniform(math.sqrt(6 / (rows + columns)))


def linear(columns: int) -> Check:
    """What torch gives a linear layer, its bias too."""
    return uniform(1 / math.sqrt(columns))


def looks_around(values: Tensor) -> None:
    """8 heads look in the directions of the eight neighbours, 1 to 4 pixels away, on each of 3 levels."""
    neighbours = [(1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1)]
    expected = [[x * far, y * far] for x, y in neighbours for _ in range(3) for far in (1, 2, 3, 4)]
    torch.testing.assert_close(values.view(-1, 2), torch.tensor(expected, dtype=torch.float32), atol=1e-5, rtol=0)


ATTENTION = {
    r"(query|key|value)_projection\.weight": xavier(3 * DIM, DIM),  # rows of one joint matrix: 0.077
    r"(query|key|value|output)_projection\.bias": constant(0),
    r"output_projection\.weight": xavier(DIM, DIM),  # 0.108
}


def feedforward(hidden: int) -> dict[str, Check]:
    return {
        r"feedforward\.(expand|contract)\.weight": xavier(hidden, DIM),
        r"feedforward\.expand\.bias": linear(DIM),
        r"feedforward\.contract\.bias": linear(hidden),
    }


NORMS: dict[str, Check] = {r"(\w*norm)\.weight": constant(1), r"(\w*norm)\.bias": constant(0)}
PIXEL_DECODER: dict[str, Check] = {
    r"projections\.0\.0\.weight": xavier(2048, DIM),
    r"projections\.1\.0\.weight": xavier(1024, DIM),
    r"projections\.2\.0\.weight": xavier(512, DIM),
    r"lateral\.0\.weight": uniform(math.sqrt(3 / 256)),
    r"smooth\.0\.weight": uniform(math.sqrt(3 / (9 * DIM))),
    r"mask_projection\.weight": uniform(math.sqrt(3 / DIM)),
    r"(projections\.\d\.0|mask_projection)\.bias": constant(0),
    r"(projections\.\d|lateral|smooth)\.1\.weight": constant(1),
    r"(projections\.\d|lateral|smooth)\.1\.bias": constant(0),
    r"level_embedding\.weight": normal(1),
    r"layers\.\d\.attention\.sampling_offsets\.weight": constant(0),
    r"layers\.\d\.attention\.sampling_offsets\.bias": looks_around,
    r"layers\.\d\.attention\.attention_weights\.(weight|bias)": constant(0),
    r"layers\.\d\.attention\.(value|output)_projection\.weight": xavier(DIM, DIM),
    r"layers\.\d\.attention\.(value|output)_projection\.bias": constant(0),
    **{rf"layers\.\d\.{name}": check for name, check in feedforward(ENCODER_HIDDEN).items()},  # 0.068
    **{rf"layers\.\d\.(feedforward\.)?{name}": check for name, check in NORMS.items()},
}
MASK_DECODER: dict[str, Check] = {
    r"(query_features|query_positions|level_embedding)\.weight": normal(1),
    **{rf"layers\.\d\.(cross|self)_attention\.{name}": check for name, check in ATTENTION.items()},
    **{rf"layers\.\d\.{name}": check for name, check in feedforward(DECODER_HIDDEN).items()},
    **{rf"(layers\.\d\.(feedforward\.)?)?{name}": check for name, check in NORMS.items()},
    r"(mask_head\.layers\.\d|objectness_head)\.(weight|bias)": linear(DIM),
}
CLASS_DECODER: dict[str, Check] = {
    **{rf"block\.(cross|self)_attention\.{name}": check for name, check in ATTENTION.items()},
    **{rf"block\.{name}": check for name, check in feedforward(DECODER_HIDDEN).items()},
    **{rf"block\.(feedforward\.)?{name}": check for name, check in NORMS.items()},
    r"task_queries\.\d": normal(0.02),
    r"classifiers\.\d\.(weight|bias)": linear(DIM),
}
BUILT: dict[str, tuple[Callable[[], nn.Module], dict[str, Check]]] = {
    "pixel decoder": (lambda: PixelDecoder(CHANNELS, PixelDecoderConfig(layers=2)), PIXEL_DECODER),
    "mask decoder": (lambda: MaskDecoder(DIM, MaskDecoderConfig(num_queries=100, layers=2)), MASK_DECODER),
    "class decoder": (lambda: ClassDecoder(DIM, ClassDecoderConfig(), [150, 100]), CLASS_DECODER),
}


@pytest.mark.parametrize("part", BUILT)
@torch.no_grad()
def test_every_weight_starts_as_mask2former_has_it(part: str) -> None:
    build, rules = BUILT[part]
    torch.manual_seed(0)
    for name, parameter in build().named_parameters():
        found = [check for pattern, check in rules.items() if re.fullmatch(pattern, name)]
        assert len(found) == 1, f"{name} has {len(found)} rules"
        try:
            found[0](parameter)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


@torch.no_grad()
def test_attention_starts_as_torchs_own_with_xavier_matrices() -> None:
    """Mask2Former is made of nn.MultiheadAttention, whose projections are one matrix, and resets what is a matrix."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(DIM, 8)
    for parameter in theirs.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter)
    ours = MultiHeadAttention(DIM, 8)
    initialise_xavier(ours)
    own = (ours.query_projection, ours.key_projection, ours.value_projection)
    for weight, projection in zip(theirs.in_proj_weight.chunk(3), own, strict=True):
        torch.testing.assert_close(projection.weight.abs().max(), weight.abs().max(), rtol=1e-3, atol=0)
        torch.testing.assert_close(projection.weight.std(), weight.std(), rtol=1e-2, atol=0)
    torch.testing.assert_close(
        ours.output_projection.weight.abs().max(), theirs.out_proj.weight.abs().max(), rtol=1e-3, atol=0
    )
    assert not theirs.in_proj_bias.any() and not any(projection.bias.any() for projection in own)
