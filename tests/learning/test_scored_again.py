"""A finished lesson that is given other images for scoring: measured again on them, judged by that, not trained."""

import json

import pytest
import small_lesson as small

import comastre
from comastre.bundle import history, store
from comastre.cli.main import dispatch
from comastre.errors import UserError

QUICK = {"training": {"batch_size": 2}, "comastre": {"matching": {"points": 32}, "masks": {"points": 32}}}
MEASURED = ("scores", "before", "old_before", "old_after", "shown", "errors", "agreement", "compared", "scored_on")


@pytest.fixture(autouse=True)
def timed_already(monkeypatch):
    monkeypatch.setattr("comastre.learning.beginning.time_iterations", lambda *_: 2.0)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Folders by name: of hearts, to score them on, and of old classes."""
    root = tmp_path_factory.mktemp("data")
    hearts = small.samples_with(("heart",), 24)
    stars = small.samples_with(("star", "disk"), 12, "val")
    return {
        "hearts": small.write_folder(root / "hearts", hearts[:8], ("heart",)),
        "val a": small.write_folder(root / "val a", hearts[8:14], ("heart",)),
        "val b": small.write_folder(root / "val b", [*hearts[14:], *stars], ("heart", "star")),
        "stars": small.write_folder(root / "stars", stars, ("star",)),
        "old": small.write_folder(root / "old", stars, ("star", "disk")),
        "any": small.write_folder(root / "any", stars, ("star",)) / "images",
    }


def outcome(out):
    return json.loads(out.with_name(f"{out.name}.training").joinpath("outcome.json").read_text())


def mark(folder):
    return store.load(folder).classes.lineage[-1]


def test_a_refused_model_is_not_let_pass_by_data_that_nobody_looked_at(
    data, tmp_path, capsys, pytestconfig, monkeypatch
):
    """The refusal itself advises --old-val: with it the model was handed over, with nothing measured."""
    given = ["learn", pytestconfig.rootpath / "tests/fixtures/six_shapes", "--data", data["hearts"], "--instant"]
    given += ["--keep", "100%", "--val", data["val a"]]

    def teach(out, *more):
        code = dispatch([str(word) for word in (*given, *more, "--out", out)])
        return code, " ".join(capsys.readouterr().out.split())

    refused, said = teach(tmp_path / "n1")
    page = (tmp_path / "n1-refused" / "lesson.html").read_text()
    assert refused == 3 and "learning rate" not in said[said.index("REFUSED") :] + page  # nothing was trained
    more = ["--old-val", data["old"], "--unlabelled", data["any"]]
    straight, said_at_once = teach(tmp_path / "straight", *more)
    monkeypatch.setattr("comastre.learning.learn.run", None)  # nothing is trained
    code, said = teach(tmp_path / "n1", *more)
    assert "measuring again, because --old-val and --unlabelled changed since; nothing is trained" in said
    assert code == straight and "of the old classes' mean IoU" in said and "not measured" not in said
    assert said.split(" kept ")[-1].split(" logs ")[0] == said_at_once.split(" kept ")[-1].split(" logs ")[0]
    again, first = outcome(tmp_path / "n1"), outcome(tmp_path / "straight")
    assert again["old_before"]["star"] > 10 and all(again[name] == first[name] for name in MEASURED)
    suffix = "-refused" if code == 3 else ""
    assert mark(tmp_path / f"n1{suffix}").status == mark(tmp_path / f"straight{suffix}").status
    # Told once more, nothing is measured.
    monkeypatch.setattr("comastre.learning.learn.measured_again", None)
    assert teach(tmp_path / "n1", *more)[0] == code


@pytest.mark.parametrize("kind", ["trained", "practised", "first"])
def test_scores_are_those_of_the_images_that_are_named(kind, tiny_bundle, data, tmp_path, monkeypatch):
    model = "new:tiny" if kind == "first" else tiny_bundle
    taught = data["stars" if kind == "practised" else "hearts"]
    options = {"iterations": 1, "settings": QUICK, "keep": 0, "instant": False}

    def teach(out, val, said, **more):
        more |= {} if kind == "first" else {"old_val": data["old"]}
        val = data["stars" if val == "val a" and kind == "practised" else val]
        return comastre.learn(model, taught, out=tmp_path / out, val=val, say=said.append, **options, **more)

    teach("new", "val a", [])
    straight = teach("straight", "val b", [])
    sha256 = history.digest(tmp_path / "new")
    monkeypatch.setattr("comastre.learning.learn.run", None)
    said: list[str] = []
    again = teach("new", "val b", said)
    assert "measuring     again, because --val changed since; nothing is trained" in said
    assert (again.scores, again.changes, again.verdicts[0].score) == (
        straight.scores,
        straight.changes,
        straight.verdicts[0].score,
    )
    assert all(outcome(tmp_path / "new")[name] == outcome(tmp_path / "straight")[name] for name in MEASURED)
    # What learned on from it must find it again.
    assert history.digest(tmp_path / "new") == sha256


def test_what_the_model_is_marked_with_follows_what_is_measured(tiny_bundle, data, tmp_path, monkeypatch):
    def teach(val):
        options = {"iterations": 1, "settings": QUICK, "keep": 0, "instant": False, "say": lambda _: None}
        return comastre.learn(tiny_bundle, data["hearts"], out=tmp_path / "new", val=data[val], **options)

    teach("val a")
    assert mark(tmp_path / "new").status == "nothing learned"
    monkeypatch.setattr("comastre.learning.verdict.KNOWN", -1.0)
    assert teach("val b").exit_code == 0
    assert mark(tmp_path / "new").status == "passed"


def test_an_interrupted_lesson_goes_on_with_the_images_that_it_began_with(tiny_bundle, data, tmp_path, monkeypatch):
    options = {"iterations": 1, "settings": QUICK, "keep": 0, "instant": False, "say": lambda _: None}
    given = {"out": tmp_path / "new", **options}

    def die(*_args, **_options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("comastre.learning.learn.run", die)
        comastre.learn(tiny_bundle, data["hearts"], val=data["val a"], **given)
    with pytest.raises(UserError, match=r"scored on other images \(what differs: --val, --old-val\): give the same"):
        comastre.learn(tiny_bundle, data["hearts"], val=data["val b"], old_val=data["old"], **given)
    comastre.learn(tiny_bundle, data["hearts"], val=data["val a"], **given)
    comastre.learn(tiny_bundle, data["hearts"], val=data["val b"], old_val=data["old"], **given)
    assert set(outcome(tmp_path / "new")["old_after"]) >= {"star", "disk"}
