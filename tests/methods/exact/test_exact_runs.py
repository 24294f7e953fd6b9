"""The exact method in whole runs: from a first step of CoMasTRe's, over a kill, and in lessons."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import comastre
from comastre.bundle import store
from comastre.bundle.statistics import write_statistics
from comastre.config.settings import load_config
from comastre.errors import UserError
from comastre.evaluation.results import Results
from comastre.methods.build import build_method
from comastre.methods.exact.method import ExactMethod
from comastre.methods.exact.model import ExactSegmenter
from comastre.stream.scenario import Task
from comastre.training.run import run

sys.path.append(str(Path(__file__).parents[2] / "learning"))
import small_lesson as small

QUICK: dict[str, Any] = {
    "comastre": {
        "mask_decoder": {"layers": 1, "num_queries": 6},
        "matching": {"points": 32},
        "masks": {"points": 32},
        "inference": {"alpha": 0.1},
    },
    "data": {"train_images": 40, "val_images": 4},
    "training": {"iterations": 2, "batch_size": 2},
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of CoMasTRe's whose first step is done, and which was then given up."""
    folder = tmp_path_factory.mktemp("base") / "run"
    changes = {**QUICK, "training": {**QUICK["training"], "iterations_per_class": 1}}
    run(load_config("shapes-6-2", changes), folder)
    return folder


@pytest.fixture(scope="module")
def exact(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Results]:
    folder = tmp_path_factory.mktemp("exact") / "run"
    config = load_config("shapes-6-2", {"method": "comastre-exact", **QUICK})
    return folder, run(config, folder, base=base)


def test_a_run_takes_over_a_first_step_of_comastre(base: Path, exact: tuple[Path, Results]) -> None:
    folder, results = exact
    assert [len(step.new_classes) for step in results.steps] == [6, 2, 2]
    assert results.method == "comastre-exact" and all(step.seconds > 0 for step in results.steps)
    first, last = store.load(base / "steps/00"), store.load(folder / "steps/02")
    assert last.description.method == "comastre-exact" and last.model.tasks == (6, 2, 2)
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(last.model.state_dict()[name], tensor), name
    assert last.model.discriminant.known.all()
    last.model.refuse_changed(10)


def test_a_killed_run_ends_with_the_same_bits(
    base: Path, exact: tuple[Path, Results], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config("shapes-6-2", {"method": "comastre-exact", **QUICK})
    gather = ExactMethod.gather

    def dying(self: ExactMethod, model: Any, images: Any) -> None:
        gather(self, model, images)
        if self.task is not None and self.task.step == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ExactMethod, "gather", dying)
        run(config, tmp_path / "run", base=base)
    again = run(config, tmp_path / "run")
    folder, results = exact
    assert again.steps[-1].per_class == results.steps[-1].per_class
    models = [store.load(each / "steps/02").model.state_dict() for each in (folder, tmp_path / "run")]
    assert all(torch.equal(models[1][name], tensor) for name, tensor in models[0].items())


def test_its_own_first_step_ends_with_statistics(tmp_path: Path) -> None:
    config = load_config("shapes-6-2", {"method": "comastre-exact", "continual": {"setting": "6-4"}, **QUICK})
    run(config, tmp_path / "run")
    first, last = (store.load(tmp_path / "run/steps" / step).model for step in ("00", "01"))
    assert isinstance(first, ExactSegmenter) and first.discriminant.known.all()
    assert torch.equal(last.discriminant.means[:7], first.discriminant.means)


