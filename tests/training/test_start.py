"""Runs that begin after steps which a model has learned: of another run, or a model on its own."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_run import NUM_CLASSES, TINY, TinyData, tiny_config, tiny_load

from comastre.config.older import LOSS_SECTIONS
from comastre.config.run import RunConfig
from comastre.errors import UserError
from comastre.evaluation.results import Results
from comastre.section import merge
from comastre.stream.loading import training_batches
from comastre.stream.scenario import Scenario, build_scenario
from comastre.training.parts import Parts
from comastre.training.run import run
from comastre.training.start import Start, adopted_start

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


def test_how_later_steps_are_augmented_and_learned_does_not_matter(tmp_path: Path, base: Path):
    config = config_of(
        continual={"setting": "2-2"},
        data={"later_beside": 0.5, "later_scale": [0.9, 1.2]},
        backbone={"freeze_batch_norm": "none"},
        training={"iterations_per_class": 1, "log_every": 7},
        comastre={
            "optimiser": {"later_learning_rate": 0.04, "later_backbone_factor": 0.5},
            "weights": {"mask_kd": 2.0, "auxiliary": 1.0},
            "distillation": {"mask_loss": "divergence", "class_direction": "old_new", "beta": 1.0},
            "classification": {"cross_entropy": "all_classes", "across_tasks": True},
        },
    )
    assert len(run(config, tmp_path / "run", base=base, parts=LATER).steps) == 2


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"seed": 4}, "seed: 3 -> 4"),
        ({"backbone": {"weights": "hub"}}, "backbone.weights: none -> hub"),
        ({"comastre": {"pixel_decoder": {"layers": 2}}}, "comastre.pixel_decoder.layers: 1 -> 2"),
        ({"comastre": {"inference": {"alpha": 0.5}}}, "comastre.inference.alpha: 0.8 -> 0.5"),
        ({"data": {"crop": 64}}, "data.crop: 32 -> 64"),
        ({"backbone": {"freeze_batch_norm": "always"}}, "backbone.freeze_batch_norm: later -> always"),
        (
            {"comastre": {"classification": {"loss": "cross_entropy"}}},
            "comastre.classification.loss: focal -> cross_entropy",
        ),
        ({"comastre": {"classification": {"gamma": 1.0}}}, "comastre.classification.gamma: 2.0 -> 1.0"),
        ({"comastre": {"matching": {"objectness_cost": 1.0}}}, "comastre.matching.objectness_cost: 0.0 -> 1.0"),
        ({"comastre": {"weights": {"no_object": 0.2}}}, "comastre.weights.no_object: 0.1 -> 0.2"),
        ({"comastre": {"optimiser": {"learning_rate": 0.04}}}, "comastre.optimiser.learning_rate: 0.05 -> 0.04"),
        ({"training": {"iterations": 3}}, "training.iterations: 2 -> 3"),
        ({"training": {"precision": "bf16-mixed"}}, "training.precision: 32-true -> bf16-mixed"),
        ({"method": "objectness"}, "method: comastre -> objectness"),
    ],
)
def test_what_the_first_model_is_must_be_the_same(tmp_path: Path, base: Path, changes: dict[str, Any], sentence: str):
    config = config_of(**merge({"continual": {"setting": "2-2"}}, changes))
    with pytest.raises(UserError, match=f"its settings differ: {sentence}$"):
        run(config, tmp_path / "run", base=base, parts=LATER)
    assert not (tmp_path / "run").exists()


def test_an_older_run_can_be_the_base_of_a_new_one(tmp_path: Path, base: Path):
    """Its configuration has the older layout; the bundle and the results are as they were."""
    shutil.copytree(base, tmp_path / "base")
    settings = yaml.safe_load((base / "config.yaml").read_text())
    own = settings.pop("comastre")
    settings["training"] |= own.pop("optimiser")
    settings["training"]["freeze_batch_norm_later"] = settings["backbone"].pop("freeze_batch_norm") == "later"
    settings["backbone"] |= {"frozen_batch_norm": False}
    del settings["backbone"]["freeze_batch_norm_weights"]
    settings |= {name: own.pop(name) for name in LOSS_SECTIONS}
    settings["model"] = {"size": settings.pop("size"), "backbone": settings.pop("backbone"), **own}
    (tmp_path / "base" / "config.yaml").write_text(yaml.safe_dump(settings))
    results = run(config_of(continual={"setting": "2-1"}), tmp_path / "run", base=tmp_path / "base", parts=LATER)
    assert len(results.steps) == 3


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
    from comastre.training import session

    def die(*args: Any) -> None:
        raise KeyboardInterrupt

    config = config_of(continual={"setting": "2-1"})
    with monkeypatch.context() as patch:
        patch.setattr(session, "save", die)
        with pytest.raises(KeyboardInterrupt):
            run(config, tmp_path / "run", base=base, parts=LATER)
    assert len(run(config, tmp_path / "run", base=base, parts=LATER).steps) == 3


# --- a model on its own ----------------------------------------------------------------------------------------------


def start_of(base: Path) -> Start:
    results = Results.load(base / "results.json")
    return Start(base / "steps" / "00", replace(results, steps=results.steps[:1]))


def test_a_run_begins_after_the_steps_of_its_start(tmp_path: Path, base: Path):
    config = config_of(continual={"setting": "2-2"})
    results = run(config, tmp_path / "run", start=start_of(base), parts=LATER)
    assert [step.step for step in results.steps] == [0, 1]
    for name in ("00", "01"):  # it is then the run that the start was taken from
        weights = Path("steps") / name / "model.safetensors"
        assert (tmp_path / "run" / weights).read_bytes() == (base / weights).read_bytes()
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {line["step"] for line in lines} == {1}


def test_once_there_is_a_checkpoint_the_start_is_not_looked_at(tmp_path: Path, base: Path):
    shutil.copytree(base, tmp_path / "base")
    config, start = config_of(continual={"setting": "2-2"}), start_of(tmp_path / "base")

    def stop(*args: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "run", start=start, parts=replace(LATER, batches=stop))
    shutil.rmtree(tmp_path / "base")
    for given in (start, None):
        assert len(run(config, tmp_path / "run", start=given, parts=LATER).steps) == 2


def test_a_fresh_run_takes_its_start_again(tmp_path: Path, base: Path):
    config = config_of(continual={"setting": "2-2"})
    run(config, tmp_path / "run", start=start_of(base), parts=LATER)
    run(config, tmp_path / "run", start=start_of(base), parts=LATER, fresh=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run.old-1"]


def test_a_start_that_lies_in_the_run_already_is_left_where_it_is(tmp_path: Path, base: Path):
    out = tmp_path / "run"
    shutil.copytree(base / "steps" / "00", out / "steps" / "00")
    replace(start_of(base), bundle=out / "steps" / "00").adopt(out)
    start = adopted_start(out)
    assert start is not None and start.bundle == out / "steps" / "00"
    assert tiny_load(start.bundle).tasks == (2,)
    assert Results.load(out / "results.json").as_json() == start.results.as_json()
