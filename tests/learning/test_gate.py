"""The verdict and the gate of a lesson: what is said, what is refused, and with which exit code."""

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import small_lesson as small

import comastre
from comastre.bundle import store
from comastre.cli.main import dispatch
from comastre.errors import UserError
from comastre.evaluation.disagreement import ClassAgreement, Disagreement, misnamed
from comastre.evaluation.results import ClassErrors
from comastre.learning import comparing, final_words
from comastre.learning.gate import ClassChange, Decision, decide, read_keep, worst
from comastre.learning.verdict import ClassVerdict, Place, judge, nothing_learned

PLACE = Place("new", "photos")


def agreement(name, pixels, kept, images=9, became=(), kept_images=None):
    """As much of its images as of its pixels, if nothing else is said."""
    kept_images = images * kept // max(pixels, 1) if kept_images is None else kept_images
    return ClassAgreement(name, images, kept_images, pixels, kept, tuple(became), 0)


# --- counting without labels -----------------------------------------------------------------------------------------


def test_disagreement_is_what_a_slow_count_gives():
    generator = np.random.default_rng(0)
    counts = Disagreement(("background", "cat", "dog"))
    pairs = [generator.integers(0, 3, (2, 9, 11)) for _ in range(4)]
    shares = []
    for before, after in pairs:
        counted = generator.random(before.shape) < 0.7
        shares.append(counts.add(before, after, counted))
        assert shares[-1] == pytest.approx(np.mean(before[counted] != after[counted]))
        before[~counted] = after[~counted] = 9  # counts nowhere
    was, now = (np.concatenate([pair[place].ravel() for pair in pairs]) for place in (0, 1))
    cat = counts.of(1)
    assert cat.pixels == (was == 1).sum() and cat.kept_pixels == ((was == 1) & (now == 1)).sum()
    assert dict(cat.became) == {name: ((was == 1) & (now == k)).sum() for k, name in ((0, "background"), (2, "dog"))}
    assert cat.became[0][1] >= cat.became[1][1]
    assert cat.gained == ((was != 1) & (was != 9) & (now == 1)).sum()
    assert counts.share == pytest.approx(100 * np.mean(was[was != 9] != now[was != 9]))


def test_an_image_counts_as_kept_where_a_class_stays_in_its_place():
    before, moved, grown = (np.zeros((10, 10), int) for _ in range(3))
    before[:4], moved[6:], grown[:7] = 1, 1, 1
    counts = Disagreement(("background", "cat"))
    for after in (before, moved, grown):  # IoU 1, 0 and 4 / 7
        counts.add(before, after)
    assert (counts.of(1).images, counts.of(1).kept_images) == (3, 2)
    speck = np.zeros((100, 100), int)
    speck[0, :10] = 1
    counts.add(speck, speck)
    assert counts.of(1).images == 3 and counts.of(1).pixels == 3 * 40 + 10
    assert Disagreement(("background", "cat")).of(1).kept is None


def test_a_name_that_mostly_stood_for_another_object_is_no_old_object_in_that_image():
    before, truth = np.zeros((10, 10), int), np.zeros((10, 10), int)
    before[:, :3], before[:, 3:6], before[:, 6:] = 1, 2, 3
    truth[:5, :3] = 7  # half of what is called 1
    truth[:9, 3:6], truth[9, 5] = 255, 7  # of what is told of 2, a third
    wrong = misnamed(before, (truth > 4) & (truth != 255), truth != 255)
    assert (wrong == (before == 1)).all()
    truth[9, 4] = 7
    assert (misnamed(before, (truth > 4) & (truth != 255), truth != 255) == (before < 3)).all()
    assert not misnamed(before, np.zeros((10, 10), bool), truth == 255).any()
    assert not misnamed(np.zeros((10, 10), int), truth > 4, truth != 255).any()


