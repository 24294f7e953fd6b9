"""Batches are the same however the work is split, and a restart continues exactly."""

import pickle
from itertools import islice

import numpy as np
import pytest
import torch

from comastre.config.run import DataConfig, RunConfig, TrainingConfig
from comastre.data.dataset import Sample
from comastre.data.sets.shapes import Shapes
from comastre.errors import UserError
from comastre.stream.loading import TrainingStream, evaluation_batches, training_batches
from comastre.stream.scenario import build_scenario


@pytest.fixture(scope="module")
def shapes():
    return Shapes("train", num_images=60)


@pytest.fixture(scope="module")
def tasks(shapes):
    return build_scenario(shapes.presence(), 10, "6-2", "overlapped").tasks


def run_config(workers=0, accumulate=1, masks="semantic", seed=0):
    return RunConfig(
        seed=seed,
        data=DataConfig(crop=64, scale=(0.8, 1.25), workers=workers, masks=masks),
        training=TrainingConfig(batch_size=8, accumulate=accumulate),
    )


def pixels(iterations):
    """Everything a model sees, with the micro-batches of an iteration joined."""
    joined = []
    for batches in iterations:
        images = torch.cat([batch.images for batch in batches])
        masks = [m[:n] for b in batches for m, n in zip(b.targets.masks, b.targets.counts, strict=True)]
        labels = [m[:n] for b in batches for m, n in zip(b.targets.labels, b.targets.counts, strict=True)]
        image_ids = [i for b in batches for i in b.targets.image_ids]
        maps = torch.cat([batch.labels for batch in batches])
        joined.append((images, torch.cat(masks), torch.cat(labels), image_ids, maps))
    return joined


def assert_same(first, second):
    assert len(first) == len(second) > 0
    for one, two in zip(first, second, strict=True):
        assert one[3] == two[3]
        for place in (0, 1, 2, 4):
            assert torch.equal(one[place], two[place])


def test_a_batch_has_the_agreed_form(shapes, tasks):
    (batch,) = next(training_batches(shapes, tasks[0], run_config()))
    assert (batch.images.shape, batch.images.dtype) == ((8, 3, 64, 64), torch.uint8)
    assert batch.padding is None
    assert (batch.rows, batch.global_batch, batch.iteration) == (slice(0, 8), 8, 0)
    assert batch.targets.masks.shape[0] == 8
    assert batch.targets.masks.shape[2:] == (64, 64)
    assert (batch.labels.shape, batch.labels.dtype) == ((8, 64, 64), torch.uint8)
    moved = batch.to("meta")
    assert {moved.images.device.type, moved.labels.device.type, moved.targets.masks.device.type} == {"meta"}


@pytest.mark.parametrize("masks", ["semantic", "instance"])
def test_label_maps_say_what_the_masks_say_and_which_pixels_are_padding(shapes, tasks, masks):
    stream = TrainingStream(shapes, tasks[1], run_config(masks=masks))
    padded = 0
    for iteration in range(3):
        (batch,) = stream[iteration]
        for row, count in enumerate(batch.targets.counts):
            labels = torch.zeros(64, 64, dtype=torch.uint8)
            for mask, index in zip(batch.targets.masks[row, :count], batch.targets.labels[row, :count], strict=True):
                labels[mask] = index + 1
            # Images smaller than the crop are padded with grey; Shapes ignores no pixel.
            outside = batch.labels[row] == 255
            assert (batch.images[row][:, outside] == 128).all()
            padded += int(outside.sum())
            assert torch.equal(batch.labels[row], torch.where(outside, 255, labels))
    assert padded > 0


