"""What a bundle remembers of its training."""

import pytest

from comastre.config.recipe import read_recipe, recipe_of
from comastre.config.run import RunConfig
from comastre.config.settings import load_config, validate
from comastre.section import merge


def test_a_recipe_brings_back_what_decides_learning_and_nothing_of_the_place():
    trained = load_config(
        "shapes-6-2", {"data": {"root": "/somewhere", "masks": "instance"}, "training": {"clip": 0.3}}
    )
    recipe = recipe_of(trained)
    again = validate(read_recipe(recipe), "the recipe")
    assert again.loss == trained.loss != RunConfig().loss
    assert again.training.clip == 0.3 and again.training.later_learning_rate == trained.training.later_learning_rate
    assert (again.data.crop, again.data.scale, again.data.masks) == (64, (1.0, 1.0), "instance")
    assert "root" not in recipe["data"] and "devices" not in recipe["training"] and "model" not in recipe


@pytest.mark.parametrize("stored", [{}, {"weights": 3}, {"future": {"x": 1}}, {"weights": {"of the future": 2.0}}])
def test_a_recipe_of_another_version_is_read_as_far_as_it_is_known(stored):
    mixed = read_recipe(merge(stored, {"training": {"clip": 0.3, "warp": 9}}))
    config = validate(mixed, "the recipe")
    assert config.training.clip == 0.3
    assert config.loss == RunConfig().loss