def test_a_lesson_may_take_back_what_spilled_over_a_new_object(tmp_path, monkeypatch):
    """The old model calls trains buses, and a little beside them: that no bus is left there is no loss of buses."""
    bus = np.zeros((20, 20), np.uint8)
    bus[5:15, 5:18], bus[0, :6] = 1, 1  # the train, three columns more, and a shred elsewhere
    train = np.where(bus == 1, 2, 0).astype(np.uint8)
    truth = np.zeros((20, 20), np.uint8)
    truth[5:15, 5:15] = 2
    other = np.where(truth == 2, 1, 0).astype(np.uint8)  # a bus in truth, in an image without a train
    lesson = SimpleNamespace(background="nothing", stream_names=("bus", "train"), roles=SimpleNamespace(old=("bus",)))
    images = {"train": (bus, train, truth), "bus": (other, other, np.zeros_like(truth))}
    for number, name in enumerate(images):
        (tmp_path / comparing.FOLDER).mkdir(exist_ok=True)
        comparing.write_whole(tmp_path / comparing.FOLDER / f"{number:04d}.png", comparing._png(images[name][0]))
    monkeypatch.setattr(comparing, "seen", lambda _: [comparing.Sight(name, 0) for name in images])
    look = comparing.Comparison(tmp_path, lesson, None, None)
    monkeypatch.setattr(look.__class__, "_dataset", lambda _: None)
    monkeypatch.setattr(
        look.__class__,
        "_read_again",
        lambda _, __, sight: (sight.name, images[sight.name][2] <= 1, images[sight.name][2]),
    )
    monkeypatch.setattr(look.__class__, "_labels", lambda _, model, image: model[image])
    monkeypatch.setattr(comparing, "_keep_shown", lambda *_: None)
    counts, _ = look.look_after({name: after for name, (_, after, _) in images.items()})
    found = counts.of(1)
    assert (found.images, found.pixels, found.kept_share) == (1, 100, 100.0)
    counts, _ = look.look_after({name: np.full((20, 20), 2, np.uint8) for name in images})  # every bus is a train now
    assert counts.of(1).kept_share == 0.0


# --- the decision ----------------------------------------------------------------------------------------------------


def test_scores_decide_where_there_are_some():
    changes = [ClassChange("car", False, 50.0, 46.0, "x", 9), ClassChange("road", False, 80.0, 79.0, "x", 9)]
    changes.append(ClassChange("path", True, None, 3.0))
    decision = decide(changes, True, None)
    assert decision == Decision("scores", pytest.approx(100 * 125 / 130), 90.0, ())
    assert not decision.refused and decide(changes, True, 97.0).refused
    assert worst(changes, decision).name == "car"


def test_a_class_that_is_gone_is_refused_whatever_the_mean_says():
    """What was seen on street scenes: adding a class took another from 46.3 to 1.4, and 84 % of the mean were left."""
    changes = [ClassChange(f"class {each}", False, 60.0, 62.0, "x", 40) for each in range(12)]
    changes.append(ClassChange("Car", False, 46.3, 1.4, "x", 40))
    decision = decide(changes, True, None)
    assert decision.kept > 90 and decision.lost == ("Car",) and decision.refused
    assert not decide(changes, True, 0.0).refused
    (lost, kept) = final_words.verdict_lines((), changes, decision)
    assert lost == ("lost most", "Car: IoU 46.3 before, 1.4 now")
    assert "less than half of that is left of Car" in kept[1]
    # On too few images one class says nothing, nor does one that was never known.
    few = [*changes[:-1], ClassChange("Car", False, 46.3, 1.4, "x", 4), ClassChange("Bus", False, 4.0, 0.0, "x", 40)]
    assert not decide(few, True, 90.0).refused


