"""The user's data as the grown model labels it, and what is held out of it."""

from collections import Counter

import numpy as np
import pytest
import small_lesson as small

import small_data
from comastre.data.files import FileDataset
from comastre.data.label_counts import some_label_counts
from comastre.data.relabel import relabel
from comastre.data.sets.shapes import Shapes
from comastre.data.sources import parse_source
from comastre.errors import UserError
from comastre.learning.images import hold_out, to_train_on, training_part, typical_size
from comastre.learning.plan import NameChoices, make_plan

NO_FLAGS = NameChoices({}, (), ())
COLOURS = tuple((i, i, i) for i in range(12))


@pytest.mark.parametrize("kind", ["folder", "coco"])
def test_masks_in_another_order_are_the_same_to_the_model(tmp_path, kind):
    """The data numbers star 1, heart 2, disk 3; the model knows disk, star, ring."""
    samples = small.samples_with(("star", "disk", "heart"), 12)
    write = small.write_folder if kind == "folder" else small.write_coco
    dataset = training_part(parse_source(write(tmp_path / "data", samples, ("star", "heart", "disk"))))
    names = ("disk", "star", "ring", "heart")
    seen = relabel(dataset, (2, 4, 1), names, COLOURS)
    assert isinstance(seen, FileDataset) and len(seen) == 12
    truth = [np.where(mask == 3, 0, mask) for mask in small.masks_of(samples, names)]  # rings are not labelled
    by_id = {sample.image_id: mask for sample, mask in zip(samples, truth, strict=True)}
    for index in range(12):
        sample = seen[index]
        assert np.array_equal(sample.semantic, by_id[sample.image_id])
    assert seen.presence() == [frozenset(np.unique(seen[i].semantic).tolist()) - {0} for i in range(12)]


@pytest.mark.parametrize("kind", ["folder", "coco", "shapes"])
def test_a_part_of_the_data_has_its_own_images_and_labels(tmp_path, kind):
    samples = small.samples_with(("heart",), 6)
    if kind == "shapes":
        dataset = Shapes("train", 64, 6, 0)
    else:
        write = small.write_folder if kind == "folder" else small.write_coco
        dataset = training_part(parse_source(write(tmp_path / "data", samples, ("heart",))))
    labels = tuple(range(2, len(dataset.class_names) + 2))
    part = relabel(dataset, labels, ("old", *dataset.class_names), COLOURS, indices=(4, 1))
    for place, index in enumerate((4, 1)):
        whole = dataset[index].semantic.astype(int)
        assert part[place].image_id == dataset[index].image_id
        assert np.array_equal(part[place].image, dataset[index].image)
        assert np.array_equal(part[place].semantic, np.where(whole > 0, whole + 1, 0))
    assert len(relabel(dataset, labels, dataset.class_names, COLOURS, indices=())) == 0


def test_ignored_pixels_stay_ignored(tmp_path):
    from PIL import Image

    root = small.write_folder(tmp_path / "data", small.samples_with(("heart",), 1), ("heart",))
    file = next((root / "masks").iterdir())
    Image.fromarray(np.full((64, 64), 255, dtype=np.uint8)).save(file)
    seen = relabel(training_part(parse_source(root)), (7,), tuple("abcdefg"), COLOURS)
    assert (seen[0].semantic == 255).all()


def test_every_new_class_gives_a_share_for_scoring_and_keeps_most():
    random = np.random.default_rng(0)
    presence = [frozenset(random.choice(5, random.integers(1, 4), replace=False).tolist()) for _ in range(200)]
    names = [f"image-{index}" for index in range(200)]
    chosen = hold_out(names, presence, {1, 2, 3})
    total = Counter(label for classes in presence for label in classes)
    taken = Counter(label for index in chosen for label in presence[index])
    for label in (1, 2, 3):
        assert 0.1 * total[label] < taken[label] < 0.35 * total[label]
    assert all({1, 2, 3} & presence[index] for index in chosen)


def test_the_names_alone_decide_what_is_held_out():
    names = [f"image-{index}" for index in range(30)]
    presence = [frozenset({1})] * 30
    chosen = {names[index] for index in hold_out(names, presence, {1})}
    again = {names[::-1][index] for index in hold_out(names[::-1], presence, {1})}
    assert chosen == again and len(chosen) == 4  # 15 % of 30, rounded to even


@pytest.mark.parametrize(("count", "held_out"), [(1, 0), (4, 0), (5, 1), (20, 3)])
def test_a_class_with_few_images_needs_them_all(count, held_out):
    names = [f"image-{index}" for index in range(count)]
    assert len(hold_out(names, [frozenset({1})] * count, {1})) == held_out