def test_every_epoch_shows_every_image_of_the_task_once(shapes, tasks):
    stream = TrainingStream(shapes, tasks[1], run_config())
    length = len(tasks[1].images)
    entries = [index for iteration in range(length) for index in stream.indices_for(iteration)]  # 8 epochs
    epochs = [entries[first : first + length] for first in range(0, len(entries), length)]
    assert all(sorted(epoch) == sorted(tasks[1].images) for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_a_batch_larger_than_the_task_repeats_images(shapes, tasks):
    few = type(tasks[0])(0, (1,), (), (), (4, 7, 9))
    indices = TrainingStream(shapes, few, run_config()).indices_for(2)
    assert len(indices) == 8
    assert set(indices) == {4, 7, 9}


def test_order_and_pixels_follow_seed_and_step(shapes, tasks):
    def order(seed, task):
        return TrainingStream(shapes, task, run_config(seed=seed)).indices_for(0)

    same_images = type(tasks[0])(1, (1,), (), (), tasks[0].images)
    assert order(0, tasks[0]) == order(0, tasks[0])
    assert order(0, tasks[0]) != order(1, tasks[0])
    assert order(0, tasks[0]) != order(0, same_images)
    assert order(-3, tasks[0]) != order(3, tasks[0])


def test_later_steps_may_have_another_scale(shapes, tasks):
    usual = run_config()
    other = usual.model_copy(update={"data": usual.data.model_copy(update={"later_scale": (1.5, 1.6)})})
    for task in tasks[:2]:
        first, second = (TrainingStream(shapes, task, config)[0][0].images for config in (usual, other))
        assert torch.equal(first, second) == (task.step == 0)


def test_one_image_is_augmented_differently_each_time(shapes, tasks):
    single = type(tasks[0])(0, (1,), (), (), (4,))
    batches = training_batches(shapes, single, run_config(), stop=2)
    assert len({image.numpy().tobytes() for (batch,) in batches for image in batch.images}) == 2 * 8


def test_loader_processes_change_nothing(shapes, tasks):
    alone = list(training_batches(shapes, tasks[0], run_config(workers=0), stop=6))
    helped = list(training_batches(shapes, tasks[0], run_config(workers=2), stop=6))
    assert [batches[0].iteration for batches in helped] == list(range(6))
    assert_same(pixels(alone), pixels(helped))


def test_a_restart_gives_the_tail(shapes, tasks):
    whole = list(islice(training_batches(shapes, tasks[0], run_config()), 9))
    tail = list(islice(training_batches(shapes, tasks[0], run_config(), start=5), 4))
    assert tail[0][0].iteration == 5
    assert_same(pixels(whole[5:]), pixels(tail))


@pytest.mark.parametrize(("world_size", "accumulate"), [(2, 1), (4, 1), (1, 4), (2, 2)])
def test_processes_and_parts_share_one_global_batch(shapes, tasks, world_size, accumulate):
    config = run_config(accumulate=accumulate)
    whole = list(training_batches(shapes, tasks[0], run_config(), stop=3))
    ranks = [
        list(training_batches(shapes, tasks[0], config, 0, rank, world_size, stop=3)) for rank in range(world_size)
    ]
    together = [sum(parts, ()) for parts in zip(*ranks, strict=True)]
    for batches in together:
        assert len(batches) == world_size * accumulate
        rows = [row for batch in batches for row in range(8)[batch.rows]]
        assert rows == list(range(8))
        assert all(batch.global_batch == 8 for batch in batches)
    assert_same(pixels(whole), pixels(together))


def test_batches_that_cannot_be_shared_are_refused(shapes, tasks):
    with pytest.raises(UserError, match=r"batch_size is 8 .* 3 x 1"):
        training_batches(shapes, tasks[0], run_config(), world_size=3)


def test_loading_leaves_the_random_numbers_of_training_alone(shapes, tasks):
    for workers in (0, 1):
        state = torch.random.get_rng_state()
        list(training_batches(shapes, tasks[0], run_config(workers=workers), stop=2))
        assert torch.equal(torch.random.get_rng_state(), state)


def test_only_new_classes_have_masks(shapes, tasks):
    for task in tasks:
        first = len(task.old_classes)
        allowed = set(range(first, first + len(task.new_classes)))
        found = set()
        for (batch,) in training_batches(shapes, task, run_config(), stop=6):
            found |= set(batch.targets.labels[batch.targets.valid].tolist())
        assert found == allowed


def test_masks_per_object(shapes, tasks):
    objects = sum(
        sum(b.targets.counts) for (b,) in training_batches(shapes, tasks[0], run_config(masks="instance"), stop=5)
    )
    classes = sum(sum(b.targets.counts) for (b,) in training_batches(shapes, tasks[0], run_config(), stop=5))
    assert objects > classes


def test_threads_of_the_training_process_are_left_as_they_were(shapes, tasks):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        next(training_batches(shapes, tasks[0], run_config()))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_batches_travel_between_processes(shapes, tasks):
    (batch,) = next(training_batches(shapes, tasks[0], run_config()))
    copy = pickle.loads(pickle.dumps(batch))
    assert torch.equal(copy.images, batch.images)
    assert copy.rows == batch.rows


class Sizes:
    """Images of different sizes whose pixels are their number."""

    name = "sizes"
    class_names = ("thing",)
    colours = ((0, 0, 0), (255, 0, 0))
    has_background = True
    sizes = ((4, 6), (5, 3), (4, 6), (4, 6), (2, 2))

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        if index == 4 and getattr(self, "broken", False):
            raise UserError("image 4 is broken: copy it again.")
        image = np.full((*self.sizes[index], 3), index, dtype=np.uint8)
        return Sample(image, np.ones(self.sizes[index], dtype=np.uint8), None, str(index))

    def presence(self):
        return [frozenset({1})] * len(self)


def test_evaluation_reads_images_at_their_own_size():
    first, second, third = evaluation_batches(Sizes(), 2)
    assert [sample.image.shape for sample in first] == [(4, 6, 3), (5, 3, 3)]
    assert [sample.semantic.shape for sample in first] == [(4, 6), (5, 3)]
    assert [sample.image_id for sample in second] == ["2", "3"]
    assert [sample.image_id for sample in third] == ["4"]


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_evaluation_shows_every_image_once_over_all_processes(world_size, batch_size):
    ids = [
        sample.image_id
        for rank in range(world_size)
        for batch in evaluation_batches(Sizes(), batch_size, rank, world_size)
        for sample in batch
    ]
    assert sorted(ids) == list("01234")


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_of_a_dataset_arrive_as_they_are(workers):
    dataset = Sizes()
    dataset.broken = True
    with pytest.raises(UserError, match=r"^image 4 is broken: copy it again\.$"):
        list(evaluation_batches(dataset, 2, workers=workers))
