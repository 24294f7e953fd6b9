"""A bundle is foreign data: what it names is not opened, what it claims is compared, what it holds is looked at."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from comastre.bundle import store
from comastre.errors import UserError

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_bundle, tmp_path / "model")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def change(file: Path, *place: Any, to: Any) -> None:
    content = json.loads(file.read_text())
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = to
    file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    "name", ["hf-hub:someone/model", "hf_hub:someone/model", "local-dir:/x", "../x", "/x", "a/b", "", "a" * 1000, "x y"]
)
def test_a_network_has_a_plain_name(bundle: Path, no_network: None, name: str) -> None:
    change(bundle / store.CONFIG, "backbone", "name", to=name)
    with pytest.raises(UserError, match=r"backbone|config\.json: name: .* is no plain name of timm"):
        store.load(bundle)


def test_loading_uses_no_network(bundle: Path, no_network: None) -> None:
    change(bundle / store.CONFIG, "backbone", "weights", to="hub")
    store.load(bundle)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("settings", "mask_decoder", "num_queries"), 10**9),
        (("settings", "mask_decoder", "layers"), 10**9),
        (("settings", "mask_decoder", "feedforward"), 10**9),
        (("settings", "pixel_decoder", "dim"), 2**29),
        (("settings", "mask_decoder", "layers"), 200),
        (("settings", "mask_decoder", "feedforward"), 1000),
        (("backbone", "name"), "vit_giant_patch14_224"),
        (("backbone", "name"), "resnet152"),
    ],
)
def test_sizes_are_compared_before_anything_is_built(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, place: tuple[str, ...], value: Any
) -> None:
    largest = 0
    empty = torch.empty

    def watched(*args: Any, **kwargs: Any) -> torch.Tensor:
        nonlocal largest
        made = empty(*args, **kwargs)
        if made.device.type != "meta":
            largest = max(largest, made.numel())
        return made

    monkeypatch.setattr(torch, "empty", watched)
    change(bundle / store.CONFIG, *place, to=value)
    with pytest.raises(UserError, match=r"not of one bundle|strides|of one size only"):
        store.load(bundle)
    assert largest < 10_000, "memory was taken for a model that does not fit its file"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_weights_are_finite(bundle: Path, number: float) -> None:
    tensors = load_file(bundle / store.WEIGHTS)
    name = next(name for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.dim() > 1)
    tensors[name].view(-1)[3] = number
    save_file(tensors, bundle / store.WEIGHTS)
    with pytest.raises(UserError, match=f"tensor {name} holds NaN or infinite numbers"):
        store.load(bundle)


@pytest.mark.parametrize("std", [[0, 1, 1], [1e-300, 1, 1], [-1, 1, 1], [1e300, 1, 1]])
def test_a_deviation_is_one_that_can_be_divided_by(bundle: Path, std: list[float]) -> None:
    change(bundle / store.CONFIG, "backbone", "std", to=std)
    with pytest.raises(UserError, match=r"config\.json: std\[0\] is .* but must be"):
        store.load(bundle)


@pytest.mark.parametrize(
    ("change_classes", "words"),
    [
        (lambda classes: classes[0].update(task=10**10), "is of task 10000000000"),
        (lambda classes: classes[0].update(task=-1), "task is -1"),
        (lambda classes: classes[2].update(task=0), "has tasks of"),
        (lambda classes: classes[0].update(task=1), "is of task 1"),
        (lambda classes: classes[0].update(name=""), "is empty"),
        (lambda classes: classes[0].update(name="  "), "is empty"),
        (lambda classes: classes[0].update(name="\x1b[31mred"), "holds a control character"),
        (lambda classes: classes[0].update(name="a\nb"), "holds a control character"),
        (lambda classes: classes[0].update(name="x" * 1_000_000), "has 1,000,000 characters"),
        (lambda classes: classes[0].update(name="\ud800"), r"classes\.json"),
        (lambda classes: classes[0].update(name=classes[1]["name"]), "is there twice"),
        (lambda classes: classes[0].update(colour=[999, 0, 0]), r"colour\[0\] is 999"),
        (lambda classes: classes[0].update(colour=[0, 0, -1]), r"colour\[2\] is -1"),
    ],
)
def test_classes_are_classes(bundle: Path, change_classes: Callable[[list[dict]], None], words: str) -> None:
    content = json.loads((bundle / store.CLASSES).read_text())
    change_classes(content["classes"])
    (bundle / store.CLASSES).write_text(json.dumps(content))
    with pytest.raises(UserError, match=words):
        store.load(bundle)


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 100_000, "9" * 5000, '"\\ud800"', "", "\ufeff{}", "null"])
@pytest.mark.parametrize("name", [store.CONFIG, store.CLASSES])
def test_json_that_is_none(bundle: Path, name: str, content: str) -> None:
    (bundle / name).write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=name.replace(".", r"\.")):
        store.load(bundle)


@pytest.mark.parametrize("name", [store.CONFIG, store.CLASSES])
def test_half_a_character_anywhere(bundle: Path, name: str) -> None:
    change(bundle / name, "background" if name == store.CLASSES else "written_by", to="a\udce9")
    with pytest.raises(UserError, match="holds half a character"):
        store.load(bundle)


def test_a_byte_order_mark_is_no_part_of_a_file(bundle: Path) -> None:
    text = (bundle / store.CLASSES).read_text()
    (bundle / store.CLASSES).write_text(text, encoding="utf-8-sig")
    assert store.load(bundle).classes.names == ("disk", "star", "ring")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
@pytest.mark.parametrize("name", store.FILES[:3])
def test_a_named_pipe_is_not_waited_for(bundle: Path, name: str) -> None:
    (bundle / name).unlink()
    os.mkfifo(bundle / name)
    with pytest.raises(UserError, match=name.replace(".", r"\.")):
        store.load(bundle)
