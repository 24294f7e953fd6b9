"""Other libraries' remarks do not reach the user, and a hub that does not answer is asked once."""

import logging
import os
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import timm
from PIL import Image
from safetensors.torch import save_file

from comastre import noise
from comastre.bundle.hub import HubOptions, fetch
from comastre.config.sections import BackboneConfig
from comastre.data.images import read_image
from comastre.errors import UserError
from comastre.nets.backbone import Backbone
from comastre.noise import _answers

pytestmark = pytest.mark.timeout(60)


def test_a_classifiers_layers_are_not_worth_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    network = timm.create_model("resnet18", pretrained=False)
    save_file(network.state_dict(), tmp_path / "weights.safetensors")
    with caplog.at_level(logging.DEBUG):
        Backbone(BackboneConfig(name="resnet18", weights=str(tmp_path / "weights.safetensors")))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert logging.getLogger("timm").level != logging.CRITICAL  # and afterwards it may speak again


def test_a_hub_that_does_not_answer_is_asked_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], tmp_path: Path
):
    from huggingface_hub import constants

    asked: list[str] = []
    monkeypatch.setattr(noise, "_answers", lambda address: asked.append(address) or False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    began = time.monotonic()
    with pytest.raises(UserError, match="could not be fetched"):
        Backbone(BackboneConfig(name="resnet18.tv_in1k", weights="hub"))
    with pytest.raises(UserError, match="the hub gave no model of that id"):
        fetch("nobody/nothing", HubOptions(cache_dir=tmp_path))
    assert time.monotonic() - began < 20
    assert len(asked) == 2 and constants.HF_HUB_OFFLINE is False
    assert not caplog.records and capfd.readouterr().err == ""


def test_an_address_that_nobody_listens_at_does_not_answer():
    began = time.monotonic()
    assert not _answers("http://127.0.0.1:9")
    assert time.monotonic() - began < 2 * noise._REACH


def test_what_libtiff_says_stays_with_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    image = tmp_path / "a.tif"
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(image, compression="tiff_lzw")
    content = bytearray(image.read_bytes())
    content[8:40] = os.urandom(32)  # the compressed strip
    image.write_bytes(bytes(content))
    try:
        read_image(image)
    except UserError as error:
        assert "a.tif" in str(error)
    assert capfd.readouterr().err == ""
    os.write(2, b"again\n")  # standard error is back
    assert capfd.readouterr().err == "again\n"


def test_warnings_are_as_before_after_blocks_that_overlap_in_two_threads():
    before = list(warnings.filters)
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with noise.without_warnings():
            entered.set()
            leave.wait(5)

    thread = threading.Thread(target=other)
    with noise.without_warnings():
        thread.start()
        entered.wait(5)
        warnings.warn("nobody hears this", stacklevel=1)
    assert warnings.filters != before  # the other one is still inside
    leave.set()
    thread.join()
    assert list(warnings.filters) == before
    with pytest.warns(UserWarning, match="somebody"):
        warnings.warn("somebody hears this", stacklevel=1)
