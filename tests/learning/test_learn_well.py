"""The engineer's path from end to end: a Shapes model learns a new class from 60 images and keeps the old ones.

Four times as many in the folder show no new class, as the guide advises: they tell it from old ones that it resembles.
"""

import json

import numpy as np
import pytest
import small_lesson as small

import comastre
from comastre.cli.main import dispatch
from comastre.config.settings import load_config
from comastre.training.run import run

OLD = ("disk", "square", "triangle", "star", "ring", "cross")


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """The bundle of a model that knows six shapes."""
    out = tmp_path_factory.mktemp("base") / "run"
    # Only the first step is wanted: the second is as short as can be.
    run(
        load_config(
            "shapes-6-2", {"continual": {"setting": "6-4"}, "training": {"iterations": 1500, "iterations_per_class": 1}}
        ),
        out,
    )
    return out / "steps" / "00"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["folder", "coco"])
def test_a_new_class_is_learned_and_old_ones_are_kept(base, tmp_path, kind):
    new = {"folder": "heart", "coco": "arrow"}[kind]
    write = small.write_folder if kind == "folder" else small.write_coco
    shown = small.samples_with(OLD, 400, "val", seed=101)
    others = [sample for sample, mask in zip(shown, small.masks_of(shown, (new,)), strict=True) if not mask.any()]
    data = write(tmp_path / "data", [*small.samples_with((new,), 60), *others[:240]], (new,))
    everything = small.samples_with((new, *OLD), 300, "val", seed=0)
    mixed = small.write_folder(tmp_path / "mixed", everything, (new, *OLD))
    learned = comastre.learn(base, data, out=tmp_path / "new", val=mixed, old_val=mixed)
    assert learned.scores[new] > 40.0
    before = np.mean([learned.old_before[name] for name in OLD])
    after = np.mean([learned.old_after[name] for name in OLD])
    assert after >= 0.8 * before > 40.0

    images = sorted((mixed / "images").iterdir())[:4]
    dispatch(["predict", str(tmp_path / "new"), *map(str, images), "--out", str(tmp_path / "seen")])
    assert (tmp_path / "seen" / f"{images[0].stem}.labels.png").exists()
    dispatch(["eval", str(tmp_path / "new"), "--data", str(mixed), "--out", str(tmp_path / "scores.json")])
    scores = json.loads((tmp_path / "scores.json").read_text())
    # The same model on the same images: `eval` gives what `learn` said.
    said = {new: learned.scores[new], **{name: learned.old_after[name] for name in OLD}}
    assert {name: scores["per_class"][name] for name in said} == pytest.approx(said)
    assert scores["tasks"][-1] == [new]
    assert scores["not_in_the_data"] == []
