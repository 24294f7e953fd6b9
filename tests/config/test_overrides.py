"""Dotted command-line overrides."""

from __future__ import annotations

from typing import Any

import pytest

from comastre.config.overrides import UsageError, config_fields, find_field, split_overrides
from comastre.config.settings import load_config
from comastre.errors import UserError


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--training.iterations", "5"], {"training": {"iterations": 5}}),
        (["--training.iterations=5"], {"training": {"iterations": 5}}),
        (["--class_decoder.masked_attention", "true"], {"comastre": {"class_decoder": {"masked_attention": True}}}),
        (["--class-decoder.masked-attention"], {"comastre": {"class_decoder": {"masked_attention": True}}}),
        (["--comastre.weights.auxiliary", "0.2"], {"comastre": {"weights": {"auxiliary": 0.2}}}),
        (["--size", "tiny", "--clip=2"], {"size": "tiny", "comastre": {"optimiser": {"clip": 2}}}),
        (["--devices", "2", "--nodes=3"], {"training": {"devices": 2, "nodes": 3}}),
        (["--precision", "bf16-mixed"], {"training": {"precision": "bf16-mixed"}}),
        (["--seed", "-1"], {"seed": -1}),  # the run's own seed, not data.seed
        (["--data.seed", "3"], {"data": {"seed": 3}}),
        (["--data.root", "2024"], {"data": {"root": "2024"}}),  # text stays text
        (["--data.root", "null"], {"data": {"root": None}}),
        (["--data.root", "C: {["], {"data": {"root": "C: {["}}),
        (["--backbone.weights", "a=b.safetensors"], {"backbone": {"weights": "a=b.safetensors"}}),
        (["--data.scale", "0.5,1.5"], {"data": {"scale": [0.5, 1.5]}}),
        (["--data.scale", "[0.5, 1.5]"], {"data": {"scale": [0.5, 1.5]}}),
        (["--flip", "off", "--class_order", "2,1"], {"data": {"flip": False}, "continual": {"class_order": [2, 1]}}),
    ],
)
def test_arguments_become_a_nested_dict(arguments: list[str], expected: dict[str, Any]) -> None:
    overrides, rest = split_overrides(arguments, own_options=("out",))
    assert overrides == expected
    assert rest == []


def test_the_verbs_own_arguments_are_left_alone() -> None:
    overrides, rest = split_overrides(
        ["shapes-6-2", "--seed", "1", "--out", "run", "--fresh"], own_options=("out", "fresh")
    )
    assert overrides == {"seed": 1}
    assert rest == ["shapes-6-2", "--out", "run", "--fresh"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--training.iteratoins", "5"], r"no field --training\.iteratoins: did you mean training\.iterations"),
        (["--batch_sise", "5"], r"did you mean training\.batch_size|did you mean evaluation\.batch_size"),
        (["--zzz", "5"], "no field --zzz: `comastre train --help` lists all fields"),
        (
            ["--points", "5"],
            "could mean --comastre.matching.points, --comastre.masks.points, --comastre.pixel_decoder.points",
        ),
        (["--iterations"], "--iterations needs a value"),
        (["--iterations", "--seed", "3"], "--iterations needs a value"),
        (["--iterations", "[1"], r"--training\.iterations got '\[1', which cannot be read"),
    ],
)
def test_wrong_names_are_usage_errors_with_a_fix(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        split_overrides(arguments, own_options=())


def test_numbers_that_yaml_takes_for_text_still_become_numbers() -> None:
    overrides, _ = split_overrides(["--optimiser.learning_rate", "1e-3"], own_options=())
    assert load_config("voc-15-5", overrides).method_settings.optimiser.learning_rate == 1e-3


def test_a_bad_value_names_field_value_and_what_is_allowed() -> None:
    overrides, _ = split_overrides(["--classification.loss", "hinge"], own_options=())
    with pytest.raises(
        UserError, match=r"comastre\.classification\.loss is 'hinge' but must be 'focal' or 'cross_entropy'"
    ):
        load_config("voc-15-5", overrides)


def test_every_field_is_found_by_its_full_name() -> None:
    fields = list(config_fields())
    assert len(fields) > 60
    assert all(find_field(field.name) == field for field in fields)
    assert find_field("classification.loss").choices == "(focal | cross_entropy)"
