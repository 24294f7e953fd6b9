"""How long and how to train: from the data's size and from what the model was trained with."""

from pathlib import Path

import pytest

from comastre.config.settings import load_config
from comastre.learning.images import hold_out, to_train_on
from comastre.learning.schedule import (
    Amounts,
    choose,
    iterations_within,
    planned_iterations,
    total_iterations,
    training_seconds,
    with_iterations,
    with_pace,
)
from comastre.learning.starting_model import StartingModel, open_model, run_settings
from comastre.training.parts import describe

# What suits models of a size, which is what new ones have.
TINY, SMALL, LARGE = (run_settings(open_model(f"new:{size}")) for size in ("tiny", "small", "r101"))
FOLDER = {"dataset": "folder", "root": "data"}


def trained(config):
    """The settings of a model that a run of this configuration gave."""
    return run_settings(StartingModel(describe(config), None, "a model"))


def amounts(images=60, old=6, new=1, short_side=64, one_size=True, empty=0):
    return Amounts(images, empty, old, new, short_side, one_size)


def test_a_model_is_taught_as_it_was_trained():
    changes = {
        "comastre": {
            "weights": {"mask_kd": 7.0},
            "pixel_decoder": {"dim": 96},
            "optimiser": {"learning_rate": 2e-3, "later_learning_rate": 4e-4, "clip": 0.7},
        },
        "backbone": {"freeze_batch_norm": "none"},
        "data": {"crop": 96},
    }
    before = load_config("shapes-6-2", changes)
    config = choose(trained(before), amounts(), FOLDER, {})
    ours = config.method_settings
    assert ours.weights.mask_kd == 7.0 and ours.optimiser.clip == 0.7 and config.data.crop == 96
    assert ours.optimiser.later_learning_rate == 4e-4
    assert (config.size, config.backbone) == (before.size, before.backbone)
    assert ours.model(config.size, config.backbone) == before.method_settings.model(before.size, before.backbone)
    assert config.data.root == "data" and config.continual.setting == "6-1"


@pytest.mark.parametrize("method", ["comastre", "finetune"])
def test_a_lesson_is_taught_by_the_method_of_the_model(method):
    before = load_config("shapes-6-2", {"method": method})
    assert choose(trained(before), amounts(), FOLDER, {}).method == method


def test_the_users_fields_come_last():
    config = choose(TINY, amounts(), FOLDER, {"training": {"batch_size": 2}, "data": {"crop": 128}})
    assert config.training.batch_size == 2 and config.data.crop == 128


def test_a_new_model_gets_what_suits_its_size():
    assert choose(TINY, amounts(), FOLDER, {}).method_settings.matching.objectness_cost == 2.0
    assert choose(TINY, amounts(), FOLDER, {}).data.crop == 64
    small = choose(SMALL, amounts(short_side=375), FOLDER, {})
    assert small.data.crop == 224 and not small.method_settings.classification.negatives_for_old
    large = choose(LARGE, amounts(500, short_side=375), FOLDER, {})
    assert large.data.crop == 512 and large.method_settings.optimiser.later_learning_rate == 5e-5


@pytest.mark.parametrize(("short_side", "crop"), [(64, 64), (100, 96), (300, 512), (2000, 512)])
def test_small_images_are_not_blown_up_to_the_models_own_size(short_side, crop):
    assert choose(LARGE, amounts(short_side=short_side), FOLDER, {}).data.crop == crop


def test_more_images_and_more_classes_take_more_iterations_up_to_the_models_own():
    def total(model, images):
        return total_iterations(choose(model, amounts(images), FOLDER, {}), amounts(images))

    assert [total(TINY, images) for images in (1, 5, 60, 5000)] == [100, 150, 563, 600]
    assert [total(SMALL, images) for images in (30, 5000)] == [563, 600]
    assert [total(LARGE, images) for images in (30, 5000)] == [282, 1000]  # trained for longer
    for images, empty, iterations in ((60, 20, 562), (120, 60, 1126), (300, 240, 1126), (5000, 4000, 1200)):
        some = amounts(images, empty=empty)  # as often seen as without the empty ones, up to twice the time
        assert total_iterations(choose(TINY, some, FOLDER, {}), some) == iterations
    three = amounts(images=180, new=3)
    assert total_iterations(choose(TINY, three, FOLDER, {}), three) == 1689  # a multiple of three
    first = amounts(images=10, old=0)
    assert total_iterations(choose(TINY, first, FOLDER, {}), first) == 500


