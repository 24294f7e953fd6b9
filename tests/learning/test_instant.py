"""Seconds first: one look at the images before the training, the better of two models, and the exact guarantee."""

import json
import shutil
from dataclasses import replace

import pytest
import small_lesson as small
import torch
from safetensors.torch import load_file

import comastre
from comastre.bundle import history, store
from comastre.cli.main import dispatch
from comastre.errors import UserError
from comastre.evaluation.disagreement import ClassAgreement
from comastre.learning import directory
from comastre.learning.choosing import Choice, Standing, choose_of_two
from comastre.learning.gate import ClassChange, Decision
from comastre.learning.measuring import _largest_change
from comastre.learning.verdict import ClassVerdict
from comastre.report.lesson_write import render

QUICK = {"training": {"batch_size": 2}, "comastre": {"matching": {"points": 32}, "masks": {"points": 32}}}


@pytest.fixture(autouse=True)
def timed_already(monkeypatch):
    monkeypatch.setattr("comastre.learning.beginning.time_iterations", lambda *_: 2.0)


@pytest.fixture(scope="module")
def hearts(tmp_path_factory):
    return small.write_folder(tmp_path_factory.mktemp("data") / "hearts", small.samples_with(("heart",), 8), ("heart",))


def teach(model, data, out, **options):
    said = []
    given = {"iterations": 1, "settings": QUICK, "keep": 0, "say": said.append} | options
    return comastre.learn(model, data, out=out, **given), "\n".join(said)


# --- the rule --------------------------------------------------------------------------------------------------------

GOOD = Standing(True, False, 50.0, 95.0)


@pytest.mark.parametrize(
    ("instant", "trained", "better", "why"),
    [
        (GOOD, Standing(True, False, 52.0, 92.0), True, "new classes 50.0 + kept 95.0 = 145.0, against"),
        (GOOD, Standing(True, False, 60.0, 92.0), False, "new classes 60.0 + kept 92.0 = 152.0, against"),
        (GOOD, GOOD, False, "= 145.0 of the instant one"),  # trained models learn on better
        (GOOD, Standing(False, False, 99.0, 89.0), True, "the trained one forgot too much for the gate"),
        (Standing(False, False, 99.0, 89.0), GOOD, False, "the instant one forgot too much for the gate"),
        (GOOD, Standing(True, True, 9.0, 140.0), True, "the trained one learned nothing"),
        (Standing(True, True, 9.0, 140.0), GOOD, False, "the instant one learned nothing"),
        # The gate comes first, whatever was learned.
        (Standing(True, True, 0.0, 99.0), Standing(False, False, 90.0, 10.0), True, "forgot too much"),
        (Standing(False, False, 40.0, 80.0), Standing(False, False, 30.0, 85.0), True, "new classes 40.0"),
        (Standing(True, False, 50.0, None), Standing(True, False, 40.0, None), True, "new classes 50.0, against"),
        (Standing(True, False, None, 99.0), Standing(True, False, None, 70.0), False, "no image was left to score"),
        # Training that may have lost what no image shows: only one look is known to have moved nothing old.
        (GOOD, Standing(True, False, 99.0, 99.0, (2, 5)), True, "what training did to 3 of 5 old classes cannot be"),
        (GOOD, Standing(True, False, 99.0, 99.0, (3, 6)), False, "new classes 99.0"),
        (Standing(True, True, 5.0, 99.0), Standing(True, False, 50.0, 99.0, (1, 6)), False, "learned nothing"),
        (Standing(False, False, 50.0, 50.0), Standing(True, False, 50.0, 99.0, (1, 6)), False, "forgot too much"),
    ],
)
def test_which_of_two_is_handed_over(instant, trained, better, why):
    found = choose_of_two(instant, trained)
    assert found.instant is better and why in found.why
    assert found.untold is ("what training did" in why)
    if replace(instant, judged=trained.judged).settles:  # said before it trains
        assert found.instant


def test_what_counts_is_the_mean_of_new_classes_and_what_the_gate_measured():
    verdicts = [ClassVerdict("a", 40.0), ClassVerdict("b", 60.0), ClassVerdict("c", None)]
    assert Standing.of(verdicts, Decision("scores", 103.0, 90.0, ())) == Standing(True, False, 50.0, 103.0)
    # Pixels flicker also where nothing was lost, so that more than 80 % of them count as 80.
    assert Standing.of(verdicts, Decision("pixels", 97.0, 60.0, ())) == Standing(True, False, 50.0, 80.0)
    assert Standing.of(verdicts, Decision("pixels", 70.0, 60.0, ())).kept == 70.0
    refused = Standing.of([ClassVerdict("a", 5.0)], Decision("pixels", 97.0, 60.0, ("dog",)))
    assert refused == Standing(False, True, 5.0, 80.0)
    assert Standing.of([], Decision("nothing", None, 60.0, ())) == Standing(True, False, None, None)
    seen = [ClassAgreement(name, images, 0, 9, 9, (), 0) for name, images in (("a", 5), ("b", 4))]
    changes = [ClassChange(each.name, False, agreement=each) for each in seen]
    changes += [ClassChange("c", False, 60.0, 50.0, "old", 5), ClassChange("d", False, 60.0, 50.0, "new", 0)]
    changes += [ClassChange("new", True, after=50.0, agreement=seen[0])]
    assert Standing.of([], Decision("nothing", None, 60.0, ()), changes).judged == (2, 4)


