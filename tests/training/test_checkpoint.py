"""Checkpoints: whole or not there, and everything comes back."""

import errno
import json
import os
import random
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from comastre.errors import UserError
from comastre.training import checkpoint as checkpoints
from comastre.training.checkpoint import (
    Checkpoint,
    Position,
    load,
    load_latest,
    optimiser_tensors,
    random_state,
    restore_optimiser,
    restore_random_state,
    save,
)
from comastre.training.stopping import Diverged


def checkpoint(iteration: int, value: float = 1.0) -> Checkpoint:
    shared = torch.full((4, 3), value)
    return Checkpoint(
        position=Position(1, iteration, seconds=2.5),
        model={"weight": shared, "view": shared[1:], "count": torch.tensor(7), "half": torch.ones(3).bfloat16()},
        tasks=(2, 1),
        method={"old_model/weight": torch.zeros(2), "threshold": torch.tensor(0.25)},
        optimiser={"0/step": torch.tensor(3.0)},
        random_states=(random_state(),),
        results={"avg": 1.5, "name": "größe"},
        scaler={"scale": 2.0},
        config="abc",
    )


def never(message: str) -> None:
    raise AssertionError(message)


def test_everything_comes_back(tmp_path: Path):
    before = checkpoint(3)
    after = load(save(tmp_path, before))
    assert after.position == before.position
    assert after.tasks == (2, 1)
    assert (after.results, after.scaler, after.config) == (before.results, before.scaler, before.config)
    for name in ("model", "method", "optimiser"):
        tensors, expected = getattr(after, name), getattr(before, name)
        assert tensors.keys() == expected.keys()
        assert all(
            torch.equal(tensors[key], expected[key]) and tensors[key].dtype == expected[key].dtype for key in tensors
        )
    assert after.random_states[0].keys() == before.random_states[0].keys()


def test_the_last_two_are_kept_and_the_newest_is_loaded(tmp_path: Path):
    (tmp_path / ".step-01-iteration-00000099.safetensors.partial").write_bytes(b"left by a kill")
    for iteration in (2, 9, 10, 100):
        save(tmp_path, checkpoint(iteration))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-01-iteration-00000010.safetensors",
        "step-01-iteration-00000100.safetensors",
    ]
    latest = load_latest(tmp_path, never)
    assert latest is not None
    assert latest.position.iteration == 100


def test_no_checkpoint_yet(tmp_path: Path):
    assert load_latest(tmp_path / "missing", never) is None


@pytest.mark.parametrize("damage", ["truncated", "empty", "one bit", "half the header"])
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(tmp_path: Path, damage: str):
    save(tmp_path, checkpoint(1))
    path = save(tmp_path, checkpoint(2))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    whole = path.read_bytes()
    path.write_bytes(
        {"truncated": whole[:-5], "empty": b"", "one bit": bytes(content), "half the header": whole[:60]}[damage]
    )
    messages: list[str] = []
    latest = load_latest(tmp_path, messages.append)
    assert latest is not None
    assert latest.position.iteration == 1
    assert len(messages) == 1
    assert "step-01-iteration-00000002" in messages[0]
    # Put aside: the next start does not stumble again, and it never counts as one of the two that are kept.
    assert load_latest(tmp_path, never) is not None


