"""Training batches of image files: decoded small where that is enough, with the labels of the full-size mask."""

import numpy as np
import pytest
import torch
from PIL import Image

from comastre.config.run import DataConfig, RunConfig, TrainingConfig
from comastre.data import files
from comastre.data.build import build_datasets
from comastre.errors import UserError
from comastre.stream.build import build_stream
from comastre.stream.loading import TrainingStream, evaluation_batches, training_batches
from small_data import write_folder, write_image, write_mask, write_voc


def run_config(root, **data):
    settings = {"dataset": "folder", "root": str(root), "crop": 32, "workers": 0} | data
    config = RunConfig(data=DataConfig(**settings), training=TrainingConfig(batch_size=2))
    return config.model_copy(update={"continual": config.continual.model_copy(update={"setting": "1-1"})})


@pytest.fixture
def root(tmp_path):
    write_folder(tmp_path, {"a": (1,), "b": (0, 2)})
    for name, labels in (("a", (1,)), ("b", (0, 2))):
        write_image(tmp_path / "images" / f"{name}.jpg", (240, 320))
        write_mask(tmp_path / "masks" / f"{name}.png", *labels, size=(240, 320))
    (tmp_path / "train.txt").write_text("a\nb\n")
    (tmp_path / "val.txt").write_text("b\n")
    return tmp_path


def stream_of(config):
    training, validation = build_datasets(config.data)
    scenario = build_stream(config, training.presence(), training.class_names)
    return training, validation, scenario


def test_images_are_decoded_no_larger_than_needed(root, monkeypatch):
    config = run_config(root)
    training, _, scenario = stream_of(config)
    sizes = []

    def watched(path, short_side=None, read=files.read_image):
        image, size = read(path, short_side)
        sizes.append((short_side, image.shape[0], size))
        return image, size

    monkeypatch.setattr(files, "read_image", watched)
    for iteration in range(4):
        (batch,) = TrainingStream(training, scenario.tasks[0], config)[iteration]
        assert batch.images.shape == (2, 3, 32, 32)
        assert batch.targets.masks.shape[-2:] == (32, 32)
    assert len(sizes) == 8
    assert all(16 <= wanted <= 64 and wanted <= height < 240 and full == (240, 320) for wanted, height, full in sizes)


def test_batches_do_not_depend_on_the_number_of_loader_processes(root):
    made = []
    for workers in (0, 2):
        config = run_config(root, workers=workers)
        training, _, scenario = stream_of(config)
        made.append(list(training_batches(training, scenario.tasks[1], config, stop=3)))
    assert len(made[0]) == 3
    for (alone,), (together,) in zip(*made, strict=True):
        assert torch.equal(alone.images, together.images)
        assert torch.equal(alone.targets.masks, together.targets.masks)


def test_a_file_that_breaks_during_training_is_named(root):
    config = run_config(root, workers=1)
    training, _, scenario = stream_of(config)
    Image.fromarray(np.zeros((10, 10), dtype=np.uint8)).save(root / "masks" / "b.png")
    with pytest.raises(UserError, match=r"b\.png is 10 x 10 but its image b\.jpg is 320 x 240"):
        list(training_batches(training, scenario.tasks[1], config, stop=2))


def test_evaluation_sees_the_original_resolution(root):
    _, validation, _ = stream_of(run_config(root))
    ((sample,),) = evaluation_batches(validation, 1)
    assert sample.image.shape == (240, 320, 3)
    assert sample.semantic.shape == (240, 320)


VOC_SETTINGS = {"19-1": 2, "15-5": 2, "15-1": 6, "10-1": 11}


@pytest.mark.parametrize(("setting", "steps"), VOC_SETTINGS.items())
def test_every_class_of_every_step_is_found_in_files(tmp_path, setting, steps):
    # Image k shows class k and the one after it, so that a step of classes a..b sees images a - 1..b.
    write_voc(tmp_path, {f"{label:02d}": (label, label % 20 + 1) for label in range(1, 21)}, {"v": (1,)})
    config = run_config(tmp_path, dataset="voc")
    config = config.model_copy(update={"continual": config.continual.model_copy(update={"setting": setting})})
    _, _, scenario = stream_of(config)
    assert len(scenario.tasks) == steps
    for task in scenario.tasks:
        shown = {label % 20 for label in range(task.new_classes[0] - 1, task.new_classes[-1] + 1)}
        assert {(index + 1) % 20 for index in task.images} == shown
        assert len(task.images) == len(shown) == len(task.new_classes) + 1


def test_every_class_of_every_step_is_in_voc_mini(shared):
    path = shared / "data" / "voc-mini"
    if not path.is_dir():
        pytest.skip("voc-mini is not in the shared data")
    config = run_config(path, dataset="voc")
    for setting, steps in VOC_SETTINGS.items():
        config = config.model_copy(update={"continual": config.continual.model_copy(update={"setting": setting})})
        _, _, scenario = stream_of(config)
        assert len(scenario.tasks) == steps
