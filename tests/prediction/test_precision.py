"""Predictions in bfloat16: nearly those of float32, and the model is as it was afterwards."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import comastre
from comastre.cli.main import main
from comastre.errors import UserError
from comastre.nets.precision import predicting_in


def ends_with(*arguments: str) -> object:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code


def picture() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)


def test_label_maps_are_nearly_those_of_float32(tiny_bundle: Path) -> None:
    model = comastre.load(tiny_bundle)
    exact = model.predict(picture())
    dtypes = set()
    handle = model.segmenter.pixel_decoder.layers[0].feedforward.expand.register_forward_hook(
        lambda _, __, found: dtypes.add(found.dtype)
    )
    rough = model.to("cpu", "bf16-mixed").predict(picture())
    handle.remove()
    assert dtypes == {torch.bfloat16}
    scores = [np.array([each.score for each in result.segments]) for result in (exact, rough)]
    assert len(scores[0]) == len(scores[1]) > 0
    assert 0 < np.abs(scores[0] - scores[1]).max() < 0.02
    assert (exact.label_map == rough.label_map).mean() > 0.9
    assert model.segmenter.pixel_decoder.float32  # as training wants it
    again = model.to("cpu", "32-true").predict(picture())
    assert np.array_equal(again.label_map, exact.label_map)
    assert [each.score for each in again.segments] == [each.score for each in exact.segments]


def test_another_way_of_predicting_keeps_the_precision(tiny_bundle: Path) -> None:
    assert comastre.load(tiny_bundle).to("cpu", "bf16-mixed").adjusted(alpha=0.1).precision == "bf16-mixed"


def test_an_error_leaves_the_model_as_it_was(tiny_bundle: Path) -> None:
    segmenter = comastre.load(tiny_bundle).segmenter
    with pytest.raises(ZeroDivisionError), predicting_in("bf16-mixed", segmenter):
        assert not segmenter.pixel_decoder.float32
        raise ZeroDivisionError
    assert segmenter.pixel_decoder.float32 and not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("given", ["bf16", "16-mixed", 8])
def test_an_unknown_precision_is_said(tiny_bundle: Path, given: object) -> None:
    with pytest.raises(UserError, match=r"precision is .* but must be '32-true' or 'bf16-mixed'"):
        comastre.load(tiny_bundle).to("cpu", given)  # type: ignore[arg-type]


def test_results_of_one_precision_are_not_taken_for_those_of_the_other(tiny_bundle: Path, tmp_path: Path) -> None:
    Image.fromarray(picture()).save(tmp_path / "photo.png")
    command = ["predict", str(tiny_bundle), str(tmp_path / "photo.png"), "--out", str(tmp_path / "results")]
    assert ends_with(*command, "--precision", "bf16-mixed") == 0
    assert ends_with(*command, "--precision", "bf16-mixed") == 0  # they are its own
    assert ends_with(*command) == 1


def test_eval_takes_it(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def score(*_: object) -> None:
        seen.append(torch.is_autocast_enabled("cpu"))
        raise UserError("enough")

    monkeypatch.setattr("comastre.evaluation.scoring.score", score)
    command = ("eval", str(tiny_bundle), "--data", "shapes")
    assert ends_with(*command) == ends_with(*command, "--precision", "bf16-mixed") == 1
    assert seen == [False, True]
