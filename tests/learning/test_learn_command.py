"""The command line of `learn`: every option reaches the function, fields of the configuration too."""

from pathlib import Path
from types import SimpleNamespace

import pytest

import comastre.learning.learn as module
from comastre.cli import STARTED
from comastre.cli.main import dispatch
from comastre.config.overrides import UsageError


@pytest.fixture
def calls(monkeypatch):
    found = []

    def learn(*args, **options):
        found.append((args, options))
        return SimpleNamespace(exit_code=3)

    monkeypatch.setattr(module, "learn", learn)
    monkeypatch.setattr("comastre.report.lesson_write.page_after", lambda learned: None)
    return found


def test_every_option_arrives(calls):
    arguments = (
        "learn old --data photos --out new --val v --old-val o --unlabelled u --keep 95% "
        "--minutes 2.5 --same-class Dog=dog --same-class A=b "
        "--no-instant --guarantee exact --new-class Cat --only Cat --only cow --backbone-weights w.safetensors --fresh"
    )
    assert dispatch(arguments.split()) == 3  # as the gate says
    ((args, options),) = calls
    assert args == ("old", "photos")
    assert options == {
        "out": Path("new"),
        "val": "v",
        "old_val": "o",
        "unlabelled": "u",
        "keep": "95%",
        "minutes": 2.5,
        "iterations": None,
        "instant": False,
        "guarantee": "exact",
        "same_class": ("Dog=dog", "A=b"),
        "new_class": ("Cat",),
        "only": ("Cat", "cow"),
        "continued": False,
        "parent": None,
        "fresh": True,
        "began": STARTED,
        "settings": {"backbone": {"weights": "w.safetensors"}},  # however it is written
    }
    assert dispatch(arguments.replace("--backbone-weights", "--backbone.weights").split()) == 3
    assert calls[1] == calls[0]


def test_fields_of_the_configuration_arrive_and_iterations_are_the_lessons_own(calls):
    arguments = "learn old --data photos --out new --iterations 40 --data.crop 96 --clip 0.5"
    dispatch(arguments.split())
    ((_, options),) = calls
    assert options["iterations"] == 40 and options["instant"] is None and options["guarantee"] is None
    assert options["settings"] == {"data": {"crop": 96}, "comastre": {"optimiser": {"clip": 0.5}}}


def test_one_look_is_asked_for_or_left_out(calls):
    dispatch(["learn", "old", "--data", "photos", "--out", "new", "--instant"])
    assert calls[0][1]["instant"] is True
    with pytest.raises(UsageError, match="--instant and --no-instant contradict"):
        dispatch(["learn", "old", "--data", "photos", "--out", "new", "--instant", "--no-instant"])


def test_a_lesson_that_goes_on_is_named_in_place_of_the_model(calls):
    assert dispatch(["learn", "--continue", "newer", "--parent", "old", "--data", "photos", "--out", "newest"]) == 3
    ((args, options),) = calls
    assert args == ("newer", "photos") and options["continued"] and options["parent"] == "old"
    with pytest.raises(UsageError, match="either a MODEL or --continue NEW_MODEL"):
        dispatch(["learn", "old", "--continue", "newer", "--data", "photos", "--out", "newest"])


@pytest.mark.parametrize("arguments", ["learn old --out new", "learn old --data d", "learn --data d --out new"])
def test_what_is_missing_is_a_usage_error(calls, arguments):
    with pytest.raises(UsageError, match="comastre learn --help"):
        dispatch(arguments.split())
    assert not calls
