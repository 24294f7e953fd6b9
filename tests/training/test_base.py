"""Which runs may share a first step: those whose first step is the same, whatever the setting is called."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_run import NUM_CLASSES, TINY, TinyData, tiny_config

from comastre.config.run import RunConfig
from comastre.errors import UserError
from comastre.section import merge
from comastre.stream.loading import training_batches
from comastre.stream.scenario import Scenario, build_scenario
from comastre.training.parts import Parts
from comastre.training.run import run

SHORT: dict[str, Any] = {"training": {"iterations": 2, "iterations_per_class": 2}}


def config_of(**changes: Any) -> RunConfig:
    return RunConfig.model_validate(merge(merge(tiny_config().model_dump(), SHORT), changes))


class PairedData(TinyData):
    """As if every fourth image also showed class d: the protocols then differ in the images of the first step."""

    def presence(self) -> list[frozenset[int]]:
        return [classes | {4} if index % 8 == 0 else classes for index, classes in enumerate(super().presence())]


def paired_data(config: RunConfig) -> tuple[TinyData, TinyData]:
    return PairedData(16, seed=0), PairedData(4, seed=1)


def scenario(config: RunConfig, training_set: TinyData) -> Scenario:
    continual = config.continual
    return build_scenario(
        training_set.presence(), NUM_CLASSES, continual.setting, continual.protocol, continual.class_order
    )


def later_batches(data: Any, task: Any, *rest: Any) -> Iterator[Any]:
    assert task.step > 0, "the first step was trained again"
    return training_batches(data, task, *rest)


PARTS: Parts = replace(TINY, data=paired_data, scenario=scenario)
LATER: Parts = replace(PARTS, batches=later_batches)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2 base classes, then 2: what 15-5 is to VOC."""
    out = tmp_path_factory.mktemp("base") / "run"
    run(config_of(continual={"setting": "2-2"}), out, parts=PARTS)
    return out


def test_settings_with_the_same_first_step_share_it(tmp_path: Path, base: Path):
    results = run(config_of(continual={"setting": "2-1"}), tmp_path / "run", base=base, parts=LATER)
    assert [step.new_classes for step in results.steps] == [("a", "b"), ("c",), ("d",)]
    document = json.loads((tmp_path / "run" / "results.json").read_text())
    assert (document["setting"], document["class_order"]) == ("2-1", ["a", "b", "c", "d"])
    theirs = json.loads((base / "results.json").read_text())
    assert theirs["setting"] == "2-2"
    assert document["steps"][0] == theirs["steps"][0]


def test_the_order_of_later_classes_does_not_matter(tmp_path: Path, base: Path):
    config = config_of(continual={"setting": "2-1", "class_order": (1, 2, 4, 3)})
    results = run(config, tmp_path / "run", base=base, parts=LATER)
    assert results.class_order == ("a", "b", "d", "c")


def test_how_later_steps_are_augmented_does_not_matter(tmp_path: Path, base: Path):
    config = config_of(continual={"setting": "2-2"}, data={"later_beside": 0.5, "later_scale": [0.9, 1.2]})
    assert len(run(config, tmp_path / "run", base=base, parts=LATER).steps) == 2


def test_the_headline_follows_the_new_runs_convention(tmp_path: Path, base: Path):
    config = config_of(continual={"setting": "2-2"}, evaluation={"convention": "no_background", "batch_size": 2})
    run(config, tmp_path / "run", base=base, parts=LATER)
    document = json.loads((tmp_path / "run" / "results.json").read_text())
    theirs = json.loads((base / "results.json").read_text())
    assert document["steps"][0]["miou"] == theirs["conventions"]["no_background"]["steps"][0]


@pytest.mark.parametrize(
    ("continual", "sentence"),
    [
        ({"setting": "3-1"}, r"learns 2 classes first \(setting 2-2\), but setting 3-1 begins with 3"),
        ({"class_order": (2, 1, 3, 4)}, "its class 1 is a, not b: the class orders differ"),
        # Images 0 and 8 show the future class d, too.
        ({"protocol": "disjoint"}, r"sees 8 images \(overlapped\), not 6 images \(disjoint\)"),
    ],
)
def test_another_first_step_is_refused_and_nothing_written(
    tmp_path: Path, base: Path, continual: dict[str, Any], sentence: str
):
    config = config_of(continual={"setting": "2-2"} | continual)
    with pytest.raises(UserError, match=sentence):
        run(config, tmp_path / "run", base=base, parts=LATER)
    assert not (tmp_path / "run").exists()


def test_disjoint_runs_share_among_themselves_and_with_sequential_ones(tmp_path: Path):
    # All classes beyond the base are future ones in both settings, and without past classes nothing else differs.
    run(config_of(continual={"setting": "2-2", "protocol": "disjoint"}), tmp_path / "base", parts=PARTS)
    for protocol in ("disjoint", "sequential"):
        config = config_of(continual={"setting": "2-1", "protocol": protocol})
        results = run(config, tmp_path / protocol, base=tmp_path / "base", parts=LATER)
        assert results.protocol == protocol


def test_a_base_of_other_data_is_refused(tmp_path: Path, base: Path):
    def grown(config: RunConfig) -> tuple[TinyData, TinyData]:
        return PairedData(24, seed=0), PairedData(4, seed=1)

    with pytest.raises(UserError, match="it was trained on 8 images of other data"):
        run(config_of(continual={"setting": "2-2"}), tmp_path / "run", base=base, parts=replace(LATER, data=grown))


def test_killed_while_adopting_it_adopts_again(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch):
    from comastre.training import base as module

    def die(*args: Any) -> None:
        raise KeyboardInterrupt

    config = config_of(continual={"setting": "2-1"})
    with monkeypatch.context() as patch:
        patch.setattr(module, "save", die)
        with pytest.raises(KeyboardInterrupt):
            run(config, tmp_path / "run", base=base, parts=LATER)
    assert len(run(config, tmp_path / "run", base=base, parts=LATER).steps) == 3
