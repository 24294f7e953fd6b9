"""The proof that a method keeps the promises that the rest of the program relies on: `check_method(spec)`.

It trains the method for a few iterations on drawn shapes, on one CPU. Authors of methods call it in their own tests.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from comastre.config import methods
from comastre.config.methods import MethodSpec
from comastre.config.run import RunConfig
from comastre.data.build import build_datasets
from comastre.data.dataset import IGNORE, SegmentationDataset
from comastre.data.targets import Targets
from comastre.losses.points import PointSource
from comastre.methods.build import build_method, setup_of
from comastre.methods.protocol import Method
from comastre.nets.shared_batch_norm import share_batch_statistics
from comastre.section import merge
from comastre.stream.build import build_stream
from comastre.stream.loading import Batch, training_batches
from comastre.stream.scenario import Scenario, Task
from comastre.stream.whole_images import whole_images

SMALL: Mapping[str, Any] = {
    "size": "tiny",
    # Statistics of the backbone that stand still; those that do not are shared by two processes, as in the loop.
    "backbone": {"freeze_batch_norm": "always"},
    "data": {"dataset": "shapes", "crop": 64, "train_images": 60, "val_images": 4, "workers": 0},
    "continual": {"setting": "6-2"},
    "training": {"batch_size": 4, "accelerator": "cpu"},
}
_ITERATIONS = 2
_IMAGES = 12


class _Stream:
    """A method with data to learn: drawn shapes in steps of 6, 2 and 2 classes."""

    def __init__(self, spec: MethodSpec, settings: Mapping[str, Any] | None) -> None:
        self.config = RunConfig.model_validate(merge({**SMALL, "method": spec.name}, settings or {}))
        self.dataset: SegmentationDataset = build_datasets(self.config.data)[0]
        self.scenario: Scenario = build_stream(self.config, self.dataset.presence(), self.dataset.class_names)

    def method(self) -> Method:
        return build_method(self.config.method, setup_of(self.config))

    def batches(self, task: Task, count: int, start: int = 0) -> Iterator[Batch]:
        stream = training_batches(self.dataset, task, self.config, start)
        return (part for parts in islice(stream, count) for part in parts)

    def whole(self, task: Task, rank: int = 0, world_size: int = 1) -> Iterator[Batch]:
        """A process's share of some whole images."""
        some = replace(task, images=task.images[:_IMAGES])
        return whole_images(self.dataset, some, self.config, rank, world_size)

    def learns_at_once(self, task: Task) -> bool:
        return self.config.method_settings.learns_at_once(task.step)


def check_method(spec: MethodSpec, settings: Mapping[str, Any] | None = None) -> None:
    """Raise an AssertionError with one sentence for the first promise that the method does not keep.

    `settings` are laid over those of a small run, such as {"my_method": {"layers": 1}}.
    """
    assert methods.find(spec.name) == spec, f"{spec.name} is not the method that is installed under this name"
    with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory() as folder:
        stream = _Stream(spec, settings)
        _check_configuration(stream)
        _check_growth(stream, spec)
        _check_nothing_to_learn(stream)
        _check_resume(stream)
        if any(stream.learns_at_once(task) for task in stream.scenario.tasks):
            _check_resume_between(stream)
        _check_two_processes(stream, spec, settings, Path(folder))


def _check_configuration(stream: _Stream) -> None:
    written = stream.config.model_dump(mode="json")
    assert RunConfig.model_validate(written) == stream.config, "its section does not read back as it was written"
    section = stream.config.spec.config
    unknown = [name for name in section.model_sections if name not in section.model_fields]
    assert not unknown, f"model_sections names {unknown}, which are no fields of the section"