def test_pixels_decide_without_scores():
    changes = [
        ClassChange("car", False, agreement=agreement("car", 1000, 900)),
        ClassChange("road", False, agreement=agreement("road", 10, 4)),
        ClassChange("rare", False, agreement=agreement("rare", 500, 0, images=1)),
        ClassChange("never", False, agreement=agreement("never", 0, 0, images=0)),
    ]
    decision = decide(changes, False, None)
    assert decision == Decision("pixels", pytest.approx(65.0), 60.0, (), judged=(2, 3))
    assert "65 % of the pixels that the old model gave to its classes, mean over 2 of 3, seen in 5 or more images" in (
        final_words.kept_sentence(decision)
    )
    assert "mean over classes," in final_words.kept_sentence(decide(changes[:2], False, None))
    assert decide(changes, False, 81.0).lost == ("road",)
    together = decide([changes[2], changes[3]], False, None)  # rare classes count together
    assert together.kept == 0.0 and together.refused
    assert "all together, each in fewer than 5 images" in final_words.kept_sentence(together)
    one_large_object = [changes[2], ClassChange("small", False, agreement=agreement("small", 10, 9, images=3))]
    assert decide(one_large_object, False, None).kept == pytest.approx((1 * 0 + 3 * 90) / 4)
    specks = ClassChange("speck", False, agreement=agreement("speck", 5, 0, images=0))
    assert decide([specks], False, None).measure == "nothing"
    nothing = decide([changes[3]], False, 95.0)
    assert nothing.measure == "nothing" and not nothing.refused
    assert "not measured" in final_words.kept_sentence(nothing)


def test_one_large_object_that_is_misnamed_is_not_a_class_that_is_gone():
    """As of photographs of sofas: what the old model called a chair in one of six images became a sofa."""
    person = ClassChange("person", False, agreement=agreement("person", 233289, 232952, images=13))

    def decided(kept_images):
        chair = agreement("chair", 9047, 2066, images=6, kept_images=kept_images)
        return decide([ClassChange("chair", False, agreement=chair), person], False, None)

    assert not decided(5).refused and decided(5).kept == pytest.approx((100 * 2066 / 9047 + 100 * 232952 / 233289) / 2)
    assert not decided(2).lost and decided(1).lost == ("chair",) and decided(1).refused


def rare(*kept):
    """Old classes that the old model sees in one image each, and what they keep in percent."""
    return [
        ClassChange(f"class {k}", False, agreement=agreement("", 100, each, images=1)) for k, each in enumerate(kept)
    ]


def test_a_few_images_refuse_a_model_only_where_chance_cannot_have_done_it():
    # As of photographs of sheep: a cow and a horse became sheep, a motorbike and four persons did not.
    few = decide(rare(0, 0, 100, 73, 73, 73, 73), False, None)
    assert few.kept == pytest.approx(56.0) and not few.refused and few.doubted
    assert "56 % of the pixels" in final_words.kept_sentence(few) and "it may be 70 %" in final_words.kept_sentence(few)
    many = decide(rare(*(0, 0, 100, 73, 73, 73, 73) * 40), False, None)
    assert many.kept == few.kept and many.refused and not many.doubted
    assert decide(rare(0, 0, 100, 73, 73, 73, 73), False, 60.0).refused  # who says how much gets no less
    # The mean and deviation of a Beta distribution, by sampling it.
    share = np.random.default_rng(0).beta(1 + 7 * 0.56, 1 + 7 * 0.44, 1_000_000)
    assert few.kept + few.doubt == pytest.approx(100 * (share.mean() + share.std()), abs=0.1)
    # What is lost everywhere is refused, be it seen once.
    assert all(decide(rare(*[0] * count), False, None).refused for count in (1, 2, 5))
    assert not any(decide(rare(*[100] * count), False, 95.0).refused for count in (1, 2, 5))


