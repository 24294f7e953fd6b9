"""The examples in docstrings run as they stand, in a folder with a model called `model` and a photo."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import comastre

MODULES = ("comastre.prediction.model", "comastre.prediction.result")


@pytest.fixture(scope="module")
def folder(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that takes everything for a disk, and a photo of 64 x 48 pixels."""
    place = tmp_path_factory.mktemp("examples")
    model = comastre.load(tiny_bundle)
    with torch.no_grad():
        for task, classifier in enumerate(model.segmenter.class_decoder.classifiers):
            classifier.bias.fill_(-50.0)
            if task == 0:
                classifier.bias[0] = 50.0
    model.save(place / "model")
    pixels = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(place / "photo.png")
    return place


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for entry in folder.iterdir():
        (tmp_path / entry.name).symlink_to(entry)
    monkeypatch.chdir(tmp_path)
    known = {"comastre": comastre, "model": comastre.load("model"), "np": np}
    failed = tried = 0
    for example in doctest.DocTestFinder().find(importlib.import_module(name), extraglobs=known):
        result = doctest.DocTestRunner().run(example)
        failed, tried = failed + result.failed, tried + result.attempted
    assert tried > 0
    assert failed == 0, "what differs is printed above"


def test_what_users_call_has_examples() -> None:
    """An example per method that can be shown without a network."""
    for method in ("predict", "predict_many", "to", "save_pretrained", "from_pretrained", "coco_categories"):
        member = vars(comastre.Model)[method]
        text = getattr(member, "__doc__", None) or member.__func__.__doc__
        assert ">>>" in text, method