def _check_growth(stream: _Stream, spec: MethodSpec) -> None:
    """All tasks one after the other: the model grows by each, learns, labels images, and can be kept and rebuilt."""
    method, model = stream.method(), None
    learned: tuple[int, ...] = ()
    for task in stream.scenario.tasks:
        torch.manual_seed(task.step)
        model = method.begin(task, model)
        learned = (*learned, len(task.new_classes)) if "labels" in spec.gives else (1,)
        assert model.tasks == learned, f"after the classes {learned} were begun, model.tasks is {model.tasks}"
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        if stream.learns_at_once(task):
            what = f"a look at the images of step {task.step} changed no number"
            method.gather(model, partial(stream.whole, task))
        else:
            what = f"{_ITERATIONS} iterations of step {task.step} changed no weight"
            method.before_training(model, partial(stream.batches, task, 2))
            _train(stream, method, model, task, _ITERATIONS)
        changed = [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])]
        assert changed, what
        if not stream.learns_at_once(task):
            method.look_back(model, partial(stream.batches, task, 2))
            method.gather(model, partial(stream.whole, task))
        model = method.after_training(task, model)
        assert model.tasks == learned, "after_training changed the model's tasks"
        _check_model(stream, method, model, sum(learned), spec)


def _check_model(stream: _Stream, method: Method, model: nn.Module, num_classes: int, spec: MethodSpec) -> None:
    """A model's weights are all there is to it: rebuilt from them, it says the same."""
    model.eval()
    again = method.build(model.tasks)  # type: ignore[arg-type]
    with torch.no_grad():
        again.load_state_dict(copy.deepcopy(model.state_dict()))
    again.eval()
    images = torch.stack([torch.from_numpy(np.array(stream.dataset[index].image)) for index in range(2)])
    images = images.permute(0, 3, 1, 2)  # (2, 3, H, W) uint8
    sizes = [(64, 64), (64, 64)]
    with torch.no_grad():
        found, rebuilt = model.segment(images, None, sizes), again.segment(images, None, sizes)  # type: ignore[operator]
        alone = [model.segment(image[None], None, sizes[:1])[0] for image in images]  # type: ignore[operator]
    for one, other, single in zip(found, rebuilt, alone, strict=True):
        assert one.label_map.shape == (64, 64), f"a label map is {tuple(one.label_map.shape)} for an image of 64 x 64"
        assert int(one.label_map.min()) >= 0 and int(one.label_map.max()) <= num_classes, "a label is out of range"
        assert torch.equal(one.label_map, other.label_map), "built anew with its weights, the model labels otherwise"
        same = (one.label_map == single.label_map).float().mean().item()
        assert same > 0.99, "an image alone is labelled otherwise than in a batch"
        assert (one.proposals is not None) == ("proposals" in spec.gives), "proposals are not what `gives` says"


def _train(
    stream: _Stream, method: Method, model: Any, task: Task, iterations: int, start: int = 0, optimiser: Any = None
) -> Any:
    """Some iterations, as the loop makes them; gives the optimiser."""
    optimiser = optimiser or method.optimiser(model, task.step)
    model.train()
    beside = method.training_modules()
    if beside is not None:
        beside.train()
    for number, batch in enumerate(stream.batches(task, iterations, start), start=start):
        terms = method.losses(model, batch, _points(batch, number))
        weights = method.weights()
        assert terms, "there is no loss term"
        for name, value in terms.items():
            assert name in weights, f"the term {name} has no weight"
            assert value.dim() == 0 and bool(torch.isfinite(value)), f"the term {name} is {value}"
        total = method.total(terms)
        expected = sum(weights[name] * value.detach() for name, value in terms.items())
        torch.testing.assert_close(total.detach(), torch.as_tensor(expected), rtol=1e-4, atol=1e-5)
        total.backward()
        optimiser.step()
        optimiser.zero_grad()
    return optimiser


def _check_nothing_to_learn(stream: _Stream) -> None:
    """Images whose pixels are all ignored: finite terms with a whole graph, so that no process waits for another."""
    method, task = stream.method(), stream.scenario.tasks[0]
    model = method.begin(task, None)
    model.train()
    (batch,) = stream.batches(task, 1)
    count, _, height, width = batch.images.shape
    masks = [torch.zeros(0, height, width, dtype=torch.bool)] * count
    targets = Targets.stack(masks, [torch.zeros(0, dtype=torch.long)] * count, batch.targets.image_ids)
    empty = replace(batch, targets=targets, labels=torch.full_like(batch.labels, IGNORE))
    terms = method.losses(model, empty, _points(empty, 0))
    for name, value in terms.items():
        assert bool(torch.isfinite(value)), f"the term {name} is {value} where there is nothing to learn"
    total = method.total(terms)
    assert total.requires_grad, "a batch without anything to learn has no gradient at all"
    total.backward()
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        assert gradient is None or bool(torch.isfinite(gradient).all()), f"{name} has a gradient that is no number"