def test_old_classes_without_a_score_are_judged_by_their_pixels():
    """Data of old classes that labels one of them only must not switch the gate off for the others."""
    disk = ClassChange("disk", False, 60.0, 60.0, "x", 50, agreement("disk", 1000, 1000, images=50))
    gone = [ClassChange(name, False, agreement=agreement(name, 1000, 0, images=50)) for name in ("car", "road")]
    decision = decide([disk, *gone], True, None)
    assert decision == Decision("scores", 100.0, 90.0, (), unscored=decide(gone, False, None))
    assert decision.refused and decision.unscored.lost == ("car", "road")
    assert worst([disk, *gone], decision).name == "car"
    (lost, kept) = final_words.verdict_lines((), [disk, *gone], decision)
    assert lost[1] == "car: 0 % of its pixels kept their name"
    assert "100 % of the old classes' mean IoU, at least the 90 %" in kept[1]
    assert "; of old classes without a score 0 % of the pixels" in kept[1] and "is left of car, road" in kept[1]
    assert not decide([disk, *gone], True, 0.0).refused and decide([disk, *gone], True, 1.0).refused
    # A score on the lesson's own images is none on data of old classes.
    car = ClassChange("car", False, 60.0, 0.0, "held-out images", 0, gone[0].agreement)
    assert decide([disk, car], True, None).unscored.lost == ("car",)
    # What pixels lose where nothing is forgotten does not pass for more than a loss by scores.
    flickers = ClassChange("road", False, agreement=agreement("road", 1000, 850))
    moved = [ClassChange("disk", False, 60.0, 57.0, "x", 50), flickers]
    assert not decide(moved, True, None).refused and worst(moved, decide(moved, True, None)).name == "disk"


def test_scores_of_nothing_leave_the_gate_to_the_pixels():
    gone = [ClassChange("car", False, 0.0, 0.0, "x", 50, agreement("car", 1000, 0))]
    decision = decide(gone, True, None)
    assert decision == replace(decide(gone, False, None), unknown=True) and decision.refused
    said = final_words.kept_sentence(decision)
    assert said.startswith(
        "the old model scores 0 on the images of --old-val; of what it recognises on the others, 0 %"
    )
    nothing = decide([replace(gone[0], agreement=None)], True, None)
    assert nothing.measure == "nothing" and not nothing.refused
    said = final_words.kept_sentence(nothing)
    assert said.startswith("not measured: the old model scores 0 on the images of --old-val") and "give" not in said


@pytest.mark.parametrize(("given", "share"), [(None, None), ("95%", 95.0), ("95", 95.0), (" 0 %", 0.0), (72.5, 72.5)])
def test_keep_is_a_percentage(given, share):
    assert read_keep(given) == share


@pytest.mark.parametrize("given", ["much", "-1", "101%", "nan", True, "9_5%x"])
def test_other_amounts_to_keep_are_refused(given):
    with pytest.raises(UserError, match="must be a percentage"):
        read_keep(given)


# --- the verdict -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("errors", "reason", "advice"),
    [
        (ClassErrors(9, 1, 1, 0), "no proposal covers 9 of its 11 masks", "--data.crop"),
        (ClassErrors(1, 9, 1, 0), "9 of its 11 masks are proposed, but with an objectness below 0.5", "--alpha 0.1"),
        (ClassErrors(1, 1, 9, 0), "9 of its 11 masks are found but taken for another class", "label more images"),
        (ClassErrors(1, 1, 0, 9), "9 of its 11 masks are recognised, but much else is called so", "empty masks"),
        (None, "called something else", "`comastre learn --continue new --data photos --out new-longer`"),
    ],
)
def test_what_was_not_learned_has_a_reason_and_a_next_command(errors, reason, advice):
    found = {} if errors is None else {"bee": errors}
    (verdict,) = judge(["bee"], {"bee": 2.0}, found, 0.5, PLACE)
    assert verdict.learned is False and reason in verdict.reason and advice in verdict.advice
    ((heading, text),) = final_words.verdict_lines([verdict], (), Decision("nothing", None, 90.0, ()))
    assert heading == "NOT LEARNED" and text.startswith("bee: IoU 2.0: ") and reason in text


def test_the_next_command_names_what_the_lesson_can_go_on_with():
    assert (
        Place("my new", "photos").longer == "`comastre learn --continue 'my new' --data photos --out 'my new-longer'`"
    )
    assert (
        Place("m", "d", parent="x/old").longer == "`comastre learn --continue m --data d --parent x/old --out m-longer`"
    )
    assert Place("m", "d", False, "old").longer == "`comastre learn m --data d --out m-longer`"


