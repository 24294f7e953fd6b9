"""BatchNorm over two processes is BatchNorm of one process with all their images."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from timm.layers import BatchNormAct2d
from torch import Tensor, distributed, multiprocessing, nn

from comastre.nets.shared_batch_norm import share_batch_statistics

KINDS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: nn.BatchNorm2d(3),
    "with-activation": lambda: BatchNormAct2d(3),
    "without-weights": lambda: nn.BatchNorm2d(3, affine=False),
    "cumulative": lambda: nn.BatchNorm2d(3, momentum=None),
}
SPLITS = ((2, 2), (3, 2))
CASES = [(kind, split) for kind in KINDS for split in SPLITS]


def build(kind: str) -> nn.Sequential:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(KINDS[kind]())
    for parameter in model.parameters():
        nn.init.normal_(parameter, generator=generator)
    return model


def batch(split: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Images whose halves have different statistics, one channel far from 0, and weights of the outputs in a loss."""
    generator = torch.Generator().manual_seed(1)
    values, weights = torch.randn(2, sum(split), 3, 4, 6, generator=generator)
    values[split[0] :] *= 2
    values[split[0] :] += 0.5
    return values + torch.tensor([0.0, 3.0, -50.0]).view(3, 1, 1), weights


def train_and_use(model: nn.Sequential, values: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """Everything that BatchNorm gives: `rows_` per image, `sum_` to be added up over processes, the rest shared."""
    given: dict[str, Tensor] = {}
    for turn in (1, 2):
        images = (values * turn).requires_grad_()
        outputs = model(images)
        (outputs * weights).sum().backward()
        assert images.grad is not None
        given |= {f"rows_output_{turn}": outputs.detach(), f"rows_gradient_{turn}": images.grad}
    given |= {f"sum_{name}": parameter.grad for name, parameter in model.named_parameters()}
    given |= {name: buffer.clone() for name, buffer in model.named_buffers()}
    # As the old model of a later step is made and used, by one process alone.
    return given | {"rows_use": copy.deepcopy(model).eval()(values).detach()}


def process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    results = {}
    for kind, split in CASES:
        model = build(kind)
        names = list(model.state_dict())
        share_batch_statistics(model)
        assert list(model.state_dict()) == names
        results[kind, split] = train_and_use(model, *(half.split(split)[rank] for half in batch(split)))
    torch.save(results, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("processes")
    multiprocessing.spawn(process, args=(str(folder),), nprocs=2)
    return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize(("kind", "split"), CASES)
def test_two_processes_give_what_one_gives(results: list[dict], kind: str, split: tuple[int, int]):
    # Of the one process in float64, to measure the rounding of the two alone.
    values, weights = batch(split)
    expected = train_and_use(build(kind).double(), values.double(), weights.double())
    first, second = (result[kind, split] for result in results)
    assert first.keys() == second.keys() == expected.keys()
    for name, value in expected.items():
        if name.startswith("rows_"):
            found = torch.cat([first[name], second[name]])
        elif name.startswith("sum_"):
            found = first[name] + second[name]
        else:
            found = first[name]
            assert torch.equal(found, second[name]), name
        torch.testing.assert_close(found.to(value.dtype), value, rtol=1e-5, atol=1e-5, msg=(name + ": {}").format)


def test_one_process_keeps_the_batch_norm_it_has():
    model = build("with-activation")
    share_batch_statistics(model)
    assert type(model[0]) is BatchNormAct2d