# --- two models in one lesson ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def both(tiny_bundle, hearts, tmp_path_factory):
    """(folder of the old model and of two lessons, what each learned, what each said): instant, then trained."""
    root = tmp_path_factory.mktemp("models")
    shutil.copytree(tiny_bundle, root / "old")
    lessons = {}
    for name, better in (("instant", True), ("trained", False)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("comastre.learning.beginning.time_iterations", lambda *_: 2.0)
            patch.setattr(
                "comastre.learning.outcome.choose_of_two", lambda *_, better=better: Choice(better, "it was asked")
            )
            lessons[name] = teach(root / "old", hearts, root / name)
    return root, lessons


def test_the_instant_model_comes_first_and_either_can_be_handed_over(both):
    root, lessons = both
    for name, method in (("instant", "comastre-exact"), ("trained", "comastre")):
        learned, said = lessons[name]
        assert said.index("instant  ") < said.index("to use meanwhile") < said.index("training  ")
        assert "handed over " in said and f"the {name} model" in said and "it was asked" in " ".join(said.split())
        assert (learned.chosen, learned.why) == (name, "it was asked")
        assert learned.classes.names == ("disk", "star", "ring", "heart")
        assert store.load(root / name).description.method == method
        work = directory.training_folder(root / name)
        outcome = json.loads((work / "outcome.json").read_text())
        assert outcome["chosen"] == name and outcome["scores"] == learned.scores
        assert not directory.instant_folder(work).exists()
        assert "it was asked" in render(learned)


def test_a_finished_lesson_tells_its_choice_again(both, hearts, monkeypatch):
    root, lessons = both
    monkeypatch.setattr("comastre.learning.learn.run", None)
    again, said = teach(root / "old", hearts, root / "instant")
    assert again.scores == lessons["instant"][0].scores and again.chosen == "instant" and "handed over " in said


def test_a_trained_model_that_nobody_could_judge_is_kept_until_it_can_be(both, hearts, tmp_path, monkeypatch):
    root, _ = both
    out, aside = tmp_path / "new", tmp_path / "new.training" / "trained"
    with monkeypatch.context() as patch:
        patch.setattr("comastre.learning.choosing.ENOUGH_JUDGED", 2.0)  # as if these images showed no old class
        patch.setattr("comastre.learning.choosing.nothing_learned", lambda _: False)
        learned, said = teach(root / "old", hearts, out)
    said = " ".join(said.split())
    asked = "of 3 old classes cannot be told by these images"
    assert said.index(f"the training what it does to {said.split(f' {asked}')[0].split()[-1]} {asked}: this model") > 0
    assert (learned.chosen, learned.aside) == ("instant", aside) and f"{asked} trained model kept in {aside}" in said
    assert store.load(out).description.method == "comastre-exact"
    assert store.load(aside).description.method == "comastre" and store.load(aside).classes.names[-1] == "heart"

    # Shown more images, the same command compares both, and leaves what was handed over where it is.
    before = history.digest(out)
    more = small.write_folder(tmp_path / "more", small.samples_with(("star",), 3), ("star",)) / "images"
    monkeypatch.setattr("comastre.learning.learn.run", None)
    for better, asked in ((False, f"it was first; the one in {aside} is better by now: so"), (True, "so")):
        monkeypatch.setattr("comastre.learning.again.choose_of_two", lambda *_, better=better: Choice(better, "so"))
        again, said = teach(root / "old", hearts, out, unlabelled=more)
        assert "nothing is trained" in said and (again.chosen, again.why, again.aside) == ("instant", asked, aside)
        shutil.rmtree(more.parent)
        more = small.write_folder(tmp_path / "most", small.samples_with(("ring",), 4), ("ring",)) / "images"
    assert history.digest(out) == before


def test_the_model_before_an_instant_lesson_comes_back_bit_for_bit(both, tmp_path):
    root, _ = both
    shutil.copytree(root / "instant", tmp_path / "new")  # the old one is not beside it
    assert dispatch(["undo", str(tmp_path / "new")]) == 0
    assert history.digest(tmp_path / "new") == history.digest(root / "old")


def test_an_instant_lesson_that_goes_on_is_trained_from_the_model_before(both, hearts, tmp_path):
    root, _ = both
    learned, said = teach(root / "instant", hearts, tmp_path / "longer", continued=True, parent=root / "old")
    assert "1 iterations of 2 images" in said and "to use meanwhile" in said
    assert learned.classes.names == ("disk", "star", "ring", "heart") and learned.classes.tasks == (2, 1, 1)
    assert learned.classes.lineage[-1].parent == history.digest(root / "instant")
    alone, said = teach(root / "trained", hearts, tmp_path / "more", continued=True, parent=root / "old")
    assert "to use meanwhile" not in said and alone.chosen == ""


def test_an_instant_lesson_goes_on_elsewhere_as_its_refusal_says(both, hearts, tmp_path):
    root, _ = both
    taught = shutil.copytree(root / "instant", tmp_path / "new")  # the old one is not beside it
    with pytest.raises(UserError, match="is not beside it: give --parent FOLDER, which `comastre undo ") as error:
        teach(taught, hearts, tmp_path / "longer", continued=True)
    advised = str(error.value).split("`")[1].replace("FOLDER", str(tmp_path / "old")).split()
    assert advised[0] == "comastre" and dispatch(advised[1:]) == 0
    learned, _ = teach(taught, hearts, tmp_path / "longer", continued=True)
    assert learned.classes.lineage[-1].parent == history.digest(taught)


def test_killed_anywhere_it_ends_with_the_same_model(both, hearts, tmp_path, monkeypatch):
    root, lessons = both
    monkeypatch.setattr("comastre.learning.outcome.choose_of_two", lambda *_: Choice(True, "it was asked"))
    for moment in ("instant.measure", "learn.run", "outcome.instant.take_pictures"):
        out = tmp_path / moment
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(f"comastre.learning.{moment}", interrupt)
            teach(root / "old", hearts, out)
        assert not out.exists()
        again, _ = teach(root / "old", hearts, out)
        assert (again.scores, again.chosen) == (lessons["instant"][0].scores, "instant")
        assert (out / "model.safetensors").read_bytes() == (root / "instant" / "model.safetensors").read_bytes()


def interrupt(*_args, **_options):
    raise KeyboardInterrupt


def test_little_time_is_left_for_the_training(tiny_bundle, hearts, tmp_path, monkeypatch):
    monkeypatch.setattr("comastre.learning.beginning.MOST_OF_TIME", 0.0)
    learned, said = teach(tiny_bundle, hearts, tmp_path / "new", iterations=None, minutes=0.001)
    assert "instant       left out" in said and learned.chosen == ""


# --- one look alone --------------------------------------------------------------------------------------------------


def test_one_look_alone_changes_no_old_score(hearts, tmp_path, capsys, pytestconfig, monkeypatch):
    """A trained model that kept no statistics; what is printed was measured."""
    model = pytestconfig.rootpath / "tests/fixtures/six_shapes"
    val = small.write_folder(tmp_path / "val", small.samples_with(("heart",), 12, "val"), ("heart",))
    given = ["learn", model, "--data", hearts, "--val", val, "--guarantee", "exact", "--out", tmp_path / "new"]
    code = dispatch([str(word) for word in given])
    said = " ".join(capsys.readouterr().out.split())
    assert "training none: one look at each of 8 images" in said and code in (0, 3)
    assert "the largest change of any old score on 8 images is 0: masks, objectness and classes of every" in said
    (folder,) = (each for each in tmp_path.iterdir() if each.name in ("new", "new-refused"))
    before, after = load_file(model / "model.safetensors"), load_file(folder / "model.safetensors")
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    old, new = comastre.load(model).segmenter, comastre.load(folder).segmenter
    images = torch.rand(2, 3, 64, 96, generator=torch.manual_seed(0))
    assert all(torch.equal(new.scores(images)[name], tensor) for name, tensor in old.scores(images).items())


def test_queries_of_its_own_may_be_trained_for_a_lesson_under_the_guarantee(tiny_bundle, hearts, tmp_path):
    own = {"training": {"batch_size": 2}, "comastre": {"own_queries": {"number": 2}}}
    learned, said = teach(tiny_bundle, hearts, tmp_path / "new", guarantee="exact", settings=own)
    assert learned.trained and learned.largest_change == 0.0
    assert "the largest change of any old score on 8 images is 0" in said
    before, after = (load_file(folder / "model.safetensors") for folder in (tiny_bundle, learned.path))
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    words = ["learn", tiny_bundle, "--data", hearts, "--guarantee=exact", "--own_queries.number", 2, "--iterations", 1]
    words += ["--training.batch_size", 2, "--keep", 0, "--out", tmp_path / "said"]
    assert dispatch([str(word) for word in words]) < 2
    assert (tmp_path / "said/model.safetensors").read_bytes() == (learned.path / "model.safetensors").read_bytes()
    more = small.write_folder(tmp_path / "arrows", small.samples_with(("arrow",), 4), ("arrow",))
    again, _ = teach(learned.path, more, tmp_path / "again", guarantee="exact")
    assert again.trained and again.largest_change == 0.0 and again.classes.tasks == (*learned.classes.tasks, 1)
    with pytest.raises(UserError, match="--instant trains nothing, but queries of its own"):
        teach(learned.path, more, tmp_path / "looked", instant=True, iterations=None)
    # What a model has is not changed by a lesson.
    with pytest.raises(UserError, match="own_queries cannot be set for a lesson: give another model"):
        teach(learned.path, hearts, tmp_path / "newer", settings=own)


def test_a_guarantee_that_does_not_hold_hands_nothing_over(tiny_bundle, hearts, tmp_path, monkeypatch):
    teach(tiny_bundle, hearts, tmp_path / "look", iterations=None, instant=True)
    with pytest.raises(UserError, match="exists already"):  # nothing was measured there
        teach(tiny_bundle, hearts, tmp_path / "look", iterations=None, guarantee="exact")
    monkeypatch.setattr("comastre.learning.outcome.largest_change", lambda *_: 0.25)
    with pytest.raises(UserError, match=r"the guarantee does not hold: an old score changed by 0\.25"):
        teach(tiny_bundle, hearts, tmp_path / "new", iterations=None, guarantee="exact")
    assert not (tmp_path / "new").exists() and not (tmp_path / "new-refused").exists()


def test_the_largest_change_is_that_of_the_score_that_moved_most():
    class Says:
        def __init__(self, **scores):
            self.found = {name: torch.tensor(value) for name, value in scores.items()}

        def scores(self, image, padding):
            return {name: tensor + float(image) for name, tensor in self.found.items()}

    inf = float("inf")
    old = Says(objectness=[[1.0, 2.0]], classes=[[[1.0, -inf], [3.0, 4.0]]])
    same = Says(
        objectness=[[1.0, 2.0, 9.0]], classes=[[[1.0, -inf, 7.0], [3.0, 4.0, 8.0], [0.0, 0.0, 0.0]]], more=[0.0]
    )
    moved = Says(objectness=[[1.0, 2.0]], classes=[[[1.0, -inf], [3.5, 4.0]]])
    unknown = Says(objectness=[[1.0, 2.0]], classes=[[[1.0, 0.0], [3.0, 4.0]]])
    looks = [(0.0, None), (1.0, None)]
    assert _largest_change(looks, old, same) == 0.0
    assert _largest_change(looks, old, moved) == 0.5
    assert _largest_change(looks, old, unknown) == inf
    with pytest.raises(UserError, match="do not say the same things"):
        _largest_change(looks, old, Says(objectness=[[1.0, 2.0]]))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"instant": True}, "--iterations says how long to train, but comastre-exact looks once"),
        ({"instant": True, "iterations": None, "minutes": 3.0}, "--minutes says how long to train"),
        ({"instant": True, "settings": {"method": "finetune"}}, "--instant chooses the method itself"),
        ({"guarantee": "exact", "settings": {"method": "finetune"}}, "--guarantee exact chooses the method itself"),
        ({"guarantee": "almost"}, "there is one only: exact"),
        ({"guarantee": "exact", "instant": False}, "leave --no-instant away"),
    ],
)
def test_what_contradicts_one_look_is_refused(tiny_bundle, hearts, tmp_path, options, said):
    with pytest.raises(UserError, match=said):
        teach(tiny_bundle, hearts, tmp_path / "new", **options)
    assert not (tmp_path / "new.training").exists()


def test_one_look_is_for_models_that_can_be_taught_so(tiny_bundle, hearts, tmp_path):
    options = {"instant": True, "iterations": None}
    with pytest.raises(UserError, match="--instant is for models of the method comastre and not for a new model"):
        teach("new:tiny", hearts, tmp_path / "new", **options)
    stars = small.write_folder(tmp_path / "stars", small.samples_with(("star",), 6), ("star",))
    with pytest.raises(UserError, match="one look practises nothing"):
        teach(tiny_bundle, stars, tmp_path / "new", **options)
    bundle = store.load(tiny_bundle)
    tuned = store.save(
        store.Bundle(bundle.model, bundle.classes, replace(bundle.description, method="finetune")), tmp_path / "tuned"
    )
    with pytest.raises(UserError, match="not for a model of the method finetune"):
        teach(tuned, hearts, tmp_path / "new", **options)