def test_nothing_is_learned_where_all_that_was_scored_failed():
    good, bad, unknown = ClassVerdict("a", 50.0), ClassVerdict("b", 1.0), ClassVerdict("c", None)
    assert nothing_learned([bad, unknown]) and not nothing_learned([good, bad]) and not nothing_learned([unknown])
    assert judge(["a", "c"], {"a": 50.0}, {}, None, PLACE) == (good, unknown)


def test_a_class_that_the_images_for_scoring_lack_is_not_said_to_have_none_left():
    decision = Decision("nothing", None, 90.0, ())
    (verdict,) = judge(["star"], {}, {}, None, replace(PLACE, scoring="the images for scoring in v"))
    ((heading, text),) = final_words.verdict_lines([verdict], (), decision)
    assert verdict.learned is None and heading == "not scored"
    assert text == "star: the images for scoring in v do not show it; give --val DATA that does"
    ((_, text),) = final_words.verdict_lines(judge(["star"], {}, {}, None, PLACE), (), decision)
    assert text == "star: no image of it was left to score it on; give --val DATA"


def test_the_last_lines_fit_the_lesson():
    def said(decision, *more):
        lines = final_words.last_lines(Path("m"), Path("m"), 3, [ClassVerdict("bee", 2.0)], decision, *more)
        return " ".join(text for _, text in lines)

    refused, passed = Decision("pixels", 10.0, 60.0, ()), Decision("pixels", 90.0, 60.0, ())
    assert "--later_learning_rate" in said(refused, False) and "--old-val DATA" in said(refused, False)
    assert "learning rate" not in said(refused, True, False, False) and "--old-val" not in said(refused, True)
    assert "has the new names but does not know them" in said(passed, False)
    assert said(passed, False, True) == "the model in m does not know what it practised (bee): do not use it"
    partly = Decision("scores", 99.0, 90.0, (), unscored=refused)
    assert "--old-val DATA that shows all old classes" in said(partly, True)


# --- real lessons ----------------------------------------------------------------------------------------------------

OLD = ("disk", "square", "triangle", "star", "ring", "cross")


@pytest.fixture(autouse=True)
def timed_already(monkeypatch):
    monkeypatch.setattr("comastre.learning.beginning.time_iterations", lambda *_: 0.1)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """(to learn heart from, to score it on, unlabelled images)."""
    root = tmp_path_factory.mktemp("shapes")
    old = small.samples_with(OLD, 40, "val", seed=101)
    others = [sample for sample, mask in zip(old, small.masks_of(old, ("heart",)), strict=True) if not mask.any()]
    hearts = small.samples_with(("heart",), 28)
    learn = small.write_folder(root / "learn", [*hearts[:16], *others[:16]], ("heart",))
    val = small.write_folder(root / "val", hearts[16:], ("heart",))
    return learn, val, small.write_folder(root / "any", others[16:24], ("heart",)) / "images"


def command(data, out, *more):
    learn, val, unlabelled = data
    model = "tests/fixtures/six_shapes"
    words = ["learn", model, "--data", learn, "--val", val, "--unlabelled", unlabelled, "--out", out, *more]
    return [*map(str, words), "--training.batch_size", "4"]