def test_few_images_are_varied_more_and_never_less_than_before():
    few = choose(TINY, amounts(), FOLDER, {}).data
    assert few.colour_jitter and few.scale == (0.8, 1.8)  # as later steps of shapes-6-2
    assert choose(TINY, amounts(old=0), FOLDER, {}).data.scale == (0.8, 1.25)
    settings = trained(load_config("shapes-6-2", {"data": {"scale": [0.5, 1.1], "later_scale": None}}))
    assert choose(settings, amounts(), FOLDER, {}).data.scale == (0.5, 1.25)
    many = choose(settings, amounts(images=5000), FOLDER, {}).data
    assert many.scale == (0.5, 1.1) and not many.colour_jitter
    assert not choose(TINY, amounts(), FOLDER, {"data": {"colour_jitter": False}}).data.colour_jitter


@pytest.mark.parametrize(("images", "empty", "share"), [(60, 0, 0.5), (60, 20, 0.25), (60, 30, 0), (300, 240, 0)])
def test_half_of_what_is_seen_of_few_images_shows_no_new_class(images, empty, share):
    assert choose(TINY, amounts(images, empty=empty), FOLDER, {}).data.later_beside == share
    assert choose(TINY, amounts(500, empty=empty), FOLDER, {}).data.later_beside == 0.0
    given = choose(TINY, amounts(images, empty=empty), FOLDER, {"data": {"later_beside": 0.1}})
    assert given.data.later_beside == 0.1


def test_few_images_are_learned_from_more_slowly():
    def rate(images, changes):
        settings = trained(load_config("shapes-6-2", {"comastre": {"optimiser": changes}}))
        return choose(settings, amounts(images), FOLDER, {}).method_settings.optimiser.later_learning_rate

    as_fast = {"learning_rate": 3e-3, "later_learning_rate": 3e-3}
    assert rate(60, as_fast) == pytest.approx(1e-3) and rate(500, as_fast) == 3e-3
    assert rate(60, as_fast | {"later_learning_rate": 5e-4}) == 5e-4
    given = {"later_learning_rate": 3e-3}
    for request in ({"comastre": {"optimiser": given}}, {"training": given}):  # by today's name or by the older one
        assert choose(TINY, amounts(), FOLDER, request).method_settings.optimiser.later_learning_rate == 3e-3


def test_queries_that_move_nothing_old_learn_at_the_first_steps_rate():
    rates = {"optimiser": {"learning_rate": 2e-3, "later_learning_rate": 4e-4}}
    settings = trained(load_config("shapes-6-2", {"method": "comastre-exact", "comastre": rates}))

    def rate(images, request):
        return choose(settings, amounts(images), FOLDER, request).method_settings.optimiser.later_learning_rate

    assert rate(60, {}) == rate(500, {}) == 2e-3
    assert rate(60, {"comastre": {"optimiser": {"later_learning_rate": 1e-4}}}) == 1e-4


