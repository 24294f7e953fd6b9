"""What a bundle remembers of its training, beside its method's own settings."""

import pytest

from comastre.config.recipe import known_fields, read_recipe, recipe_of, usual_settings
from comastre.config.run import RunConfig
from comastre.config.settings import load_config, validate
from comastre.methods.comastre.config import ComastreConfig
from comastre.section import merge


def test_a_recipe_brings_back_what_decides_learning_and_nothing_of_the_place():
    trained = load_config(
        "shapes-6-2", {"data": {"root": "/somewhere", "masks": "instance"}, "training": {"precision": "bf16-mixed"}}
    )
    recipe = recipe_of(trained)
    again = validate(read_recipe(recipe), "the recipe")
    assert (
        again.training
        == RunConfig(
            training={"iterations": 4000, "iterations_per_class": 250, "batch_size": 16, "precision": "bf16-mixed"}
        ).training
    )
    assert (again.data.crop, again.data.scale, again.data.masks) == (64, (1.0, 1.0), "instance")
    assert again.data.later_scale == trained.data.later_scale == (0.8, 1.8)
    assert "root" not in recipe["data"] and "devices" not in recipe["training"]
    # What the model is, and what its method was told, the bundle keeps itself.
    assert recipe.keys() == {"data", "training"}


@pytest.mark.parametrize("stored", [{}, {"weights": 3}, {"future": {"x": 1}}, {"data": {"of the future": 2.0}}])
def test_a_recipe_of_another_version_is_read_as_far_as_it_is_known(stored):
    mixed = read_recipe(merge(stored, {"training": {"iterations": 7, "warp": 9}}))
    config = validate(mixed, "the recipe")
    assert config.training.iterations == 7
    assert config.data == RunConfig().data
    assert config.method_settings == RunConfig().method_settings


def test_of_a_section_only_the_fields_that_it_has_are_read():
    stored = {
        "weights": {"auxiliary": 0.3, "of the future": 1.0},
        "matching": 3,
        "future": {"x": 1},
        "optimiser": {"clip": 0.3, "momentum": 0.9},
    }
    assert known_fields(ComastreConfig, stored) == {"weights": {"auxiliary": 0.3}, "optimiser": {"clip": 0.3}}


@pytest.mark.parametrize(("size", "preset"), [("tiny", "shapes-6-2"), ("small", "voc-15-5-cpu")])
@pytest.mark.parametrize("method", ["comastre", "finetune"])
def test_models_of_a_size_are_usually_trained_as_its_preset_says(size, preset, method):
    usual = validate({"method": method, "size": size, **usual_settings(size, method)}, "the usual settings")
    expected = load_config(preset, {"method": method})
    assert usual.method_settings == expected.method_settings
    assert usual.backbone == expected.backbone
    assert usual.data.crop == expected.data.crop and usual.training.iterations == expected.training.iterations
    assert usual.data.dataset == RunConfig().data.dataset and usual.data.workers == RunConfig().data.workers


def test_larger_models_are_usually_trained_as_the_paper_says():
    assert usual_settings("r101", "comastre") == {}