def _check_resume(stream: _Stream) -> None:
    """Killed in the middle of the last step with iterations, a method goes on from its state to the same bits."""
    tasks = [task for task in stream.scenario.tasks[:2] if not stream.learns_at_once(task)]
    method, model = stream.method(), None
    for task in tasks:
        torch.manual_seed(task.step)
        model = method.begin(task, model)
        method.before_training(model, partial(stream.batches, task, 2))
        optimiser = _train(stream, method, model, task, _ITERATIONS)
        if task is not tasks[-1]:
            method.look_back(model, partial(stream.batches, task, 2))
            method.gather(model, partial(stream.whole, task))
            model = method.after_training(task, model)
    assert model is not None
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = {name: tensor.clone() for name, tensor in method.state().items()}
    memory = copy.deepcopy(optimiser.state_dict())

    again = stream.method()
    rebuilt = again.build(model.tasks)  # type: ignore[arg-type]
    rebuilt.load_state_dict(kept)
    again.restore(tasks[-1], rebuilt, state)
    assert again.state().keys() == state.keys(), "the state after restoring has other names than before"
    for name, tensor in again.state().items():
        assert torch.equal(tensor, state[name]), f"{name} of the state is not restored as it was"
    restored = again.optimiser(rebuilt, tasks[-1].step)
    restored.load_state_dict(memory)

    for one, built, by in ((method, model, optimiser), (again, rebuilt, restored)):
        torch.manual_seed(7)
        _train(stream, one, built, tasks[-1], _ITERATIONS, _ITERATIONS, by)
    ends = zip(model.state_dict().items(), rebuilt.state_dict().values(), strict=True)
    different = [name for (name, one), other in ends if not torch.equal(one, other)]
    assert not different, f"after a kill and a restart {different[0]} ends otherwise ({len(different)} weights in all)"


def _check_resume_between(stream: _Stream) -> None:
    """Killed before a step that is one look at its images, a method ends it with the same bits."""
    first, second = stream.scenario.tasks[:2]
    method = stream.method()
    model = method.begin(first, None)
    method.gather(model, partial(stream.whole, first))
    model = method.after_training(first, model)
    state = {name: tensor.clone() for name, tensor in method.state().items()}
    again = stream.method()
    rebuilt = again.build(model.tasks)  # type: ignore[arg-type]
    rebuilt.load_state_dict(copy.deepcopy(model.state_dict()))
    again.restore(None, rebuilt, state)
    ends = []
    for one, built in ((method, model), (again, rebuilt)):
        built = one.begin(second, built)
        one.gather(built, partial(stream.whole, second))
        ends.append(one.after_training(second, built).state_dict())
    different = [name for name, tensor in ends[0].items() if not torch.equal(tensor, ends[1][name])]
    assert not different, f"after a kill and a restart {different[0]} ends otherwise ({len(different)} tensors in all)"


# --- two processes ---------------------------------------------------------------------------------------------------


