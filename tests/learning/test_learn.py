"""`learn` as a whole on a few images: what it writes, says, refuses, and that it goes on exactly where it stopped."""

import inspect
import itertools
import json
import math
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import small_lesson as small
import torch
from safetensors.torch import load_file

import comastre
from comastre.bundle import store
from comastre.errors import UserError
from comastre.learning import directory
from comastre.learning.lesson import Lesson
from comastre.training.stopping import Interrupted

QUICK = {"training": {"batch_size": 2}, "comastre": {"matching": {"points": 32}, "masks": {"points": 32}}}


def teach(model, data, out, said=None, iterations=3, **options):
    settings = options.pop("settings", QUICK)
    lines = said if said is not None else []
    options.setdefault("keep", 0)  # of a random model three iterations may keep anything
    options.setdefault("instant", False)  # which has its own tests, in test_instant.py
    return comastre.learn(model, data, out=out, iterations=iterations, settings=settings, say=lines.append, **options)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Images labelled for heart (new to the model) and for star (known), numbered in the data's own order.

    Those with a heart, of which some are held out, show a star too: it can be scored whatever the model sees.
    """
    stars = small.samples_with(("star",), 300)
    hearts = [mask.any() for mask in small.masks_of(stars, ("heart",))]
    both, others = ([each for each, shown in zip(stars, hearts, strict=True) if shown == wanted] for wanted in (1, 0))
    samples = [*both[:6], *others[:10]]
    return small.write_folder(tmp_path_factory.mktemp("lesson") / "my data", samples, ("star", "heart"))


@pytest.fixture(autouse=True)
def timed_already(monkeypatch):
    """Timing is a run of its own; the lesson of the fixture, which comes first, is really timed."""
    monkeypatch.setattr("comastre.learning.beginning.time_iterations", lambda *_: 2.0)


@pytest.fixture(scope="module")
def lesson(tiny_bundle, data, tmp_path_factory):
    """(what was learned, what was said, bytes of the old bundle before) of one lesson with all kinds of data."""
    folder = tmp_path_factory.mktemp("learned")
    old = {file.name: file.read_bytes() for file in tiny_bundle.iterdir()}
    shown = [*small.samples_with(("disk",), 4, "val"), *small.samples_with(("ring",), 2, "val", seed=101)]
    known = small.write_folder(folder / "old data", shown, ("ring", "disk", "bolt"))
    said = []
    settings = {**QUICK, "data": {"held_out": 0.5}}
    learned = teach(tiny_bundle, data, folder / "new", said, old_val=known, settings=settings)
    return learned, "\n".join(said), old


def test_the_old_bundle_is_not_touched_and_the_new_one_is_whole(lesson, tiny_bundle):
    learned, _, old = lesson
    assert {file.name: file.read_bytes() for file in tiny_bundle.iterdir()} == old
    assert {file.name for file in learned.path.iterdir()} == {*store.FILES, "statistics.safetensors", "lesson.html"}
    model = learned.model
    assert model.class_names == ("background", "disk", "star", "ring", "heart")
    assert model.segmenter.tasks == (2, 1, 1)
    assert len(set(model.colours)) == 5 and model.colours[:4] == store.load(tiny_bundle).classes.colours
    assert model.predict(np.zeros((64, 64, 3), dtype=np.uint8)).label_map.shape == (64, 64)


def test_the_lineage_names_the_step_its_data_and_its_scores(lesson, tiny_bundle):
    learned, _, _ = lesson
    *earlier, step = learned.classes.lineage
    assert tuple(earlier) == store.load(tiny_bundle).classes.lineage
    assert step.step == 2 and step.new_classes == ("heart",) and len(step.date) == 10
    assert step.data.startswith("my data (folder), ") and step.data.endswith("images labelled for star, heart")
    assert set(step.scores) == {"star", "heart", "old classes before", "old classes after"}
    assert str(learned.path.parent) not in (learned.path / "classes.json").read_text()
    assert learned.model.bundle.description.training["training"]["batch_size"] == 2
    assert "my data (folder)" in (learned.path / "README.md").read_text()


def test_it_says_what_it_understood_before_it_trains(lesson):
    _, said, _ = lesson
    understood = said[: said.index("training ")]
    assert "disk, star, ring" in understood
    assert "new class     heart: " in understood and "held out for scoring" in understood
    assert "old class     star: " in understood and "learned from" in understood
    assert "not labelled  disk, ring: kept as the old model sees them" in understood
    assert "every pixel without one of these labels" in understood
    assert "3 iterations of 2 images at 64 x 64 pixels" in said and "learning rate 0.001" in said


def test_scores_are_of_labelled_classes_only_and_forgetting_is_reported(lesson):
    learned, said, _ = lesson
    assert set(learned.scores) == {"star", "heart"}
    shown = {name for name, value in learned.old_after.items() if value is not None}
    assert "disk" in shown and "heart" not in shown and "star" not in shown
    assert {name for name, value in learned.old_before.items() if value is not None} == shown
    assert "of disk, star, ring: on old data" not in said  # star is scored where the data labels it
    assert "IoU in % of disk" in said and "on old data (folder)" in said and "held-out images" in said
    assert "mean of old classes" in said


def test_what_was_learned_shows_itself_in_a_few_lines(lesson):
    learned, _, _ = lesson
    first, second, *_ = repr(learned).splitlines()
    assert first == f"Learned heart: 4 classes in {learned.path}"
    assert second.startswith("IoU in %: ") and "heart" in second
    assert repr(learned.model).startswith("Model (CoMasTRe, size tiny, ")
    assert repr(learned.model).endswith("4 classes\nstep 1: disk, star\nstep 2: ring\nstep 3: heart")


def test_what_was_for_going_on_is_gone_and_logs_stay(lesson):
    learned, _, _ = lesson
    work = directory.training_folder(learned.path)
    assert not (work / "checkpoints").exists() and not (work / "steps").exists()
    results = json.loads((work / "results.json").read_text())
    assert [step["new_classes"] for step in results["steps"]] == [["disk", "star", "ring"], ["heart"]]
    # The old model's score of a class that the data labels too, and none of those that it does not.
    before = results["steps"][0]["per_class"]
    assert before["star"] is not None and before["disk"] is None and before["background"] is None
    assert (work / "metrics.jsonl").read_text().count("\n") >= 1


def test_old_classes_that_are_labelled_too_are_given_to_the_losses(data, tiny_bundle):
    from comastre.learning.plan import NameChoices, make_plan

    found = make_plan(store.load(tiny_bundle).classes, data, None, None, NameChoices({}, (), ()), 0.15)
    (_, task) = found.lesson.scenario("3-1").tasks
    assert task.labelled_old == (1,)  # star
    assert task.training_lookup()[[0, 2, 4, 255]].tolist() == [0, 2, 4, 255]


def test_coco_json_teaches_the_same_as_the_folder(tiny_bundle, tmp_path):
    samples = small.samples_with(("heart",), 6)
    folder = small.write_folder(tmp_path / "folder", samples, ("heart",))
    file = small.write_coco(tmp_path / "coco", samples, ("heart",))
    val = small.write_folder(tmp_path / "val", samples[:2], ("heart",))
    by_folder = teach(tiny_bundle, folder, tmp_path / "a", val=val)
    by_file = teach(tiny_bundle, file, tmp_path / "b", val=val)
    assert by_file.scores == by_folder.scores
    first, second = (load_file(each.path / "model.safetensors") for each in (by_folder, by_file))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_interrupted_it_goes_on_and_ends_with_the_same_model(tiny_bundle, data, tmp_path, monkeypatch):
    straight = teach(tiny_bundle, data, tmp_path / "straight", iterations=4)
    out = tmp_path / "stopped"
    losses = count_losses(monkeypatch, stop_at=2)
    said = []
    with pytest.raises(Interrupted, match="give the same command to go on"):
        teach(tiny_bundle, data, out, said, iterations=4)
    assert not out.exists() and (directory.training_folder(out) / "checkpoints").exists()
    done = len(losses)
    resumed = teach(tiny_bundle, data, out, said, iterations=4)
    assert "goes on in" in "\n".join(said) and len(losses) - done == 2  # neither timed nor trained again
    first, second = (load_file(each.path / "model.safetensors") for each in (straight, resumed))
    assert all(torch.equal(first[name], second[name]) for name in first)


def count_losses(monkeypatch, stop_at):
    """Every loss counts; the `stop_at`-th after timing sends the signal that Ctrl-C sends."""
    from comastre.learning import learn as module
    from comastre.methods.comastre.method import TwoStageMethod

    calls, began = [], []
    plain, plain_begin = TwoStageMethod.losses, module.begin

    def begin(*args):
        plain_begin(*args)
        began.append(len(calls))

    def losses(self, model, batch, points):
        calls.append(batch.iteration)
        if began and len(calls) == began[0] + stop_at:
            signal.raise_signal(signal.SIGINT)
        return plain(self, model, batch, points)

    monkeypatch.setattr(TwoStageMethod, "losses", losses)
    monkeypatch.setattr(module, "begin", begin)
    return calls


def test_another_command_does_not_go_on_in_the_same_place(tiny_bundle, data, tmp_path, monkeypatch):
    out = tmp_path / "new"
    count_losses(monkeypatch, stop_at=1)
    with pytest.raises(Interrupted):
        teach(tiny_bundle, data, out)
    with pytest.raises(UserError, match=r"another command \(what differs: --iterations\)"):
        teach(tiny_bundle, data, out, iterations=5)
    with pytest.raises(UserError, match=r"what differs: the new classes, the old classes, the images"):
        teach(tiny_bundle, small.write_folder(tmp_path / "x", small.samples_with(("bolt",), 6), ("bolt",)), out)
    monkeypatch.undo()
    learned = teach(tiny_bundle, data, out, iterations=5, fresh=True)
    assert learned.path == out and directory.training_folder(out).with_name("new.training.old-1").exists()


def test_minutes_decide_the_schedule_once(tiny_bundle, data, tmp_path, monkeypatch):
    """By a clock that goes on by a second in every iteration, and stands still elsewhere."""
    ticks = itertools.count(100.0)
    monkeypatch.setattr("comastre.training.run.time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    monkeypatch.setattr("comastre.learning.beginning.time", SimpleNamespace(monotonic=lambda: 50.0))
    monkeypatch.setattr("comastre.learning.learn.time", SimpleNamespace(monotonic=lambda: 48.0))
    said = []
    learned = teach(tiny_bundle, data, tmp_path / "new", said, iterations=None, minutes=0.25)
    text = "\n".join(said)
    # Fifteen seconds, of which two are over (and a fifth more is set aside), three are for writing, and the old model
    # scored in no time: 9.6 are left, in which four iterations of two seconds fit, and two more are planned in case
    # that they are faster.
    assert " 6 iterations of 2 images" in text and "the clock ends the training after 0:10" in text
    assert "too few for the 600 iterations" in text and "which need --minutes 21" in text
    work = directory.training_folder(learned.path)
    assert "iterations_per_class: 6\n" in (work / "config.yaml").read_text()
    assert json.loads((work / "plan.json").read_text())["times"] == {"training": pytest.approx(9.6), "scoring": 0.0}
    lines = [json.loads(line) for line in (work / "metrics.jsonl").read_text().splitlines()]
    assert max(line["iteration"] for line in lines) == 6  # at a second each, all that were planned


def test_the_clock_ends_a_lesson_that_is_slower_than_timed(tiny_bundle, data, tmp_path, monkeypatch):
    ticks = itertools.count(100.0, 4.0)
    monkeypatch.setattr("comastre.training.run.time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    monkeypatch.setattr("comastre.learning.beginning.training_seconds", lambda *_: 10.0)
    learned = teach(tiny_bundle, data, tmp_path / "new", iterations=None, minutes=5)
    work = directory.training_folder(learned.path)
    lines = [json.loads(line) for line in (work / "metrics.jsonl").read_text().splitlines()]
    # Two iterations of four seconds fit into ten; the rate of the second follows the clock, which is at 0.4.
    last = [line for line in lines if "learning_rate" in line][-1]
    assert last["iteration"] == 2 and "iterations_per_class: 6\n" in (work / "config.yaml").read_text()
    assert last["learning_rate"] == pytest.approx(1e-3 * (1 - 0.4) ** 0.9)


def test_minutes_count_the_look_after_the_training(tmp_path, monkeypatch, capfd):
    """Of 16 images a new model learns from 13, looks at them once more, and is scored on 3."""
    data = small.write_folder(tmp_path / "data", small.samples_with(("heart", "star"), 16), ("star", "heart"))
    ticks, told = itertools.count(100.0, 4.0), []
    monkeypatch.setattr("comastre.training.run.time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    monkeypatch.setattr("comastre.learning.beginning.training_seconds", lambda *given: told.append(given) or 10.0)
    learned = teach("new:tiny", data, tmp_path / "new", iterations=None, minutes=5)
    work = directory.training_folder(learned.path)
    plan = json.loads((work / "plan.json").read_text())
    # Two images in two seconds: a second for each that is scored, half of one for each that is looked at.
    assert told[0][2] == plan["times"]["scoring"] == 3 * 1 + 13 * 0.5
    # What is left for the end when the look is over.
    assert plan["after_look"] == pytest.approx(1.2 * 3 + 0.2 * told[0][1] + 3)
    said = capfd.readouterr().err
    assert "a look at each of 13 images" in said and "time is up" not in said
    seconds = re.search(r"learning 2/6 · 0:(\d\d) left", said)  # of ten for training, and 9.5 for the rest
    assert seconds is not None and 9 <= int(seconds[1]) <= 19


def test_a_look_ends_with_the_minutes_but_sees_every_class(data, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("comastre.learning.beginning.training_seconds", lambda *_: 0.1)
    monkeypatch.setattr("comastre.stream.whole_images.FEWEST", 2)
    late = SimpleNamespace(monotonic=lambda: math.inf, perf_counter=time.perf_counter)
    monkeypatch.setattr("comastre.training.iteration.time", late)
    learned = teach("new:tiny", data, tmp_path / "new", iterations=None, minutes=5)
    said = capfd.readouterr().err
    assert "a look at up to" in said
    looked, total = map(int, re.search(r"time is up after (\d+) of (\d+) images", said).groups())
    assert 2 <= looked <= 4 < total
    counts = load_file(learned.path / "statistics.safetensors")["counts"]  # the first is of no class
    assert counts[1:].min() >= 2


def test_who_looks_at_nothing_is_not_waited_for(data, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr("comastre.learning.beginning.training_seconds", lambda *given: told.append(given) or 0.1)
    teach("new:tiny", data, tmp_path / "new", iterations=None, minutes=5, settings={**QUICK, "method": "finetune"})
    assert told[0][2] < 16 * 0.5


def test_a_new_model_learns_its_first_step(data, tmp_path):
    said = []
    learned = teach("new:tiny", data, tmp_path / "new", said)
    assert "random weights" in said[0] and "old class" not in said[0]
    assert learned.classes.names == ("star", "heart") and learned.classes.tasks == (2,)
    assert len(learned.classes.lineage) == 1 and set(learned.scores) == {"star", "heart"}
    # And then a second one, from the bundle that the first wrote.
    more = small.write_folder(tmp_path / "more", small.samples_with(("bolt",), 6), ("bolt",))
    again = teach(learned.path, more, tmp_path / "newer")
    assert again.classes.names == ("star", "heart", "bolt") and len(again.classes.lineage) == 2


def test_a_model_in_memory_learns_as_its_bundle_does_and_stays_what_it_is(tiny_bundle, data, tmp_path):
    model = comastre.load(tiny_bundle)
    before = {name: tensor.clone() for name, tensor in model.segmenter.state_dict().items()}
    from_object = teach(model, data, tmp_path / "a")
    from_bundle = teach(str(tiny_bundle), data, tmp_path / "b")
    assert all(torch.equal(before[name], tensor) for name, tensor in model.segmenter.state_dict().items())
    assert model.segmenter.tasks == (2, 1)
    first, second = (load_file(each.path / "model.safetensors") for each in (from_object, from_bundle))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_class_with_one_image_is_warned_of_and_learned(tiny_bundle, tmp_path):
    said = []
    root = small.write_folder(tmp_path / "data", small.samples_with(("heart",), 1), ("heart",))
    learned = teach(tiny_bundle, root, tmp_path / "new", said, iterations=1)
    assert "warning: heart has one image only" in "\n".join(said)
    assert learned.scores == {"heart": None} and "nothing was scored" in "\n".join(said)
    assert learned.classes.lineage[-1].scores == {"heart": None}


@pytest.mark.parametrize(("method", "taught_by"), [("finetune", "finetune"), ("joint", "comastre")])
def test_a_model_is_taught_with_its_own_method(tiny_bundle, data, tmp_path, method, taught_by):
    bundle = store.load(tiny_bundle)
    trained = replace(bundle, description=replace(bundle.description, method=method))
    folder = store.save(trained, tmp_path / "model")
    learned = teach(folder, data, tmp_path / "new", iterations=2)
    assert learned.model.bundle.description.method == taught_by
    work = directory.training_folder(learned.path)
    assert f"method: {taught_by}\n" in (work / "config.yaml").read_text()
    terms = json.loads((work / "metrics.jsonl").read_text().splitlines()[0])
    # Fine-tuning remembers nothing; what joint training gave is then taught without forgetting.
    assert ("position_kd" in terms) == ("across_tasks" in terms) == (taught_by == "comastre")
    # And so once more: the method stays with the model.
    more = small.write_folder(tmp_path / "more", small.samples_with(("bolt",), 6), ("bolt",))
    again = teach(learned.path, more, tmp_path / "newer", iterations=1)
    assert again.model.bundle.description.method == taught_by


def test_a_new_model_may_learn_with_another_method(data, tmp_path):
    settings = {**QUICK, "method": "finetune"}
    learned = teach("new:tiny", data, tmp_path / "new", settings=settings, iterations=1)
    assert learned.model.bundle.description.method == "finetune"


def test_killed_before_its_first_checkpoint_it_starts_again(tiny_bundle, data, tmp_path, monkeypatch):
    straight = teach(tiny_bundle, data, tmp_path / "straight")
    out, killed = tmp_path / "killed", []

    def die(*args):
        killed.append(args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("comastre.training.session.save", die)
        teach(tiny_bundle, data, out)
    work = directory.training_folder(out)
    assert killed and not list((work / "checkpoints").glob("*.safetensors"))
    resumed = teach(tiny_bundle, data, out)
    first, second = (load_file(each.path / "model.safetensors") for each in (straight, resumed))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_killed_after_the_model_was_written_the_same_command_shows_its_scores(tiny_bundle, data, tmp_path, monkeypatch):
    out, settings = tmp_path / "new", {**QUICK, "data": {"held_out": 0.5}}
    straight = teach(tiny_bundle, data, tmp_path / "straight", settings=settings)
    for moment in ("directory.tidy", "final_words.changes_table"):  # with and without what was for going on
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(f"comastre.learning.outcome.{moment}", interrupt)
            teach(tiny_bundle, data, out, settings=settings)
        assert (out / "model.safetensors").exists()
        weights = (out / "model.safetensors").read_bytes()
        said: list[str] = []
        with monkeypatch.context() as patch:
            patch.setattr("comastre.learning.learn.run", interrupt)  # nothing is trained again
            again = teach(tiny_bundle, data, out, said, settings=settings)
        assert (again.scores, again.classes.names) == (straight.scores, straight.classes.names)
        assert "IoU in % of star, heart: on" in "\n".join(said) and str(out) in said[-1]
        assert (out / "model.safetensors").read_bytes() == weights
    assert "exists already" in refused(tiny_bundle, data, out, settings=settings, iterations=4)
    # Moved where it is used, it is not trained again by mistake.
    out.rename(tmp_path / "moved")
    assert "move it back there, or train it again with --fresh" in refused(tiny_bundle, data, out, settings=settings)


def test_killed_between_training_and_writing_the_model_it_is_the_learned_one(tiny_bundle, data, tmp_path, monkeypatch):
    straight = teach(tiny_bundle, data, tmp_path / "straight", settings=QUICK)
    for moment in ("learn.finish", "outcome.store.save"):
        out = tmp_path / moment
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(f"comastre.learning.{moment}", interrupt)
            teach(tiny_bundle, data, out, settings=QUICK)
        assert not out.exists()
        again = teach(tiny_bundle, data, out, settings=QUICK)
        assert (again.scores, again.classes.names) == (straight.scores, straight.classes.names)
        expected = (tmp_path / "straight" / "model.safetensors").read_bytes()
        assert (out / "model.safetensors").read_bytes() == expected


def test_a_damaged_copy_of_the_old_model_comes_back_from_the_checkpoint(tiny_bundle, data, tmp_path, monkeypatch):
    straight, out = tmp_path / "straight", tmp_path / "new"
    teach(tiny_bundle, data, straight, settings=QUICK)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("comastre.training.run._learn", interrupt)  # its start is in the checkpoint by then
        teach(tiny_bundle, data, out, settings=QUICK)
    weights = tmp_path / "new.training" / "steps" / "00" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    teach(tiny_bundle, data, out, settings=QUICK)
    assert (out / "model.safetensors").read_bytes() == (straight / "model.safetensors").read_bytes()


def interrupt(*_args, **_options):
    raise KeyboardInterrupt


# --- what is refused -------------------------------------------------------------------------------------------------


def refused(*args, **options):
    with pytest.raises(UserError) as error:
        teach(*args, **options)
    text = str(error.value)
    assert "\n" not in text
    return text


def test_data_without_any_class_is_refused(tiny_bundle, tmp_path):
    root = small.write_folder(tmp_path / "data", small.samples_with(("star",), 3), (), ("bee",))
    text = refused(tiny_bundle, root, tmp_path / "new")
    assert "has nothing to learn: it labels nothing; no image shows bee" in text
    assert not (tmp_path / "new").exists() and not (tmp_path / "new.training").exists()


def test_names_that_look_alike_are_refused_until_confirmed(tiny_bundle, tmp_path):
    root = small.write_folder(tmp_path / "data", small.samples_with(("heart",), 6), ("heart",), ("Disk",))
    assert '--same-class "Disk=disk"' in refused(tiny_bundle, root, tmp_path / "new")
    practised = teach(tiny_bundle, root, tmp_path / "same", same_class=["Disk=disk"], iterations=1)
    assert practised.new_classes == () and practised.classes.names == ("disk", "star", "ring")
    learned = teach(tiny_bundle, root, tmp_path / "new", new_class=["Disk"], iterations=1)
    assert learned.new_classes == ("Disk",)


def test_a_bundle_of_a_newer_version_is_refused(tiny_bundle, data, tmp_path):
    newer = shutil.copytree(tiny_bundle, tmp_path / "newer")
    config = json.loads((newer / "config.json").read_text())
    (newer / "config.json").write_text(json.dumps({**config, "version": 99}))
    assert "upgrade comastre" in refused(newer, data, tmp_path / "new")


def test_starting_over_puts_nothing_aside_where_the_model_is_still_there(tiny_bundle, data, tmp_path):
    out = tmp_path / "new"
    teach(tiny_bundle, data, out, iterations=1)
    there = sorted(tmp_path.iterdir())
    assert "exists already and is never overwritten" in refused(tiny_bundle, data, out, iterations=1, fresh=True)
    assert sorted(tmp_path.iterdir()) == there


def test_places_that_hold_something_are_refused(tiny_bundle, data, tmp_path):
    model = shutil.copytree(tiny_bundle, tmp_path / "model")
    assert "exists already and is never overwritten" in refused(model, data, shutil.copytree(model, tmp_path / "full"))
    assert "would touch the old model" in refused(model, data, model)
    assert "would touch the old model" in refused(model, data, model / "new")
    assert "would touch the old model" in refused(model, data, tmp_path)
    (tmp_path / "file").write_text("mine")
    assert "is a file" in refused(model, data, tmp_path / "file")
    (tmp_path / "x.training").mkdir()
    (tmp_path / "x.training" / "diary.txt").write_text("mine")
    assert "holds other files" in refused(model, data, tmp_path / "x")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"minutes": 3.0}, "give one of them"),
        ({"iterations": 0}, "--iterations is 0"),
        ({"iterations": None, "minutes": -1.0}, "--minutes is -1"),
        ({"backbone_weights": "hub"}, "is for new models"),
        ({"settings": {"backbone": {"weights": "hub"}}}, "is for new models"),
        ({"settings": {"training": {"iterations": 5}}}, "give --iterations instead"),
        ({"settings": {"size": "small"}}, "--size cannot be set for a lesson: give another model instead"),
        ({"settings": {"model": {"size": "small"}}}, "--size cannot be set for a lesson"),  # its older name
        ({"settings": {"backbone": {"name": "x"}}}, "--backbone.name cannot be set for a lesson: give another model"),
        ({"settings": {"comastre": {"pixel_decoder": {"dim": 32}}}}, "--comastre.pixel_decoder cannot be set for a"),
        (
            {"settings": {"method": "joint"}},
            "--method joint cannot be set for a lesson: the model's own is",
        ),
        ({"settings": {"training": {"batch_size": 0}}}, "batch_size is 0"),
        ({"val": "nowhere"}, "there is no data nowhere"),
        ({"parent": "nowhere"}, "--parent is for a lesson that goes on: give it with --continue NEW_MODEL, or leave"),
        ({"same_class": ["Disk"]}, "is not understood"),
    ],
)
def test_options_that_make_no_sense_are_refused(tiny_bundle, data, tmp_path, options, said):
    assert said in refused(tiny_bundle, data, tmp_path / "new", **options)
    assert not (tmp_path / "new.training").exists()


def test_models_and_data_that_are_not_there_are_refused(tiny_bundle, data, tmp_path):
    assert "there is no model" in refused(tmp_path / "nothing", data, tmp_path / "new")
    assert "there is no data" in refused(tiny_bundle, tmp_path / "nothing", tmp_path / "new")
    assert "is no size of model" in refused("new:huge", data, tmp_path / "new")
    assert "knows nothing yet" in refused("new:tiny", data, tmp_path / "new", old_val=data)
    assert "there is no file" in refused("new:small", data, tmp_path / "new", backbone_weights="nowhere.safetensors")
    (tmp_path / "empty" / "images").mkdir(parents=True)
    (tmp_path / "empty" / "classes.txt").write_text("heart\n")
    assert "holds no images" in refused(tiny_bundle, tmp_path / "empty", tmp_path / "new")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_bad_file_among_unlabelled_images_is_left_out_and_named(tiny_bundle, data, tmp_path):
    images = tmp_path / "any"
    shutil.copytree(data / "images", images)
    bad, *good = sorted(images.iterdir())
    bad.write_bytes(b"no image")
    said: list[str] = []
    learned = teach(tiny_bundle, data, tmp_path / "new", said, iterations=1, unlabelled=images)
    (line,) = (each for each in said if each.startswith("warning: left out of --unlabelled"))
    assert str(bad) in line and learned.compared == len(good) + 16
    # One that is gone by the end costs no lesson.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("comastre.learning.beginning.time_iterations", lambda *_: good[0].rename(bad) and 2.0)
        assert teach(tiny_bundle, data, tmp_path / "gone", unlabelled=images).compared == len(good) + 15
    bad.rename(good[0])  # what both models saw goes together all the same
    assert teach(tiny_bundle, data, tmp_path / "good", iterations=1, unlabelled=images).changes == learned.changes
    for each in good:
        each.write_bytes(b"no image")
    text = refused(tiny_bundle, data, tmp_path / "none", unlabelled=images)
    assert "none of the images of --unlabelled can be read" in text


def test_data_for_scoring_that_lacks_the_class_is_named(tiny_bundle, data, tmp_path):
    val = small.write_folder(tmp_path / "v", small.samples_with(("ring",), 3), ("ring",))
    said: list[str] = []
    teach(tiny_bundle, data, tmp_path / "new", said, iterations=1, val=val)
    text = " ".join("\n".join(said).split())
    assert "not scored heart: the images for scoring in v do not show it; give --val DATA that does" in text


def test_a_device_that_is_not_there_is_refused_before_anything_is_written(tiny_bundle, data, tmp_path):
    settings = {"training": {**QUICK["training"], "accelerator": "cuda"}}
    assert "is not possible here" in refused(tiny_bundle, data, tmp_path / "new", settings=settings)
    assert not (tmp_path / "new.training").exists()


def test_a_second_process_in_the_same_place_is_refused(tiny_bundle, data, tmp_path):
    work = tmp_path / "new.training"
    code = f"""
