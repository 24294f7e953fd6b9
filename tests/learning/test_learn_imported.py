"""An imported Mask2Former learns a class of the user's own: what it is and knew stays, and CoMFormer teaches it."""

from pathlib import Path

import pytest
import small_lesson as small
import torch

import comastre
from comastre.bundle import store
from comastre.bundle.imported import import_model
from comastre.learning.starting_model import open_model
from reference_mask2former import NAMES, make_reference

STUFF = ("wall", "sky", "tree")
QUICK = {"training": {"batch_size": 2}, "comformer": {"matching": {"points": 32}, "masks": {"points": 32}}}


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("imported")
    make_reference("resnet").save_pretrained(folder / "theirs")
    return store.save(import_model(folder / "theirs", stuff=STUFF), folder / "model")


def test_an_imported_model_learns_a_class(imported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comastre.learning.beginning.time_iterations", lambda *_: 2.0)
    data = small.write_folder(tmp_path / "data", small.samples_with(("heart",), 6), ("heart",))
    said: list[str] = []
    learned = comastre.learn(imported, data, out=tmp_path / "new", iterations=2, settings=QUICK, say=said.append)
    assert learned.model.class_names == ("void", *NAMES, "heart")
    before, after = store.load(imported), store.load(tmp_path / "new")
    assert after.model.tasks == (5, 1)
    assert after.description.method == "comformer"
    for section in ("pixel_decoder", "mask_decoder", "inference", "classification"):
        assert getattr(after.description.settings, section) == getattr(before.description.settings, section)
    assert after.classes.classes[:5] == before.classes.classes
    # Everything learns, and CoMFormer's model is Mask2Former's: all old weights are still there under their names.
    old, new = before.model.state_dict(), after.model.state_dict()
    assert old.keys() < new.keys()
    assert not torch.equal(old["mask_decoder.norm.weight"], new["mask_decoder.norm.weight"])


def test_it_goes_on_as_comformer(imported: Path) -> None:
    starting = open_model(imported)
    assert starting.description.method == "comformer"
    assert not starting.description.settings.mask_decoder.softmax_masks  # type: ignore[attr-defined]
    assert starting.description.settings.classification.loss == "cross_entropy"  # type: ignore[attr-defined]
    # Ten times as much leaves a new object what the old model took it for; less than that is left as it is.
    settings = starting.description.settings
    assert settings.for_lesson(1) == {"weights": {"distillation": 1.0}}
    less = settings.model_copy(update={"weights": settings.weights.model_copy(update={"distillation": 0.5})})  # type: ignore[attr-defined]
    assert less.for_lesson(1) == {"weights": {"distillation": 0.5}}