def test_old_objects_teach_what_a_new_class_is_not():
    def chosen(model, old=6, new=1, changes=None):
        return choose(model, amounts(old=old, new=new, short_side=375), FOLDER, changes or {})

    for model in (SMALL, LARGE):
        assert chosen(model).method_settings.classification.negatives_for_new
        # Together with objects of the other new classes, five for each of its own.
        weights = [chosen(model, new=new).method_settings.weights.negatives_for_new for new in range(1, 6)]
        assert weights == [5.0, 2.0, 1.0, 0.5, 0.2]
        assert [new - 1 + new * weight for new, weight in enumerate(weights, start=1)] == [5.0] * 5
    assert not chosen(SMALL, new=6).method_settings.classification.negatives_for_new
    assert not chosen(SMALL, old=0).method_settings.classification.negatives_for_new  # nothing is old
    given = {"comastre": {"classification": {"negatives_for_new": False}}}
    assert not chosen(SMALL, changes=given).method_settings.classification.negatives_for_new
    shapes = chosen(TINY).method_settings.classification
    assert shapes.across_tasks and not shapes.negatives_for_new  # these compete already


def test_a_batch_is_no_larger_than_a_few_images_need():
    assert choose(TINY, amounts(images=60), FOLDER, {}).training.batch_size == 16
    assert choose(TINY, amounts(images=7), FOLDER, {}).training.batch_size == 7
    assert choose(TINY, amounts(images=1), FOLDER, {}).training.batch_size == 4


def test_iterations_are_exact_or_rounded_up_to_the_new_classes():
    config = choose(TINY, amounts(), FOLDER, {}, iterations=37)
    assert total_iterations(config, amounts()) == 37 and config.method_settings.optimiser.warmup <= 7
    three = amounts(new=3)
    assert total_iterations(with_iterations(config, three, 100), three) == 102
    first = amounts(old=0, new=3)
    assert total_iterations(choose(TINY, first, FOLDER, {}, iterations=100), first) == 100


def test_minutes_bound_training_and_scoring():
    assert training_seconds(10, passed=60, scoring=100) == 600 - 1.2 * 160 - 3
    # Scoring that would take all of the time leaves a tenth of it.
    assert training_seconds(10, passed=60, scoring=10_000) == 60
    assert planned_iterations(400, seconds=0.5) == 1000  # a quarter more than fit: the clock ends them
    assert planned_iterations(1, seconds=1000) == 1
    assert iterations_within(10, seconds=0.5, scoring_seconds=100) == 1000
    # Scoring that would take all of the time leaves half of it.
    assert iterations_within(10, seconds=0.5, scoring_seconds=10_000) == 600
    assert iterations_within(1, seconds=1000, scoring_seconds=0) == 1


def test_log_lines_and_checkpoints_come_at_a_users_pace():
    quick = with_pace(choose(TINY, amounts(), FOLDER, {}), 0.1).training
    assert (quick.log_every, quick.checkpoint_every) == (100, 600)
    slow = with_pace(choose(TINY, amounts(), FOLDER, {}), 90.0).training
    assert (slow.log_every, slow.checkpoint_every) == (1, 1)


@pytest.mark.parametrize(
    ("count", "held", "batch", "alone", "with_others"),
    [(5, 1, 4, 150, 200), (10, 2, 8, 150, 200), (20, 3, 16, 160, 320), (40, 6, 16, 319, 638), (80, 12, 16, 600, 1200)],
)
def test_a_few_images_are_taught_as_the_guide_says(count, held, batch, alone, with_others):
    """docs/few-images.md has this table, of a tiny model; four others for each image take at most twice as long."""
    shown = [{1}] * count
    for others, iterations in ((0, alone), (4 * count, with_others)):
        presence = shown + [set()] * others
        names = [f"{index}.png" for index in range(len(presence))]
        away = hold_out(names, presence, [1])
        assert sum(index < count for index in away) == held
        images = to_train_on(names, presence, away)
        few = amounts(len(images), empty=sum(index >= count for index in images))
        config = choose(trained(load_config("demo")), few, FOLDER, {})
        assert total_iterations(config, few) == iterations
        assert config.training.batch_size == (batch if not others else 16)
        assert config.data.colour_jitter and config.data.scale == (0.8, 1.8)
        assert config.data.later_beside == (0.0 if others else 0.5)
    row = f"| {count} | {held} | {count - held} | {batch} | {alone} | {with_others:,} |"
    assert row in (Path(__file__).parents[2] / "docs" / "few-images.md").read_text()
