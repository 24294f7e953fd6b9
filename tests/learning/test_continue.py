"""Lessons that go on: the same lesson for longer, and more images of what a model knows."""

import shutil

import pytest
import small_lesson as small
import torch
from safetensors.torch import load_file

import comastre
from comastre.bundle import history, store
from comastre.errors import UserError
from comastre.learning import directory
from comastre.methods.comastre.method import TwoStageMethod

QUICK = {"training": {"batch_size": 2}, "comastre": {"matching": {"points": 32}, "masks": {"points": 32}}}


@pytest.fixture(autouse=True)
def timed_already(monkeypatch):
    monkeypatch.setattr("comastre.learning.beginning.time_iterations", lambda *_: 2.0)


def teach(model, data, out, **options):
    given = {"instant": False, "iterations": 2, "settings": QUICK, "keep": 0, "say": lambda _: None} | options
    return comastre.learn(model, data, out=out, **given)


@pytest.fixture(scope="module")
def taught(tiny_bundle, tmp_path_factory):
    """(folder with the old model `old` and the new one `new`, the data)."""
    root = tmp_path_factory.mktemp("models")
    data = small.write_folder(root / "hearts", small.samples_with(("heart",), 6), ("heart",))
    shutil.copytree(tiny_bundle, root / "old")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("comastre.learning.beginning.time_iterations", lambda *_: 2.0)
        teach(root / "old", data, root / "new")
    return root, data


def test_a_lesson_goes_on_from_where_it_ended(taught, tmp_path, monkeypatch):
    root, data = taught
    seen, plain = [], TwoStageMethod.losses

    def losses(self, model, batch, points):
        seen.append(
            ({name: tensor.clone() for name, tensor in model.state_dict().items()}, self.old_model.state_dict())
        )
        return plain(self, model, batch, points)

    monkeypatch.setattr(TwoStageMethod, "losses", losses)
    out = tmp_path / "longer"
    learned = teach(root / "new", data, out, continued=True, parent=root / "old", iterations=1)
    (student, teacher), *_ = seen
    for state, folder in ((student, root / "new"), (teacher, root / "old")):
        expected = load_file(folder / "model.safetensors")
        assert state.keys() == expected.keys() and all(torch.equal(state[name], expected[name]) for name in expected)
    assert learned.classes.names == ("disk", "star", "ring", "heart") and learned.classes.tasks == (2, 1, 1)
    assert learned.classes.colours == store.load(root / "new").classes.colours
    *earlier, step = learned.classes.lineage
    assert tuple(earlier) == store.load(root / "new").classes.lineage
    assert step.step == 2 and step.data.endswith("continued") and step.parent == history.digest(root / "new")


def test_the_model_before_is_found_beside_it_by_its_sha256(taught):
    root, _ = taught
    assert history.parent_of(root / "new").name == "old"
    assert store.load(root / "new").classes.lineage[-1].parent == history.digest(root / "old")


def test_known_classes_are_practised_and_nothing_is_added(tiny_bundle, tmp_path):
    data = small.write_folder(tmp_path / "stars", small.samples_with(("star",), 6), ("star",))
    learned = teach(tiny_bundle, data, tmp_path / "new")
    assert learned.classes.names == ("disk", "star", "ring") and learned.classes.tasks == (2, 1)
    assert set(learned.scores) == {"star"} and [each.name for each in learned.verdicts] == ["star"]
    before, after = (load_file(folder / "model.safetensors") for folder in (tiny_bundle, tmp_path / "new"))
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert learned.classes.lineage[-1].new_classes == () and repr(learned).startswith("Practised: 3 classes")
    # And what was practised may learn on.
    hearts = small.write_folder(tmp_path / "hearts", small.samples_with(("heart",), 6), ("heart",))
    assert teach(tmp_path / "new", hearts, tmp_path / "newer", iterations=1).classes.tasks == (2, 1, 1)


def test_what_cannot_go_on_is_refused_in_a_sentence(taught, tmp_path):
    root, data = taught
    stars = small.write_folder(tmp_path / "stars", small.samples_with(("star",), 6), ("star",))
    out = tmp_path / "out"
    for model, given, options, said in (
        (root / "new", stars, {"parent": root / "old"}, "does not label heart, which the lesson taught"),
        (root / "new", data, {"parent": root / "new"}, "is not the model before the last lesson"),
        (root / "old", data, {}, "does not say which model it was before"),
        (shutil.copytree(root / "new", tmp_path / "alone" / "new"), data, {}, "is not beside it: give --parent FOLDER"),
        ("new:tiny", data, {}, "has had no lesson yet"),
        (comastre.load(root / "new"), data, {}, "not a model in memory"),
    ):
        with pytest.raises(UserError, match=said):
            teach(model, given, out, continued=True, **options)
    assert not out.exists() and not directory.training_folder(out).exists()
