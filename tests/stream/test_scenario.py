"""docs/specification.md, Settings and protocols: which images a step sees, and what of their labels."""

from pathlib import Path

import numpy as np
import pytest

from comastre.errors import UserError
from comastre.stream.scenario import build_scenario, split_classes

GOLDEN = {
    ("19-1", "overlapped"): [10410, 548],
    ("19-1", "disjoint"): [10034, 548],
    ("15-5", "overlapped"): [9568, 2145],
    ("15-5", "disjoint"): [8437, 2145],
    ("15-1", "overlapped"): [9568, 487, 299, 491, 500, 548],
    ("15-1", "disjoint"): [8437, 378, 299, 420, 500, 548],
    ("10-1", "overlapped"): [6139, 528, 1177, 444, 482, 3898, 487, 299, 491, 500, 548],
    ("10-1", "disjoint"): [3706, 188, 868, 227, 201, 3247, 378, 299, 420, 500, 548],
}
# Classes 1, 2 are learned first, then 3, then 4.
PRESENCE = [{1}, {2, 3}, {3}, {1, 3}, {3, 4}, {4}, {1, 2, 3, 4}, set()]


@pytest.fixture(scope="module")
def voc_presence():
    """Classes of each of VOC's train_aug images; images with the same classes follow one another."""
    lines = (Path(__file__).parent / "golden" / "voc-train-aug.txt").read_text().splitlines()[1:]
    presence = []
    for line in lines:
        count, classes = line.split(":")
        presence += [frozenset(map(int, classes.split()))] * int(count)
    return presence


def test_the_golden_table_is_of_all_images_and_classes(voc_presence):
    assert len(voc_presence) == 10582
    assert frozenset().union(*voc_presence) == set(range(1, 21))
    assert all(voc_presence)  # every image shows something


@pytest.mark.parametrize(("setting", "protocol"), GOLDEN)
def test_voc_image_counts_are_those_of_real_masks(voc_presence, setting, protocol):
    scenario = build_scenario(voc_presence, 20, setting, protocol)
    assert [len(task.images) for task in scenario.tasks] == GOLDEN[setting, protocol]


def test_sequential_sees_the_images_of_disjoint(voc_presence):
    sequential = build_scenario(voc_presence, 20, "15-1", "sequential")
    assert [len(task.images) for task in sequential.tasks] == GOLDEN["15-1", "disjoint"]
    disjoint = build_scenario(voc_presence, 20, "15-1", "disjoint")
    assert [task.images for task in sequential.tasks] == [task.images for task in disjoint.tasks]


@pytest.mark.parametrize(
    ("setting", "sizes"),
    [
        ("100-50", [13452, 6744]),
        ("100-10", [13452, 1130, 1200, 1366, 1550, 1498]),
        ("50-50", [8219, 6384, 5593]),
    ],
)
def test_fixed_ade_partition_is_taken_as_it_is(setting, sizes):
    # As large as MiB's, which leaves a few images out; which image is where, the partition alone decides.
    shuffled = np.random.default_rng(0).permutation(20210)
    partition = np.split(shuffled[: sum(sizes)], np.cumsum(sizes)[:-1])
    scenario = build_scenario([set()] * 20210, 150, setting, "overlapped", partition=partition)
    assert scenario.tradition == "partition"
    assert [len(task.images) for task in scenario.tasks] == sizes
    assert [task.images for task in scenario.tasks] == [tuple(part.tolist()) for part in partition]


def test_overlapped_takes_every_image_with_a_new_class():
    scenario = build_scenario(PRESENCE, 4, "2-1", "overlapped")
    assert [task.images for task in scenario.tasks] == [(0, 1, 3, 6), (1, 2, 3, 4, 6), (4, 5, 6)]
    assert scenario.tradition == "protocol"


@pytest.mark.parametrize("protocol", ["disjoint", "sequential"])
def test_disjoint_and_sequential_refuse_images_with_future_classes(protocol):
    scenario = build_scenario(PRESENCE, 4, "2-1", protocol)
    assert [task.images for task in scenario.tasks] == [(0,), (1, 2, 3), (4, 5, 6)]


def test_classes_are_dealt_out_in_class_order():
    scenario = build_scenario(PRESENCE, 4, "2-1", "overlapped", class_order=(4, 2, 1, 3))
    middle = scenario.tasks[1]
    assert (middle.old_classes, middle.new_classes, middle.future_classes) == ((4, 2), (1,), (3,))
    assert middle.images == (0, 3, 6)


