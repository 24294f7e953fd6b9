"""Augmentation moves labels with the image, and target masks follow the label rules."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from comastre.config.run import DataConfig
from comastre.data.dataset import Sample
from comastre.data.images import read_image
from comastre.data.transforms import (
    Augmentation,
    Window,
    augment,
    beside,
    draw_short_side,
    instance_targets,
    seeded,
    semantic_targets,
    training_example,
)

PLAIN = Augmentation(crop=32, scale=(1.0, 1.0), flip=False, colour_jitter=False)


def marked_image(height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels of smooth blocks, and an image whose brightness is ten times the label."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    labels = (1 + rows * 4 // height + 4 * (columns * 4 // width)).to(torch.int32)  # 1..16
    return (10 * labels).to(torch.uint8).expand(3, -1, -1).clone(), labels[None]


def augmented(image, labels, options, seed):
    """Label maps as one tensor (K, H, W)."""
    image, maps = augment(image, labels, options, seed)
    return image, torch.stack(maps)


def test_options_are_those_of_the_data_section():
    config = DataConfig(crop=48, scale=(0.9, 1.1), flip=False, colour_jitter=True)
    assert Augmentation.of(config) == Augmentation(48, (0.9, 1.1), False, True)
    assert Augmentation.of(config, step=1) == Augmentation.of(config)
    later = config.model_copy(update={"later_scale": (0.5, 2.0)})
    assert [Augmentation.of(later, step).scale for step in range(3)] == [(0.9, 1.1), (0.5, 2.0), (0.5, 2.0)]
    later = config.model_copy(update={"later_beside": 0.5})
    assert [Augmentation.of(later, step).beside for step in range(3)] == [0.0, 0.5, 0.5]


def test_nothing_switched_on_changes_nothing():
    image, labels = marked_image(32, 32)
    new_image, new_labels = augmented(image, labels, PLAIN, seed=3)
    assert torch.equal(new_image, image)
    assert torch.equal(new_labels, labels)


def test_flips_happen_half_of_the_time_and_move_labels_with_the_image():
    image, labels = marked_image(32, 32)
    options = Augmentation(32, (1.0, 1.0), flip=True, colour_jitter=False)
    flipped = 0
    for seed in range(60):
        new_image, new_labels = augmented(image, labels, options, seed)
        assert torch.equal(new_image[0].int(), 10 * new_labels[0])
        flipped += torch.equal(new_image, image.flip(-1))
    assert 18 <= flipped <= 42


def test_rescaled_crops_keep_labels_on_the_image():
    image, labels = marked_image(60, 80)
    options = Augmentation(32, (0.5, 2.0), flip=True, colour_jitter=False)
    padded = 0
    for seed in range(30):
        new_image, new_labels = augmented(image, labels, options, seed)
        assert new_image.shape == (3, 32, 32)
        assert new_labels.shape == (1, 32, 32)
        ignored = new_labels[0] == 255
        padded += bool(ignored.any())
        assert torch.all(new_image[:, ignored] == 128)
        # Only pixels on the edges of blocks are mixtures.
        assert ((new_image[0].int() - 10 * new_labels[0]).abs()[~ignored] > 5).float().mean() < 0.35
    assert 3 < padded < 27


def test_the_short_side_is_a_multiple_of_the_crop():
    image, labels = marked_image(20, 40)
    _, half = augmented(image, labels, Augmentation(32, (0.5, 0.5), False, False), 0)
    assert (half[0] != 255).sum() == 16 * 32  # 16 x 32 of 32 x 32 are image, the rest is padding
    assert (half[0, :16] != 255).all()


def test_the_seed_decides_everything_and_nothing_leaks():
    image, labels = marked_image(60, 80)
    options = Augmentation(32, (0.5, 2.0), True, True)
    state = torch.random.get_rng_state()
    first = augmented(image, labels, options, 1)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.rand(5)
    again, other = augmented(image, labels, options, 1), augmented(image, labels, options, 2)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])


def test_seeded_restores_the_generator_after_an_error():
    state = torch.random.get_rng_state()
    with pytest.raises(ValueError, match="broken"), seeded(1):
        torch.rand(1)
        raise ValueError("broken")
    assert torch.equal(torch.random.get_rng_state(), state)


def test_colour_jitter_changes_colours_but_not_padding_nor_labels():
    image, labels = marked_image(24, 40)
    jittered = Augmentation(32, (0.75, 0.75), False, True)
    still = Augmentation(32, (0.75, 0.75), False, False)
    changed = 0
    for seed in range(10):
        new_image, new_labels = augmented(image, labels, jittered, seed)
        old_image, old_labels = augmented(image, labels, still, seed)
        assert torch.equal(new_labels, old_labels)
        assert torch.all(new_image[:, new_labels[0] == 255] == 128)
        changed += not torch.equal(new_image, old_image)
    assert changed >= 7


def test_semantic_targets_have_one_mask_per_class_and_none_for_ignored_pixels():
    labels = torch.tensor([[0, 3, 3], [255, 1, 0]])
    masks, indices = semantic_targets(labels)
    assert indices.tolist() == [0, 2]
    assert masks.dtype == torch.bool
    assert masks.int().tolist() == [[[0, 0, 0], [0, 1, 0]], [[0, 1, 1], [0, 0, 0]]]


def test_an_image_without_classes_has_no_masks():
    masks, indices = semantic_targets(torch.tensor([[0, 255]]))
    assert masks.shape == (0, 1, 2)
    assert indices.shape == (0,)
    masks, indices = instance_targets(torch.tensor([[0, 255]]), torch.tensor([[1, 2]]))
    assert masks.shape == (0, 1, 2)
    assert indices.shape == (0,)


def test_instance_targets_have_one_mask_per_object():
    labels = torch.tensor([[2, 2, 0, 2], [255, 1, 1, 4]])
    instances = torch.tensor([[1, 1, 2, 3], [3, 5, 5, 0]])
    masks, indices = instance_targets(labels, instances)
    assert indices.tolist() == [1, 1, 0, 3]  # objects 1, 3, 5, then class 4 without an object
    assert masks.int().tolist() == [
        [[1, 1, 0, 0], [0, 0, 0, 0]],
        [[0, 0, 0, 1], [0, 0, 0, 0]],
        [[0, 0, 0, 0], [0, 1, 1, 0]],
        [[0, 0, 0, 0], [0, 0, 0, 1]],
    ]


def test_examples_see_labels_through_the_lookup():
    lookup = np.full(256, 255)
    lookup[:4] = (0, 0, 5, 0)  # only class 2 is new: model class 4
    semantic = np.zeros((32, 32), dtype=np.uint8)
    semantic[:8], semantic[8:16], semantic[16:20] = 1, 2, 255
    instances = np.zeros((32, 32), dtype=np.int32)
    instances[:8], instances[8:16, :16], instances[8:16, 16:] = 1, 2, 3
    sample = Sample(np.zeros((32, 32, 3), dtype=np.uint8), semantic, instances, "one")
    example = training_example(sample, lookup, PLAIN, False, 0)
    assert example.image.shape == (3, 32, 32)
    assert example.classes.tolist() == [4]
    assert example.masks[0, 8:16].all()
    assert example.masks.sum() == 8 * 32
    expected = np.zeros((32, 32), dtype=np.uint8)
    expected[8:16], expected[16:20] = 5, 255
    assert example.labels.dtype == torch.uint8
    assert example.labels.tolist() == expected.tolist()
    by_object = training_example(sample, lookup, PLAIN, True, 0)
    assert by_object.classes.tolist() == [4, 4]
    assert by_object.masks.flatten(1).sum(1).tolist() == [128, 128]
    assert torch.equal(by_object.labels, example.labels)
    # A dataset that does not know objects falls back to one mask per class.
    without = training_example(Sample(sample.image, semantic, None, "one"), lookup, PLAIN, True, 0)
    assert without.classes.tolist() == [4]


def test_labels_are_255_where_a_crop_is_padded():
    sample = Sample(np.zeros((16, 24, 3), dtype=np.uint8), np.full((16, 24), 2, dtype=np.uint8), None, "one")
    lookup = np.full(256, 255)
    lookup[:4] = (0, 0, 5, 0)
    half = Augmentation(32, (0.5, 0.5), flip=False, colour_jitter=False)
    example = training_example(sample, lookup, half, False, 0)
    expected = np.full((32, 32), 255)
    expected[:16, :24] = 5
    assert example.labels.tolist() == expected.tolist()
    assert torch.equal(example.masks[0], example.labels == 5)


# --- what makes it fast changes nothing that training learns from ----------------------------------------------------


def naive(image, labels, options, seed):
    """The order of torchvision's own transforms: resize everything, then crop."""
    with seeded(seed):
        where_scale, where_top, where_left, where_flip = torch.rand(4).tolist()
    low, high = options.scale
    factor = round(options.crop * (low + where_scale * (high - low))) / min(labels.shape[-2:])
    size = [round(side * factor) for side in labels.shape[-2:]]
    image = functional.resize(image, size, antialias=True)
    labels = functional.resize(labels, size, interpolation=InterpolationMode.NEAREST_EXACT)
    height, width = (min(side, options.crop) for side in size)
    top, left = int(where_top * (size[0] - height + 1)), int(where_left * (size[1] - width + 1))
    image, labels = (functional.crop(each, top, left, height, width) for each in (image, labels))
    if options.flip and where_flip < 0.5:
        image, labels = functional.horizontal_flip(image), functional.horizontal_flip(labels)
    missing = [0, 0, options.crop - width, options.crop - height]
    return functional.pad(image, missing, fill=128), functional.pad(labels, missing, fill=255)


