"""A Mask2Former becomes CoMasTRe: its masks stay, it teaches the rest without labels, and a kill costs nothing."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_lesson as small
import torch
from PIL import Image

import comastre
from comastre.bundle import store
from comastre.bundle.store import Bundle, Description
from comastre.class_table import class_table
from comastre.cli.main import dispatch
from comastre.config.recipe import usual_settings
from comastre.config.sections import BackboneConfig
from comastre.errors import UserError
from comastre.evaluation.agreement import agreement
from comastre.learning.conversion import Conversion
from comastre.learning.convert import HELD_OUT, Converted, convert
from comastre.learning.images import hold_out
from comastre.methods.comastre.conversion import ConversionMethod
from comastre.methods.mask2former.config import Mask2FormerConfig
from comastre.methods.mask2former.model import build_model
from comastre.training.stopping import Interrupted

NAMES = ("disk", "square", "star")
QUICK = {"training": {"batch_size": 2}}


def make_model(folder: Path, **changes: Any) -> Path:
    """A Mask2Former of two steps whose random classifier is sure of itself."""
    backbone = BackboneConfig(name="test_resnet", weights="none")
    given = {**Mask2FormerConfig.for_size("tiny"), **usual_settings("tiny", "mask2former")["mask2former"], **changes}
    settings = Mask2FormerConfig.model_validate(given)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(5)
        model = build_model(settings, backbone, [2, 1]).eval()
        for classifier in (*model.class_head.classifiers, model.class_head.no_object):
            torch.nn.init.normal_(classifier.weight, std=0.5)
    description = Description("mask2former", "tiny", backbone, settings, {"data": {"crop": 64}})
    return store.save(Bundle(model, class_table(NAMES, [2, 1]), description), folder)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("original") / "model")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve pictures, and nothing else."""
    folder = tmp_path_factory.mktemp("pictures")
    for sample in small.samples_with(("disk", "star"), 12):
        Image.fromarray(sample.image).save(folder / f"{sample.image_id}.png")
    return folder