def test_the_gate_refuses_fine_tuning(data, tmp_path, capsys, pytestconfig, monkeypatch):
    monkeypatch.chdir(pytestconfig.rootpath)
    out, aside = tmp_path / "new", tmp_path / "new-refused"
    given = command(data, out, "--method", "finetune", "--iterations", "40")
    assert dispatch(given) == 3
    said = capsys.readouterr().out
    assert "on 40 images outside new objects" in said and "REFUSED" in said and "--keep 0 takes it" in said
    assert not out.exists()
    refused = store.load(aside).classes
    assert refused.names == (*OLD, "heart") and refused.lineage[-1].status == "refused"
    assert "refused" in (aside / "README.md").read_text()
    page = (aside / "lesson.html").read_text()
    assert "This lesson forgot too much" in page and page.count("<figure>") == 12 and str(tmp_path) not in page
    assert "are now called heart" in page and "% of the pixels differ outside new objects (" in page
    assert "http" not in page.replace("http-equiv", "")  # everything is inside
    # The same command tells it again without training; with another --keep the model is handed over as it is.
    monkeypatch.setattr("comastre.learning.learn.run", None)
    weights = (aside / "model.safetensors").read_bytes()
    assert dispatch(given) == 3 and aside.exists()
    assert dispatch([*given, "--keep", "0"]) == 0
    assert not aside.exists() and (out / "model.safetensors").read_bytes() == weights
    assert store.load(out).classes.lineage[-1].status == "passed"


def test_the_gate_lets_a_lesson_of_ours_pass(data, tmp_path, capsys, pytestconfig, monkeypatch):
    monkeypatch.chdir(pytestconfig.rootpath)
    out = tmp_path / "new"
    assert dispatch(command(data, out, "--iterations", "100")) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert " learned heart: IoU" in said and " lost most " in said and "at least the 60 % that are asked" in said
    assert " done the new model is in " in said and " handed over the " in said and " + kept " in said
    assert store.load(out).classes.lineage[-1].status == "passed"


def test_a_lesson_that_teaches_nothing_is_no_success(data, tmp_path, capsys, pytestconfig, monkeypatch):
    monkeypatch.chdir(pytestconfig.rootpath)
    monkeypatch.setattr("comastre.learning.verdict.KNOWN", 99.0)  # one iteration gets a few pixels right by chance
    out = tmp_path / "new"
    assert dispatch(command(data, out, "--iterations", "1", "--no-instant")) == 1
    said = capsys.readouterr().out
    assert (
        "NOT LEARNED" in said and "`comastre learn --continue " in " ".join(said.split()) and "nothing learned" in said
    )
    assert store.load(out).classes.lineage[-1].status == "nothing learned"
    outcome = json.loads((tmp_path / "new.training" / "outcome.json").read_text())
    assert outcome["compared"] == 40 and {each["name"] for each in outcome["agreement"]} == set(OLD)
    assert comastre.load(out).classes.lineage[-1].note.endswith("(--keep)")


class AcceptedError(Exception):
    """A command came as far as its training."""


def quick_lesson(model, data, out, *more):
    words = ["learn", model, "--data", data, "--out", out, "--iterations", "1", "--training.batch_size", "2", *more]
    return dispatch([str(word) for word in words])


@pytest.mark.parametrize("kind", ["first", "practised", "elsewhere", "beside"])
def test_the_next_command_is_one_that_is_accepted(kind, tiny_bundle, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("comastre.learning.verdict.KNOWN", 101.0)
    known = "star" if kind == "practised" else "heart"
    photos = small.write_folder(tmp_path / "my photos", small.samples_with((known,), 8), (known,))
    old, out = tmp_path / "old" if kind == "beside" else tmp_path / "models" / "old", tmp_path / "mm"
    shutil.copytree(tiny_bundle, old)
    model = "new:tiny" if kind == "first" else old
    assert quick_lesson(model, photos, out, "--no-instant", "--keep", "0") == 1
    said, page = " ".join(capsys.readouterr().out.split()), (out / "lesson.html").read_text()
    assert ("has the new names" in said) == ("has the new names" in page) == (kind != "practised")
    assert ("Where the models differ most" in page) == (kind != "first")  # there is one only
    advised = shlex.split(said[said.index("NOT LEARNED") :].split("`")[1])
    assert ("--continue" in advised) == (kind in ("elsewhere", "beside")) and f"{out}-longer" in advised

    def accepted(*_):
        raise AcceptedError

    monkeypatch.setattr("comastre.learning.learn.begin", accepted)
    with pytest.raises(AcceptedError):
        dispatch(advised[1:])