from pathlib import Path
from comastre.training.directory import locked
with locked(Path({str(work)!r})):
    print("held", flush=True)
    input()
"""
    for name in ("plan.json", "checkpoints/step.safetensors", "steps/00/model.safetensors"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text('{"decided": false}')
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        for fresh in (False, True):
            assert "is in use by" in refused(tiny_bundle, data, tmp_path / "new", fresh=fresh)
            # What the other one trains in is as it was.
            assert {file.read_text() for file in work.rglob("*") if file.suffix} == {'{"decided": false}'}
        other.communicate(b"\n")


def test_the_example_of_the_docstring_runs(tiny_bundle, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("comastre.learning.gate.PIXELS_KEPT", 0.0)  # of a random model anything may be left
    shutil.copytree(tiny_bundle, "model")
    root = small.write_folder(tmp_path / "photos", small.samples_with(("heart",), 6), ("heart",))
    for kind in ("images", "masks"):
        min((root / kind).iterdir()).rename(root / kind / "first.png")
    example = inspect.getdoc(comastre.learn).split("Example:\n")[1]
    exec(textwrap.dedent(example), {})
    assert "('heart',) {'heart': " in capsys.readouterr().out
    assert (tmp_path / "new-model" / "model.safetensors").exists()


def test_a_lesson_travels_to_other_processes(tiny_bundle, data):
    import pickle

    from comastre.learning.plan import NameChoices, make_plan

    found = make_plan(store.load(tiny_bundle).classes, data, None, None, NameChoices({}, (), ()), 0.15)
    parts = pickle.loads(pickle.dumps(found.lesson.parts()))
    assert isinstance(parts.data.__self__, Lesson) and parts.data.__self__ == found.lesson