@pytest.mark.parametrize("protocol", ["overlapped", "disjoint"])
def test_past_and_future_classes_look_like_background(protocol):
    task = build_scenario(PRESENCE, 4, "2-1", protocol, class_order=(4, 2, 1, 3)).tasks[1]
    lookup = task.training_lookup()
    assert lookup[[0, 1, 2, 3, 4, 255]].tolist() == [0, 3, 0, 0, 0, 255]


def test_sequential_keeps_past_classes_annotated():
    presence = [{4}, {1, 2, 4}, {3}]
    task = build_scenario(presence, 4, "2-1", "sequential", class_order=(4, 2, 1, 3)).tasks[1]
    assert task.training_lookup()[[0, 1, 2, 3, 4, 255]].tolist() == [0, 3, 2, 0, 1, 255]


def test_at_evaluation_learned_classes_count_and_later_ones_are_background():
    scenario = build_scenario(PRESENCE, 4, "2-1", "overlapped", class_order=(4, 2, 1, 3))
    ids = [0, 1, 2, 3, 4, 255]
    assert scenario.evaluation_lookup(0)[ids].tolist() == [0, 0, 2, 0, 1, 255]
    assert scenario.evaluation_lookup(2)[ids].tolist() == [0, 3, 2, 4, 1, 255]


def test_ids_beyond_the_classes_are_ignored():
    scenario = build_scenario(PRESENCE, 4, "2-1", "overlapped")
    assert scenario.evaluation_lookup(0)[5] == 255
    assert scenario.tasks[0].training_lookup()[200] == 255


def test_joint_is_one_step_with_all_classes():
    scenario = build_scenario(PRESENCE, 4, "joint", "overlapped")
    (task,) = scenario.tasks
    assert task.new_classes == (1, 2, 3, 4)
    assert task.images == (0, 1, 2, 3, 4, 5, 6)


def test_settings_split_classes_as_told():
    assert split_classes(20, "15-1") == (15, 1, 1, 1, 1, 1)
    assert split_classes(150, "50-50") == (50, 50, 50)
    assert split_classes(10, "joint") == (10,)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("15-4", r"15-4 on 20 classes: 5 remaining classes can't be split into steps of 4"),
        ("21-1", r"21-1 on 20 classes: 21 base classes are more"),
        ("20-1", r"20-1 on 20 classes: no class remains"),
        ("15-0", r"15-0 on 20 classes: every step needs at least 1"),
        ("0-5", r"0-5 on 20 classes: every step needs at least 1"),
        ("fifteen", r"'fifteen' is not understood"),
        ("15-1-1", r"'15-1-1' is not understood"),
    ],
)
def test_impossible_settings_name_the_numbers(setting, message):
    with pytest.raises(UserError, match=message):
        build_scenario([{1}], 20, setting, "overlapped")


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ((1, 2, 3), "missing: 4"),
        ((1, 2, 3, 5), "missing: 4; unknown: 5"),
        ((1, 2, 2, 4), "missing: 3; twice: 2"),
        ((0, 1, 2, 3), "missing: 4; unknown: 0"),
        ((1, 2, 3, 4, 4), "twice: 4"),
    ],
)
def test_class_order_must_be_a_permutation(order, message):
    with pytest.raises(UserError, match=message):
        build_scenario(PRESENCE, 4, "2-1", "overlapped", class_order=order)


def test_a_step_without_images_names_its_classes():
    with pytest.raises(UserError, match=r"Step 1 .* no training image with any of the classes 3, 4"):
        build_scenario([{1}, {2}], 4, "2-2", "overlapped")
    with pytest.raises(UserError, match=r"Step 0 .*disjoint.* no training image with class 1"):
        build_scenario([{1, 2}], 2, "1-1", "disjoint")


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        ([[0], [1]], "2 parts but setting 2-1 has 3 steps"),
        ([[0], [1], [8]], r"Part 2 .* image 8 .* images 0\.\.7"),
        ([[0], [-1], [2]], "Part 1 .* image -1"),
        ([[0], [1, 3], [3]], "Image 3 is in part 1 and in part 2"),
        ([[0], [], [3]], "Step 1 .* class 3"),
    ],
)
def test_partitions_that_do_not_fit_are_refused(partition, message):
    with pytest.raises(UserError, match=message):
        build_scenario(PRESENCE, 4, "2-1", "overlapped", partition=partition)


def test_unknown_protocol_is_refused():
    with pytest.raises(UserError, match="'shuffled' is unknown"):
        build_scenario(PRESENCE, 4, "2-1", "shuffled")
