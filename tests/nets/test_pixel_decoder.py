"""Levels that are added to finer ones: what sees what, by the slow obvious version, with and without padding."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from comastre.config.sections import PixelDecoderConfig
from comastre.nets.pixel_decoder import PixelDecoder

CHANNELS = (4, 6, 8, 10)


def make(**fields: object) -> PixelDecoder:
    torch.manual_seed(0)
    return PixelDecoder(CHANNELS, PixelDecoderConfig(**{"dim": 32, "layers": 0, "heads": 4, **fields}))


def features(size: int = 64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    strides = (4, 8, 16, 32)
    return [
        torch.randn(2, width, size // s, size // s, generator=generator)
        for width, s in zip(CHANNELS, strides, strict=True)
    ]


@torch.no_grad()
def test_top_down_adds_each_level_to_the_next_finer_one() -> None:
    decoder, maps = make(top_down=True), features()
    found = decoder(maps)
    coarse = decoder.projections[0](maps[3])
    middle = decoder.projections[1](maps[2]) + F.interpolate(coarse, scale_factor=2, mode="bilinear")
    middle = decoder.merges[0](middle).relu()
    fine = decoder.projections[2](maps[1]) + F.interpolate(middle, scale_factor=2, mode="bilinear")
    fine = decoder.merges[1](fine).relu()
    finest = decoder.lateral(maps[0]) + F.interpolate(fine, scale_factor=2, mode="bilinear")
    expected = decoder.mask_projection(decoder.smooth(finest).relu())
    for level, by_hand in zip(found.levels, (coarse, middle, fine), strict=True):
        torch.testing.assert_close(level, by_hand)
    torch.testing.assert_close(found.mask_features, expected)


@pytest.mark.parametrize(("options", "seen"), [({}, False), ({"top_down": True}, True), ({"layers": 1}, True)])
def test_without_layers_only_top_down_brings_coarse_features_to_the_masks(options: dict, seen: bool) -> None:
    decoder, maps = make(**options).eval(), features()
    maps[3].requires_grad_()
    decoder(maps).mask_features.square().sum().backward()
    assert (maps[3].grad is not None and bool(maps[3].grad.any())) == seen


def test_the_papers_decoder_has_no_weights_for_it() -> None:
    names = set(make(layers=1).state_dict())
    assert not any(name.startswith("merges") for name in names)
    assert set(make(layers=1, top_down=True).state_dict()) > names


@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_under_mixed_precision_it_stays_in_float32_unless_asked(padded: bool) -> None:
    """What it makes of half-precision features is, to the bit, what it makes of them in float32."""
    padding = torch.zeros(2, 64, 64, dtype=torch.bool) if padded else None
    maps = [level.bfloat16() for level in features()]
    exact = make(layers=1)([level.float() for level in maps], padding)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        kept = make(layers=1)(maps, padding)
        rough = make(layers=1, float32=False)(maps, padding)
    for one, other, third in zip(
        (*kept.levels, kept.mask_features),
        (*exact.levels, exact.mask_features),
        (*rough.levels, rough.mask_features),
        strict=True,
    ):
        assert one.dtype == torch.float32 and torch.equal(one, other)
        assert 1e-4 < (third.float() - other).abs().max() < 0.2
    assert rough.mask_features.dtype == torch.bfloat16


def test_in_double_precision_it_stays_in_double_precision() -> None:
    assert make(layers=1).double()([level.double() for level in features()]).mask_features.dtype == torch.float64


@torch.no_grad()
def test_what_padding_holds_changes_nothing() -> None:
    decoder, maps = make(top_down=True), features()
    padding = torch.zeros(2, 64, 64, dtype=torch.bool)
    padding[1, :, 32:] = True
    poisoned = [level.clone() for level in maps]
    for level, stride in zip(poisoned, (4, 8, 16, 32), strict=True):
        level[1, :, :, 32 // stride :] = 9.0
    first, second = decoder(maps, padding), decoder(poisoned, padding)
    for one, other, mask in zip(first.levels[1:], second.levels[1:], first.padding[1:], strict=True):
        assert mask is not None
        torch.testing.assert_close(one.masked_fill(mask[:, None], 0.0), other.masked_fill(mask[:, None], 0.0))
