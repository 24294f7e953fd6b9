"""The size at which a model sees an image, from presets, files and the command line."""

from __future__ import annotations

from typing import Any

import pytest

from comastre.config.overrides import split_overrides
from comastre.config.settings import load_config, preset_names
from comastre.config.view import UNWRITTEN, ViewConfig, padded_size, read_short_side
from comastre.errors import UserError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (512, (512,)),
        ("512", (512,)),
        ("224,320", (224, 320)),
        ("[224, 320]", (224, 320)),
        ([224, 320], (224, 320)),
        ("native", "native"),
        ("crop", "crop"),
    ],
)
def test_a_short_side_is_a_number_or_several_or_a_word(given: Any, expected: Any) -> None:
    assert read_short_side(given) == expected
    assert ViewConfig(short_side=given).short_side == expected
    found, rest = split_overrides(["--view.short_side", str(given)], ())
    assert load_config("voc-15-5", found).view.short_side == expected and not rest


@pytest.mark.parametrize("given", ["", "a", "0", "-3", "224,", "1.5", 0, -1, [], [0], 1.5, True, None])
def test_anything_else_is_refused_in_one_sentence(given: Any) -> None:
    with pytest.raises(UserError, match=r"short_side is .* but must be a number of pixels such as 512"):
        read_short_side(given)
    with pytest.raises(UserError, match=r"view\.short_side: short_side is .* but must be a number"):
        load_config("voc-15-5", {"view": {"short_side": given}})


def test_sizes_are_those_of_mask2former() -> None:
    """Of detectron2's ResizeShortestEdge(512, 2048), computed by hand."""
    view = ViewConfig(short_side=(512,), max_side=2048)
    for size, expected in {
        (375, 500): (512, 683),  # 682.67
        (500, 375): (683, 512),
        (512, 512): (512, 512),
        (100, 1000): (205, 2048),  # 512 x 5120 is too long: 204.8
        (2000, 3000): (512, 768),
        (333, 500): (512, 769),  # 768.77
    }.items():
        assert view.seen_sizes(*size) == (expected,)
    assert UNWRITTEN.seen_sizes(375, 500) == ((375, 500),)
    assert ViewConfig(short_side="native", max_side=250).seen_sizes(375, 500) == ((188, 250),)  # 187.5
    assert ViewConfig(short_side=(224, 320)).seen_sizes(100, 200) == ((224, 448), (320, 640))
    assert ViewConfig(short_side=(1,)).seen_sizes(1, 9000) == ((1, 2048),)


def test_padding_is_to_the_next_multiple_of_32() -> None:
    assert [padded_size(*size) for size in ((1, 32), (33, 64), (512, 683))] == [(32, 32), (64, 64), (512, 704)]


def test_the_crop_is_the_size_where_nothing_else_is_said() -> None:
    assert ViewConfig().at(96) == ViewConfig(short_side=(96,))
    assert ViewConfig(short_side=(64,)).at(96).short_side == (64,)
    assert UNWRITTEN.at(96) == UNWRITTEN
    with pytest.raises(ValueError, match="no size before"):
        ViewConfig().seen_sizes(10, 10)


def test_paper_presets_see_what_mask2former_sees() -> None:
    for name in preset_names():
        config = load_config(name)
        view = config.view.at(config.data.crop)
        if config.size in ("r50", "r101"):
            assert view == ViewConfig(short_side=(512,), max_side=2048), name
        if config.data.dataset == "shapes":
            assert view.seen_sizes(64, 64) == ((64, 64),), name


def test_a_user_may_ask_for_another_size() -> None:
    view = ViewConfig(short_side=(512,), max_side=2048)
    assert view.changed() == view
    assert view.changed("224,320") == ViewConfig(short_side=(224, 320), max_side=2048)
    assert view.changed("native", 600) == ViewConfig(short_side="native", max_side=600)
    with pytest.raises(UserError, match="max_side is 0 but must be 1 or more"):
        view.changed(max_side=0)
    assert view.scaled(0.25).short_side == (128,) and UNWRITTEN.scaled(0.25) == UNWRITTEN