def test_every_bit_of_a_checkpoint_is_watched(tmp_path: Path):
    """One bit anywhere: in lengths, names, shapes, the state, its checksum or the weights."""
    first = save(tmp_path / "first", small(1))
    path = save(tmp_path / "second", small(2))
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    generator = random.Random(0)
    bits = [8 * place + generator.randrange(8) for place in (*range(8, header), len(whole) - 1)]
    for bit in bits:
        folder = tmp_path / "third"
        folder.mkdir(exist_ok=True)
        (folder / first.name).write_bytes(first.read_bytes())
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        (folder / path.name).write_bytes(bytes(flipped))
        messages: list[str] = []
        latest = load_latest(folder, messages.append)
        assert latest is not None
        if flipped[bit // 8 : bit // 8 + 1].isspace() and not messages:  # the header is padded with blanks
            assert latest == load_latest(tmp_path / "second", never)
            continue
        assert (latest.position.iteration, len(messages)) == (1, 1), f"bit {bit} of {path}"


def small(iteration: int) -> Checkpoint:
    """Without tensors that need a comparison of their own."""
    return Checkpoint(Position(1, iteration), model={}, results={"avg": 1.5}, config="abc")


@pytest.mark.parametrize(
    "edit",
    [
        lambda state: state["position"].update(iteration=1),
        lambda state: state["position"].update(other=1),
        lambda state: state.update(position=[1, 2]),
        lambda state: state.update(version=2),
        lambda state: state.update(version=99),
        lambda state: state.pop("tasks"),
    ],
)
def test_an_edited_header_is_a_damaged_checkpoint(tmp_path: Path, edit):
    path = save(tmp_path, checkpoint(2))
    with safe_open(path, framework="pt") as file:
        header = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    state = json.loads(header["comastre"])
    edit(state)
    for kept in ({"checksum": header["checksum"]}, {}):
        save_file(tensors, path, metadata={"comastre": json.dumps(state), **kept})
        if kept or state["version"] != 99:
            with pytest.raises((ValueError, KeyError, TypeError)):
                load(path)
    with pytest.raises(UserError, match=r"every checkpoint in .* --fresh|another version"):
        load_latest(tmp_path, lambda message: None)


def test_a_checkpoint_of_before_the_header_was_checked_goes_on(tmp_path: Path):
    path = save(tmp_path, checkpoint(2))
    with safe_open(path, framework="pt") as file:
        state = json.loads(file.metadata()["comastre"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    checksum = 0  # as version 2 counted: names and bytes, one after the other
    for name in sorted(tensors):
        content = tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes()
        checksum = zlib.crc32(content, zlib.crc32(name.encode(), checksum))
    old = json.dumps(state | {"version": 2, "checksum": checksum})
    save_file(tensors, path, metadata={"comastre": old})
    assert load(path).position == Position(1, 2, seconds=2.5)
    save_file(tensors, path, metadata={"comastre": old.replace(str(checksum), str(checksum ^ 1))})
    with pytest.raises(ValueError, match="checksum"):
        load(path)


def test_only_damaged_checkpoints_are_refused(tmp_path: Path):
    save(tmp_path, checkpoint(1)).write_bytes(b"nothing")
    with pytest.raises(UserError, match="--fresh"):
        load_latest(tmp_path, lambda message: None)


def test_a_checkpoint_of_an_older_version_is_refused_and_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "VERSION", 1)
        path = save(tmp_path, checkpoint(1))
    before = path.read_bytes()
    with pytest.raises(UserError, match="written by another version of comastre: start over with --fresh"):
        load_latest(tmp_path, never)
    assert path.read_bytes() == before


@pytest.mark.parametrize("where", ["write", "fsync", "rename"])
def test_a_full_disk_is_one_sentence_and_leaves_the_last_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
):
    save(tmp_path, checkpoint(1))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if where == "fsync":
        monkeypatch.setattr(os, "fsync", full)
    elif where == "rename":
        monkeypatch.setattr(Path, "replace", full)
    else:
        # A real error from the system, in a process of its own limits: a file may not grow beyond 1 kB.
        import resource

        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(UserError, match=r"the disk is full: .*iteration-00000002.* start the same command again"):
            save(tmp_path, checkpoint(2))
    finally:
        monkeypatch.undo()
        if where == "write":
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["step-01-iteration-00000001.safetensors"]
    latest = load_latest(tmp_path, never)
    assert latest is not None
    assert latest.position.iteration == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_never_written(tmp_path: Path, value: float):
    save(tmp_path, checkpoint(1))
    with pytest.raises(Diverged, match=r"weight weight .* step 1, iteration 2"):
        save(tmp_path, checkpoint(2, value))
    assert [path.name for path in tmp_path.iterdir()] == ["step-01-iteration-00000001.safetensors"]


def draw() -> list[float]:
    normal = [random.gauss(0, 1), float(np.random.normal()), float(torch.randn(()))]
    return [*normal, random.random(), float(np.random.rand()), float(torch.rand(()))]


def test_random_states_go_on_where_they_were():
    draw()  # leaves half a pair of normal numbers in Python's and numpy's generators
    state = random_state()
    first = draw()
    draw()
    restore_random_state(state)
    assert draw() == first


def test_the_optimiser_goes_on_bit_for_bit():
    def step(model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        optimiser.zero_grad()
        model(torch.arange(6.0).view(2, 3)).square().sum().backward()
        optimiser.step()

    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    unused = nn.Parameter(torch.zeros(1))  # has no memory, as an unused head
    optimiser = torch.optim.AdamW([*model.parameters(), unused], lr=0.1)
    step(model, optimiser)
    weights, memory = {k: v.clone() for k, v in model.state_dict().items()}, optimiser_tensors(optimiser)
    memory = {name: tensor.clone() for name, tensor in memory.items()}
    step(model, optimiser)

    again = nn.Linear(3, 2)
    again.load_state_dict(weights)
    optimiser = torch.optim.AdamW([*again.parameters(), unused], lr=0.1)
    restore_optimiser(optimiser, memory)
    step(again, optimiser)
    assert torch.equal(again.weight, model.weight)