def test_labels_are_exactly_those_of_resizing_everything_first():
    generator = torch.Generator().manual_seed(0)
    options = Augmentation(32, (0.5, 2.0), True, False)
    shares = torch.zeros(2, 256)
    for seed, (height, width) in enumerate([(60, 80), (37, 53), (101, 30), (200, 300)] * 6):
        image = torch.randint(0, 256, (3, height, width), generator=generator, dtype=torch.uint8)
        labels = torch.randint(0, 21, (2, height, width), generator=generator, dtype=torch.int32)
        new_image, new_labels = augmented(image, labels, options, seed)
        old_image, old_labels = naive(image, labels, options, seed)
        assert torch.equal(new_image, old_image)
        assert torch.equal(new_labels, old_labels)
        for row, each in enumerate((new_labels, old_labels)):
            shares[row] += torch.bincount(each.flatten().long(), minlength=256)
    shares /= shares.sum(1, keepdim=True)
    assert torch.equal(shares[0], shares[1])
    assert shares[0, :21].min() > 0.01


def test_an_image_read_smaller_gives_the_same_labels_and_almost_the_same_pixels(tmp_path):
    rows, columns = np.mgrid[:400, :600]
    pixels = np.stack([rows % 256 // 2, columns % 256 // 2, (rows + columns) // 4 % 256], axis=-1).astype(np.uint8)
    path = tmp_path / "image.jpg"
    Image.fromarray(pixels).save(path, quality=95)
    labels = torch.from_numpy((rows // 40 + columns // 60).astype(np.uint8))
    options = Augmentation(64, (0.5, 2.0), True, True)
    smaller = 0
    for seed in range(12):
        full, _ = read_image(path)
        small, size = read_image(path, draw_short_side(options, seed))
        assert size == full.shape[:2]
        assert min(small.shape[:2]) >= draw_short_side(options, seed)
        smaller += small.shape != full.shape
        made = [
            augment(torch.from_numpy(each.copy()).permute(2, 0, 1), [labels], options, seed) for each in (full, small)
        ]
        assert torch.equal(made[0][1][0], made[1][1][0])
        assert (made[0][0].float() - made[1][0].float()).abs().mean() < 6
    assert smaller == 12


def test_the_short_side_is_known_before_the_image_is_read():
    image, labels = marked_image(40, 40)
    options = Augmentation(32, (0.25, 1.0), False, False)
    for seed in range(10):
        _, new_labels = augmented(image, labels, options, seed)
        assert (new_labels[0] != 255).sum() == draw_short_side(options, seed) ** 2


# --- crops beside labelled objects -----------------------------------------------------------------------------------


def slow_strip(labelled: np.ndarray) -> int:
    """Pixels of the largest strip along an edge without a labelled pixel, at least a quarter of the side wide."""
    height, width = labelled.shape
    areas = [0]
    for depth in range(1, height + 1):
        areas += [depth * width] * (4 * depth >= height and not labelled[:depth].any())
        areas += [depth * width] * (4 * depth >= height and not labelled[height - depth :].any())
    for depth in range(1, width + 1):
        areas += [depth * height] * (4 * depth >= width and not labelled[:, :depth].any())
        areas += [depth * height] * (4 * depth >= width and not labelled[:, width - depth :].any())
    return max(areas)


def test_the_largest_strip_beside_the_labelled_objects_is_found():
    generator = np.random.default_rng(0)
    found = 0
    for _ in range(200):
        labelled = np.zeros(generator.integers(8, 40, 2), dtype=bool)
        for _ in range(generator.integers(1, 4)):
            labelled[generator.integers(labelled.shape[0]), generator.integers(labelled.shape[1])] = True
        window = beside(labelled)
        found += window is not None
        assert (window.height * window.width if window else 0) == slow_strip(labelled)
        assert window is None or not labelled[window.top : window.bottom, window.left : window.right].any()
    assert 50 < found < 200
    assert beside(np.zeros((8, 8), dtype=bool)) is None  # the whole image shows nothing already
    assert beside(np.ones((8, 8), dtype=bool)) is None


@pytest.mark.parametrize(("old", "new"), [((60, 80), (32, 43)), ((60, 80), (120, 160)), ((7, 9), (3, 4))])
def test_a_rescaled_window_has_only_pixels_from_inside(old, new):
    for top, left in ((0, 0), (2, 3), (4, 5), (6, 8)):
        part = Window(top, left, old[0], old[1]).scaled(old, new)
        assert part.bottom == new[0] and part.right == new[1] and part.height >= 1 and part.width >= 1
        if part.height > 1:
            assert part.top * old[0] >= top * new[0] > (part.top - 1) * old[0]


def test_crops_beside_labelled_objects_show_none_of_them_at_the_usual_scale():
    generator = np.random.default_rng(1)
    image = generator.integers(0, 256, (60, 80, 3), dtype=np.uint8)
    semantic = np.zeros((60, 80), dtype=np.uint8)
    semantic[20:50, 10:40] = 2  # the largest strip: columns 40 to 79
    semantic[5:20, 50:70] = 1  # an old class, which is not labelled
    lookup = np.zeros(256, dtype=np.int64)
    lookup[2] = 1
    usual = Augmentation(32, (0.5, 1.5), flip=True, colour_jitter=False)
    half = Augmentation(32, (0.5, 1.5), flip=True, colour_jitter=False, beside=0.5)
    empty = 0
    for seed in range(60):
        sample = Sample(image, semantic, None, "one")
        ours = training_example(sample, lookup, half, False, seed)
        same = training_example(sample, lookup, usual, False, seed)
        beside_it = not torch.equal(ours.image, same.image)
        empty += beside_it
        if beside_it:
            assert ours.masks.shape == (0, 32, 32) and ours.classes.shape == (0,)
            assert set(ours.labels.unique().tolist()) <= {0, 255}
            expected = augment(
                torch.from_numpy(image).permute(2, 0, 1),
                [torch.from_numpy(semantic)],
                usual,
                seed,
                Window(0, 40, 60, 80),
            )[0]
            assert torch.equal(ours.image, expected)
    assert 18 <= empty <= 42


def test_a_crop_within_a_window_is_a_part_of_the_rescaled_image():
    image, labels = marked_image(60, 80)
    options = Augmentation(32, (0.5, 2.0), flip=False, colour_jitter=False)
    for seed in range(20):
        window = Window(20, 0, 60, 80)
        _, maps = augment(image, list(labels), options, seed, window)
        short = draw_short_side(options, seed)
        size = [short, round(80 * short / 60)]
        whole = functional.resize(labels, size, interpolation=InterpolationMode.NEAREST_EXACT)[0]
        seen = maps[0] != 255
        height, width = int(seen[:, 0].sum()), int(seen[0].sum())
        part = window.scaled((60, 80), (size[0], size[1]))
        places = [
            (top, left)
            for top in range(part.top, part.bottom - height + 1)
            for left in range(part.left, part.right - width + 1)
            if torch.equal(whole[top : top + height, left : left + width], maps[0][:height, :width])
        ]
        assert places and height == min(32, part.height) and width == min(32, part.width)
