"""The built-in dataset: the same for everybody, and hard to solve by anything but shape."""

import pickle
from collections import Counter

import numpy as np
import pytest

from comastre.data.sets.shapes import OtherShapes, Shapes, draw_image
from comastre.data.sets.shapes_drawing import OTHER_OUTLINES, OUTLINES, Placed, coverage
from comastre.errors import UserError

# Classes, share of object pixels and mean brightness of the first training images.
GOLDEN = [([5, 7], 0.282, 113.5), ([6], 0.106, 115.2), ([10], 0.093, 171.8)]


@pytest.fixture(scope="module")
def shapes():
    return Shapes("train", num_images=150)


def test_samples_have_the_agreed_form(shapes):
    sample = shapes[3]
    assert (sample.image.shape, sample.image.dtype) == ((64, 64, 3), np.uint8)
    assert (sample.semantic.shape, sample.semantic.dtype) == ((64, 64), np.uint8)
    assert (sample.instances.shape, sample.instances.dtype) == ((64, 64), np.int32)
    assert sample.image_id == "train-00003"
    assert len(shapes.class_names) == 10
    assert len(shapes.colours) == 11


def test_an_image_depends_on_seed_split_and_index_only(shapes):
    later = Shapes("train", num_images=7)
    np.testing.assert_array_equal(later[5].image, shapes[5].image)  # drawn first, in a smaller dataset
    np.testing.assert_array_equal(later[5].instances, shapes[5].instances)
    for other in (Shapes("val", num_images=7)[5], Shapes("train", num_images=7, seed=1)[5], shapes[6]):
        assert (other.image != shapes[5].image).mean() > 0.5


def test_images_are_those_of_every_other_machine(shapes):
    """Recorded once; loose enough for another Pillow, far too tight for another stream of random numbers."""
    found = [(sorted(shapes.presence()[i]), (shapes[i].semantic > 0).mean(), shapes[i].image.mean()) for i in range(3)]
    for (classes, area, light), (golden_classes, golden_area, golden_light) in zip(found, GOLDEN, strict=True):
        assert classes == golden_classes
        assert area == pytest.approx(golden_area, abs=0.005)
        assert light == pytest.approx(golden_light, abs=1.0)


def test_cached_pixels_cannot_be_damaged(shapes):
    sample = shapes[0]
    before = sample.image.copy()
    sample.image[:] = 0
    sample.semantic[:] = 0
    np.testing.assert_array_equal(shapes[0].image, before)
    assert shapes[0].semantic.any()


def test_presence_is_what_the_label_maps_show(shapes):
    assert len(shapes.presence()) == len(shapes) > 0
    for index, classes in enumerate(shapes.presence()):
        assert classes == set(np.unique(shapes[index].semantic).tolist()) - {0}


def test_every_object_has_one_class_and_a_visible_area(shapes):
    for index in range(len(shapes)):
        sample = shapes[index]
        np.testing.assert_array_equal(sample.instances > 0, sample.semantic > 0)
        for number in set(np.unique(sample.instances)) - {0}:
            inside = sample.instances == number
            assert len(np.unique(sample.semantic[inside])) == 1
            assert inside.sum() >= 24


def test_images_are_like_voc(shapes):
    presence = shapes.presence()
    classes_per_image = Counter(len(classes) for classes in presence)
    assert classes_per_image[1] / len(presence) == pytest.approx(0.65, abs=0.12)
    assert max(classes_per_image) == 4
    assert all(sum(label in classes for classes in presence) >= 8 for label in range(1, 11))
    several = sum(len(np.unique(shapes[index].instances)) - 1 > len(presence[index]) for index in range(len(presence)))
    assert several / len(presence) > 0.15


def test_colour_does_not_give_away_the_class():
    """Mean colours of the classes differ by less than what objects of one class differ among themselves."""
    dataset = Shapes("train", num_images=300, seed=5)
    colours = {label: [] for label in range(1, 11)}
    for index in range(len(dataset)):
        sample = dataset[index]
        for label in dataset.presence()[index]:
            colours[label].append(sample.image[sample.semantic == label].mean(axis=0))
    within = np.mean([np.std(values, axis=0) for values in colours.values()])
    between = np.std([np.mean(values, axis=0) for values in colours.values()], axis=0).mean()
    assert within > 40
    assert between < 0.4 * within


def test_outlines_are_distinct_and_of_similar_size():
    every = [*OUTLINES.values(), *OTHER_OUTLINES.values()]
    covers = [coverage(outline, Placed(1, 0.5, 0.5, 0.6, 0.0, 1.0), 64).astype(float) / 255 for outline in every]
    for first, cover in enumerate(covers):
        assert 0.07 < cover.mean() < 0.25
        for second in range(first):
            union = np.maximum(cover, covers[second]).sum()
            assert np.minimum(cover, covers[second]).sum() / union < 0.85, (first, second)


def test_coverage_of_a_square_is_its_area_with_soft_edges():
    square = coverage(OUTLINES["square"], Placed(1, 0.5, 0.5, 0.5, 30.0, 1.0), 64)
    assert square.mean() / 255 == pytest.approx((0.5 * 0.78) ** 2, rel=0.04)
    assert ((square > 0) & (square < 255)).sum() > 30


def test_hidden_objects_lose_their_label(monkeypatch):
    below = Placed(2, 0.5, 0.5, 0.3, 0.0, 1.0)
    above = Placed(1, 0.5, 0.5, 0.7, 0.0, 1.0)
    monkeypatch.setattr("comastre.data.sets.shapes.random_layout", lambda rng, num_classes: [below, above])
    _, instances, labels = draw_image(np.random.default_rng(0), 64, tuple(OUTLINES.values()))
    assert labels[:3].tolist() == [0, 0, 1]
    assert set(np.unique(instances)) == {0, 2}


def test_other_shapes_are_drawn_alike_and_none_is_one_of_shapes(shapes):
    other = OtherShapes("train", num_images=40, seed=0)
    assert not set(other.class_names) & set(shapes.class_names)
    assert frozenset().union(*other.presence()) == other.things == frozenset(range(1, 9))
    assert other[3].image.shape == shapes[3].image.shape and (other[3].image != shapes[3].image).any()


def test_it_travels_to_loader_processes(shapes):
    copy = pickle.loads(pickle.dumps(shapes))
    np.testing.assert_array_equal(copy[4].image, shapes[4].image)
    assert copy.presence() == shapes.presence()


def test_larger_images_show_the_same_scene(shapes):
    large = Shapes("train", size=128, num_images=2)[1].semantic
    agreement = (large[::2, ::2] == shapes[1].semantic).mean()
    assert large.shape == (128, 128)
    assert agreement > 0.95


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 63}, "image_size is 63 .* 64 to 128"),
        ({"size": 129}, "image_size is 129 .* 64 to 128"),
        ({"split": "test"}, "not 'test'"),
        ({"seed": -1}, "seed is -1"),
        ({"num_images": 0}, "at least 1 image"),
    ],
)
def test_impossible_datasets_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        Shapes(**{"split": "train", **arguments})


def test_iteration_ends():
    assert len(list(Shapes("val", num_images=3))) == 3