def test_images_that_show_nothing_are_scored_and_trained_on_but_not_without_end():
    names = [f"image-{index}" for index in range(140)]
    presence = [frozenset({1})] * 20 + [frozenset()] * 120
    held_out = hold_out(names, presence, {1})
    assert [sum(index < 20 for index in held_out), sum(index >= 20 for index in held_out)] == [3, 18]
    images = to_train_on(names, presence, held_out)
    assert [sum(index < 20 for index in images), sum(index >= 20 for index in images)] == [17, 4 * 17]
    assert not set(images) & set(held_out)
    assert len(to_train_on(names[:25], presence[:25], ())) == 25
    # Where no class can spare an image for scoring, neither do those that show nothing.
    assert hold_out(names[16:], presence[16:], {1}) == ()


def test_a_lesson_knows_what_to_train_on_and_what_to_score(tmp_path):
    samples = small.samples_with(("heart",), 20)
    empty = small.samples_with(("bolt",), 3, "val")
    root = small.write_folder(tmp_path / "data", [*samples, *empty], ("heart",))
    found = make_plan(None, root, None, None, NO_FLAGS, 0.15)
    masks = [mask for mask in small.masks_of([*samples, *empty], ("heart",)) if mask.any()]
    assert found.total == 23 and found.shown == {"heart": len(masks)}
    assert len(found.lesson.held_out) == 3
    assert found.empty == 23 - len(masks) > 0  # so few that all of them are for training
    assert len(found.lesson.images) == found.amounts.images == 20
    assert not set(found.lesson.images) & set(found.lesson.held_out)
    training, scoring = found.lesson.data(None)
    assert len(training) == 23 and len(scoring) == 3


def test_data_with_a_validation_split_holds_nothing_out(tmp_path):
    samples = small.samples_with(("heart",), 12)
    root = small.write_folder(tmp_path / "data", samples, ("heart",))
    names = [sample.image_id for sample in samples]
    (root / "train.txt").write_text("\n".join(names[:8]))
    (root / "val.txt").write_text("\n".join(names[8:]))
    found = make_plan(None, root, None, None, NO_FLAGS, 0.15)
    assert found.lesson.held_out == () and len(found.lesson.images) == 8
    _, scoring = found.lesson.data(None)
    assert [scoring[index].image_id for index in range(4)] == names[8:]


def test_other_data_for_scoring_may_have_other_ids(tmp_path):
    root = small.write_folder(tmp_path / "data", small.samples_with(("heart",), 6), ("heart", "bolt"))
    val = small.write_folder(tmp_path / "val", small.samples_with(("heart",), 4, "val"), ("disk", "heart"))
    found = make_plan(None, root, str(val), None, NO_FLAGS, 0.15)
    assert found.lesson.scoring_labels == (0, 1) and found.lesson.scored == {"heart"}
    assert len(found.lesson.images) == 6
    assert len(found.lesson.data(None)[1]) == 4


def test_sizes_are_read_from_headers(tmp_path):
    root = small.write_folder(tmp_path / "data", small.samples_with(("heart",), 3), ("heart",))
    assert typical_size(training_part(parse_source(root))) == (64, True)


def test_more_classes_than_a_label_map_holds_are_refused(tmp_path):
    from comastre.class_table import class_table

    root = small.write_folder(tmp_path / "data", small.samples_with(("heart",), 2), ("heart",))
    known = class_table([f"class {index}" for index in range(254)], [254])
    with pytest.raises(UserError, match="the model would have 255 classes"):
        make_plan(known, root, None, None, NO_FLAGS, 0.15)


@pytest.mark.parametrize(
    ("masks", "names", "said"),
    [
        ((1, 2), ("cat", "dog"), "(0.0 % are background), so there is no background: predict with --every_pixel true"),
        ((0, 1, 2, 1), ("void", "cat", "dog"), "what is not labelled is void (25.0 % of the pixels)"),
        ((0, 1, 2, 1), ("cat", "dog"), None),
    ],
)
def test_a_lesson_says_that_its_data_has_no_background(tmp_path, masks, names, said):
    root = small_data.write_folder(tmp_path, dict.fromkeys("abcdef", masks), names)
    plan = make_plan(None, root, None, None, NO_FLAGS, 0.15)
    assert len(plan.hints) == (said is not None)
    assert said is None or said in plan.hints[0]


def test_labels_of_some_images_are_counted_without_reading_photographs(tmp_path):
    root = small_data.write_folder(tmp_path, {f"{number:02d}": (0, 1, 255) for number in range(40)})
    dataset = training_part(parse_source(root))
    for image in (root / "images").iterdir():
        image.write_bytes(b"")
    counts = some_label_counts(dataset, most=10)
    # Stripes of 6, 5 and 5 columns in 12 rows; what is ignored meets nobody.
    assert [counts.pixels[label] for label in (0, 1, 255)] == [720, 600, 600]
    assert [counts.borders[label] for label in (0, 1, 255)] == [120, 120, 0]