class _Losses(nn.Module):
    """What devices wrap: the total loss of a batch as one forward pass."""

    def __init__(self, method: Method, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.beside = method.training_modules()
        self.method = method

    def forward(self, batch: Batch, points: PointSource) -> Tensor:
        return self.method.total(self.method.losses(self.model, batch, points))


def _check_two_processes(stream: _Stream, spec: MethodSpec, settings: Mapping[str, Any] | None, folder: Path) -> None:
    """The mean gradient of two processes with half a batch each is that of one process with all of it.

    So are the numbers of a step that is one look at its images.
    """
    at_once = any(stream.learns_at_once(task) for task in stream.scenario.tasks)
    one = _gathered(stream, 0, 1) if at_once else _gradients(stream, _later_losses(stream), slice(0, 4))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = _processes()
    workers = [
        context.Process(target=_half, args=(rank, port, spec.name, dict(settings or {}), folder)) for rank in (0, 1)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=240)
        if worker.is_alive():
            worker.terminate()
    assert all(worker.exitcode == 0 for worker in workers), "with two processes it fails, or they wait for each other"
    two = load_file(folder / "gradients.safetensors")
    if at_once:
        for name, number in one.items():
            same = torch.allclose(two[name], number, rtol=1e-4, atol=1e-5 * float(number.abs().max()))
            assert same, f"{name} is another where two processes look at the images"
        return
    assert one.keys() == two.keys(), "in two processes other weights get a gradient"
    # A gradient that is 0 but for rounding, such as that of an attention's key bias, differs by all of itself.
    smallest = 1e-3 * max(float(gradient.abs().max()) for gradient in one.values())
    for name, gradient in one.items():
        scale = max(float(gradient.abs().max()), smallest)
        error = float((two[name] - gradient).abs().max()) / scale
        assert error < 1e-2, f"the gradient of {name} is another in two processes (by {error:.1e} of its largest value)"


def _processes() -> Any:
    """How processes are started: from one that has imported this file, where the system can do that."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # or each of them would spend seconds on importing torch
    return context


def _half(rank: int, port: int, name: str, settings: Mapping[str, Any], folder: Path) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    try:
        stream = _Stream(methods.find(name), settings)
        if any(stream.learns_at_once(task) for task in stream.scenario.tasks):
            gathered = _gathered(stream, rank, 2)
            if rank == 0:
                save_file(gathered, folder / "gradients.safetensors")
            return
        plain = _later_losses(stream)
        share_batch_statistics(plain)  # as the loop does
        losses = DistributedDataParallel(plain, find_unused_parameters=True)
        gradients = _gradients(stream, losses, slice(2 * rank, 2 * rank + 2))
        if rank == 0:
            save_file(gradients, folder / "gradients.safetensors")
    finally:
        torch.distributed.destroy_process_group()


def _later_losses(stream: _Stream) -> _Losses:
    """The method at the beginning of its last checked step, the same in every process."""
    method, model = stream.method(), None
    for task in stream.scenario.tasks[:2]:
        if model is not None:
            model = method.after_training(stream.scenario.tasks[task.step - 1], model)
        torch.manual_seed(task.step)
        model = method.begin(task, model)
    assert model is not None
    losses = _Losses(method, model)
    return losses.train()


def _gathered(stream: _Stream, rank: int, world_size: int) -> dict[str, Tensor]:
    """All real numbers of a model after two steps, of which this process saw its share of the images."""
    method, model = stream.method(), None
    for task in stream.scenario.tasks[:2]:
        torch.manual_seed(task.step)
        model = method.begin(task, model)
        method.gather(model, partial(stream.whole, task, rank, world_size))
        model = method.after_training(task, model)
    assert model is not None
    return {name: tensor for name, tensor in model.state_dict().items() if tensor.is_floating_point()}


def _gradients(stream: _Stream, losses: nn.Module, rows: slice) -> dict[str, Tensor]:
    """Gradients of the given rows of one batch of the last checked step."""
    task = stream.scenario.tasks[:2][-1]
    (batch,) = stream.batches(task, 1)
    whole = batch.targets
    chosen = range(rows.start, rows.stop)
    targets = Targets.stack(
        [whole.masks[row, : whole.counts[row]] for row in chosen],
        [whole.labels[row, : whole.counts[row]] for row in chosen],
        whole.image_ids[rows],
    )
    part = replace(batch, images=batch.images[rows], targets=targets, labels=batch.labels[rows], rows=rows)
    losses(part, _points(part, 0)).backward()
    plain = losses.module if isinstance(losses, DistributedDataParallel) else losses
    return {name: value.grad for name, value in plain.named_parameters() if value.grad is not None}


def _points(batch: Batch, iteration: int) -> PointSource:
    return PointSource(0, iteration, batch.rows, batch.global_batch, batch.images.device)
