"""From a configuration to tasks: MiB's partitions from files, and classes that no image shows."""

import numpy as np
import pytest

from comastre.config.run import ContinualConfig, RunConfig
from comastre.errors import UserError
from comastre.stream.build import build_stream

NAMES = ("cat", "dog", "cow", "hen")
PRESENCE = [{1}, {2, 3}, {3}, {4}, {1, 4}]


def config(**continual):
    return RunConfig(continual=ContinualConfig(**continual))


def write_partition(folder, *steps):
    for step, images in enumerate(steps):
        np.save(folder / f"train-{step}.npy", images)


@pytest.fixture
def real_partitions(request):
    """The folder of MiB's own files where it lies beside the repository, else None: they are never shipped."""
    folder = request.config.rootpath.parent / "shared" / "data" / "ade-mib-partition"
    return folder if folder.is_dir() else None


@pytest.mark.parametrize(
    ("folder", "setting", "sizes"),
    [
        ("100-50", "100-50", [13452, 6744]),
        ("100-10", "100-10", [13452, 1130, 1200, 1366, 1550, 1498]),
        ("50", "50-50", [8219, 6384, 5593]),
    ],
)
def test_mib_partitions_give_the_golden_counts_of_ade20k(tmp_path, real_partitions, folder, setting, sizes):
    everything = [range(1, 151)] * 20210
    names = [f"class {label}" for label in range(1, 151)]
    shuffled = np.random.default_rng(0).permutation(20210)
    write_partition(tmp_path, *np.split(shuffled[: sum(sizes)], np.cumsum(sizes)[:-1]))
    for path in (tmp_path, real_partitions and real_partitions / folder):
        if path is not None:
            fixed = build_stream(config(setting=setting, partition=str(path)), everything, names)
            assert [len(task.images) for task in fixed.tasks] == sizes
            assert fixed.tradition == "partition"
    ruled = build_stream(config(setting=setting), everything, names)
    assert ruled.tradition == "protocol"
    assert [len(task.images) for task in ruled.tasks] == [20210] * len(sizes)


def test_partitions_are_read_from_the_users_folder(tmp_path):
    write_partition(tmp_path, [0, 1], [2, 3])
    scenario = build_stream(config(setting="2-2", partition=str(tmp_path)), PRESENCE, NAMES)
    assert [task.images for task in scenario.tasks] == [(0, 1), (2, 3)]


def test_joint_training_has_one_step():
    joint = RunConfig(method="joint", continual=ContinualConfig(setting="2-2"))
    assert len(build_stream(joint, PRESENCE, NAMES).tasks) == 1


def test_a_class_that_no_image_of_its_step_shows_is_named(tmp_path):
    with pytest.raises(
        UserError, match=r"Class 2 \(dog\) is new in step 0 of setting 2-2 \(overlapped\) but in none of"
    ):
        build_stream(config(setting="2-2"), [{1}, {3}, {4}], NAMES)
    with pytest.raises(UserError, match=r"Class 1 \(cat\) \(nor 1 others\) .* 3 training images"):
        build_stream(config(setting="4-1"), [{3}, {4}, {5}, {4}], (*NAMES, "pig"))
    write_partition(tmp_path, [0, 2], [1, 3])
    with pytest.raises(UserError, match=r"Class 2 \(dog\) is new in step 0"):
        build_stream(config(setting="2-2", partition=str(tmp_path)), PRESENCE, NAMES)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no train-0.npy"),
        (b"text", r"train-0\.npy cannot be read"),
        (b"", r"train-0\.npy cannot be read"),
        (np.array([0.5]), r"train-0\.npy holds float64 but must hold image numbers"),
        (np.array([{}], dtype=object), r"train-0\.npy cannot be read: Object arrays"),
    ],
)
def test_bad_partition_files_are_named(tmp_path, content, message):
    if isinstance(content, bytes):
        (tmp_path / "train-0.npy").write_bytes(content)
    elif content is not None:
        np.save(tmp_path / "train-0.npy", content, allow_pickle=True)
    with pytest.raises(UserError, match=message):
        build_stream(config(setting="2-2", partition=str(tmp_path)), PRESENCE, NAMES)