@pytest.fixture(scope="module")
def emblems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A class that no model of the stream knows by this name."""
    folder = tmp_path_factory.mktemp("emblems") / "data"
    return small.write_folder(folder, small.samples_with(("heart",), 6), ("heart",), ("emblem",))


def test_a_lesson_is_one_look_at_each_image(exact: tuple[Path, Results], emblems: Path, tmp_path: Path) -> None:
    model = exact[0] / "steps/01"
    names, said = store.load(model).classes.names, list[str]()
    learned = comastre.learn(model, emblems, out=tmp_path / "new", say=said.append)
    assert any("none: one look at each of" in line for line in said)
    assert learned.model.class_names == ("background", *names, "emblem")
    before, after = store.load(model).model.state_dict(), store.load(tmp_path / "new").model.state_dict()
    for name, tensor in before.items():
        assert name == "seal" or torch.equal(after[name][: len(tensor)] if tensor.dim() else after[name], tensor), name
    with pytest.raises(UserError, match="--minutes says how long to train, but comastre-exact looks once"):
        comastre.learn(model, emblems, out=tmp_path / "other", minutes=1)


def test_a_model_of_comastre_can_be_taught_exactly(
    base: Path, emblems: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Two trained steps; a model of before kept no statistics.
    model = shutil.copytree(base / "steps/01", tmp_path / "old", ignore=shutil.ignore_patterns("statistics.*"))
    learned = comastre.learn(model, emblems, out=tmp_path / "new", settings={"method": "comastre-exact"})
    assert learned.model.bundle.description.method == "comastre-exact"
    assert learned.model.classes.tasks == (6, 2, 1)
    assert "the model had kept no statistics" in capsys.readouterr().err
    grown = store.load(tmp_path / "new").model
    for name, tensor in store.load(model).model.state_dict().items():
        assert torch.equal(grown.state_dict()[name], tensor), name
    assert "the model had kept no statistics" not in _said_with_statistics(base, emblems, tmp_path, capsys)
    kept = store.load(base / "steps/01").model.statistics
    found = store.load(tmp_path / "with").model.discriminant
    assert torch.equal(found.means[:9], kept.means) and torch.equal(found.counts[:9], kept.counts)
    assert found.known.tolist() == [*(kept.counts[1:] > 0).tolist(), True]
    with pytest.raises(UserError, match="cannot be set for a lesson"):
        comastre.learn(tmp_path / "new", emblems, out=tmp_path / "other", settings={"method": "comastre"})


def _said_with_statistics(base: Path, data: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    comastre.learn(base / "steps/01", data, out=folder / "with", settings={"method": "comastre-exact"})
    return capsys.readouterr().err


def test_a_run_of_comastre_keeps_statistics_and_gives_them_back(
    base: Path, exact: tuple[Path, Results], tmp_path: Path
) -> None:
    first, second = (store.load(base / "steps" / step).model for step in ("00", "01"))
    assert first.statistics.counts[1:].all() and first.statistics.means.shape[0] == 7
    # A later step adds rows and leaves the others alone.
    assert torch.equal(second.statistics.means[:7], first.statistics.means) and second.statistics.counts[7:].all()
    assert torch.equal(second.statistics.covariance, first.statistics.covariance)
    # All 40 images are few, so that the exact method's look at every one of them finds the same.
    taken = store.load(exact[0] / "steps/01").model.discriminant
    torch.testing.assert_close(taken.means[:7], first.statistics.means)
    assert torch.equal(taken.counts[:7], first.statistics.counts)
    # What has grown since they were gathered has none.
    bundle = store.load(base / "steps/00")
    method = build_method("finetune", bundle.description.setup)
    grown = method.begin(Task(1, (7,), (1, 2, 3, 4, 5, 6), (), ()), bundle.model)
    assert grown.statistics is not None
    write_statistics(grown, tmp_path)
    assert not list(tmp_path.iterdir())
    method.gather(grown, lambda: iter(()))
    assert grown.statistics is None and not [name for name in method.state() if "statistics" in name]
    broken = shutil.copytree(base / "steps/00", tmp_path / "broken")
    content = bytearray((broken / "statistics.safetensors").read_bytes())
    content[-1] ^= 1
    (broken / "statistics.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"statistics\.safetensors is damaged \(its checksum does not fit"):
        store.load(broken)
    shutil.copy(base / "steps/01/statistics.safetensors", broken)
    with pytest.raises(UserError, match="it is of another model"):
        store.load(broken)