@pytest.fixture(autouse=True)
def timed_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timing is a run of its own; the conversion of the fixture, which comes first, is really timed."""
    monkeypatch.setattr("comastre.learning.convert.seconds_per_iteration", lambda *_: 2.0)


@pytest.fixture(scope="module")
def converted(original: Path, images: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Converted, str]:
    said: list[str] = []
    out = tmp_path_factory.mktemp("converted") / "new"
    return convert(original, [images], out=out, iterations=3, settings=QUICK, say=said.append), "\n".join(said)


def test_masks_are_the_same_and_classes_go_on(converted: tuple[Converted, str], original: Path) -> None:
    result, _ = converted
    before, after = store.load(original), store.load(result.path)
    assert after.description.method == "comastre"
    assert after.model.tasks == (2, 1) and after.classes.classes == before.classes.classes
    old, new = before.model.state_dict(), after.model.state_dict()
    stage_one = [name for name in old if not name.startswith("class_head.")]
    assert len(stage_one) > 100
    assert all(torch.equal(old[name], new[name]) for name in stage_one)
    image = torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        theirs, ours = before.model(image).layers[-1].mask_logits, after.model.propose(image).final.mask_logits
    assert torch.equal(theirs, ours)
    line = after.classes.lineage[-1]
    assert line.data == "converted to CoMasTRe on 11 images without labels" and line.new_classes == ()
    assert line.scores == {"same pixels": result.same_pixels}
    # What lessons train with is the model's own, not what the conversion took.
    assert after.description.settings.optimiser == before.description.settings.optimiser
    assert after.description.training == before.description.training


def test_it_says_how_far_both_agree(converted: tuple[Converted, str], images: Path, original: Path) -> None:
    result, said = converted
    assert "12, 1 of them held out to compare both models; labels are not needed" in said
    assert f"gives {result.same_pixels:.1f} % of the pixels of 1 held-out images the label" in said
    assert "3 iterations of 2 images at 64 x 64 pixels" in said
    assert tuple(result.per_class) == NAMES
    # Counted again, pixel by pixel, on the one image that was held out.
    files = sorted(images.iterdir())
    (place,) = hold_out([str(file) for file in files], [{1}] * len(files), {1}, HELD_OUT)
    models = [comastre.load(folder) for folder in (original, result.path)]
    first, second = (np.array(model.predict(files[place]).label_map) for model in models)
    assert result.same_pixels == pytest.approx(100 * float((first == second).mean()))


def test_agreement_is_a_count_of_pixels(original: Path, images: Path) -> None:
    model = store.load(original)
    plan = Conversion(model.classes, model.description, tuple(sorted(images.iterdir())), (0,), (1, 2))
    _, compared = plan.data(None)  # type: ignore[arg-type]
    same = agreement((model.model, model.model), compared, NAMES, model.description.view)
    assert same.pixels == 100.0
    assert set(same.per_class.values()) <= {100.0, None} and 100.0 in same.per_class.values()


def test_it_is_a_model_as_any_other(converted: tuple[Converted, str], images: Path, tmp_path: Path) -> None:
    result, _ = converted
    one = str(min(images.iterdir()))
    assert dispatch(["predict", str(result.path), one, "--out", str(tmp_path / "seen")]) == 0
    data = small.write_folder(tmp_path / "data", small.samples_with(("heart",), 6), ("heart",))
    known = small.write_folder(tmp_path / "known", small.samples_with(("star",), 2), ("star",))
    assert dispatch(["eval", str(result.path), "--data", str(known)]) == 0
    points = {"matching": {"points": 32}, "masks": {"points": 32}}
    settings = {"training": {"batch_size": 2}, "comastre": points}
    learned = comastre.learn(
        result.path, data, out=tmp_path / "grown", iterations=1, settings=settings, say=lambda line: None
    )
    assert learned.model.class_names == ("background", *NAMES, "heart")
    assert store.load(learned.path).model.tasks == (2, 1, 1)


def test_interrupted_it_goes_on_and_ends_with_the_same_model(
    converted: tuple[Converted, str], original: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = converted
    calls = []
    losses = ConversionMethod.losses

    def counted(self: ConversionMethod, *args: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return losses(self, *args)

    def command() -> Converted:
        return convert(original, [images], out=tmp_path / "new", iterations=3, settings=QUICK, say=lambda line: None)

    monkeypatch.setattr(ConversionMethod, "losses", counted)
    with pytest.raises(Interrupted, match="give the same command to go on"):
        command()
    assert not (tmp_path / "new").exists()
    again = command()
    assert len(calls) == 3
    first, second = store.load(whole.path).model.state_dict(), store.load(again.path).model.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    # Given once more, it tells what it told; other images are another command.
    assert command() == again and len(calls) == 3
    with pytest.raises(UserError, match="exists already and is never overwritten"):
        convert(original, [images], out=tmp_path / "new", iterations=2, settings=QUICK)
    (tmp_path / "new").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="the model is no longer in"):
        command()


def _refused(folder: Path, model: Path, images: list[Any], **options: Any) -> str:
    with pytest.raises(UserError) as told:
        convert(model, images, out=folder / "new", say=lambda line: None, **options)
    assert not list(folder.glob("new*")), "something was written"
    assert "\n" not in str(told.value)
    return str(told.value)


def test_what_cannot_be_converted_is_told_and_nothing_written(
    original: Path, images: Path, converted: tuple[Converted, str], tmp_path: Path
) -> None:
    assert "a model of the method comastre, but only one of Mask2Former's kind" in _refused(
        tmp_path, converted[0].path, [images]
    )
    softmax = make_model(tmp_path / "softmax", mask_decoder={**_decoder(), "softmax_masks": True})
    assert "share each pixel (mask_decoder.softmax_masks)" in _refused(tmp_path, softmax, [images])
    (tmp_path / "empty").mkdir()
    assert "empty holds no images" in _refused(tmp_path, original, [tmp_path / "empty"])
    assert "there is no image or folder" in _refused(tmp_path, original, [tmp_path / "nowhere"])
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.png").write_bytes(b"no picture")
    assert "a.png is not an image that can be read" in _refused(tmp_path, original, [images, tmp_path / "broken"])
    for settings, said in (
        ({"size": "small"}, "--size cannot be set for a conversion: its masks stay as they are"),
        ({"comastre": {"mask_decoder": {"num_queries": 8}}}, "mask_decoder cannot be set for a conversion"),
        ({"comastre": {"class_decoder": {"heads": 7}}}, "class_decoder.heads is 7 but must divide"),
        ({"training": {"iterations": 3}}, "--training.iterations cannot be set for a conversion: give --iterations"),
    ):
        assert said in _refused(tmp_path, original, [images], settings=settings)
    assert "both say how long" in _refused(tmp_path, original, [images], minutes=1, iterations=1)


def _decoder() -> dict[str, Any]:
    return dict(Mask2FormerConfig.for_size("tiny")["mask_decoder"])


def test_minutes_decide_how_long(original: Path, images: Path, tmp_path: Path) -> None:
    said: list[str] = []
    convert(original, [images], out=tmp_path / "new", minutes=0.1, settings=QUICK, say=said.append)
    assert any("2 iterations of 2 images" in line and "these minutes are too few for" in line for line in said)
    plan = json.loads((tmp_path / "new.training" / "plan.json").read_text())
    assert plan["request"]["--minutes"] == 0.1


def test_a_dense_model_stays_dense(images: Path, tmp_path: Path) -> None:
    model = make_model(tmp_path / "dense", inference={"style": "semantic"})
    result = convert(model, [images], out=tmp_path / "new", iterations=1, settings=QUICK, say=lambda line: None)
    (image, *_) = sorted(images.iterdir())
    assert np.array(comastre.load(result.path).predict(image).label_map).min() > 0
