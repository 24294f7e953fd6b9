"""Weights & Biases and MLflow, by modules that stand in for them; and the real MLflow where it is installed."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from comastre.config.run import RunConfig
from comastre.config.settings import load_config
from comastre.errors import UserError
from comastre.training.checkpoint import Position
from comastre.training.loggers import open_loggers, refuse_missing
from comastre.training.metrics import MetricsLog


def config_with(*names: str) -> RunConfig:
    return load_config("shapes-6-2", {"training": {"loggers": list(names)}})


def stand_in(name: str, monkeypatch: pytest.MonkeyPatch, **members: Any) -> None:
    module = ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    for member, value in members.items():
        setattr(module, member, value)
    monkeypatch.setitem(sys.modules, name, module)


def logged(out: Path, config: RunConfig) -> None:
    with MetricsLog(out, Position(), 0, open_loggers(config, out)) as log:
        log.write(Position(0, 5), 5, {"total": 1.5, "mask_bce": math.nan})
        log.write_scores(9, {"all": 40.0, "inc": None})


def test_by_default_nothing_is_opened() -> None:
    config = load_config("shapes-6-2")
    assert config.training.loggers == ()
    assert open_loggers(config, Path("nowhere")) == []


def test_weights_and_biases_gets_values_and_a_restart_goes_on_with_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    told: list[Any] = []

    def init(**given: Any) -> Any:
        asked.append(given)
        return SimpleNamespace(log=lambda values, step: told.append((step, values)), finish=lambda: told.append("end"))

    stand_in("wandb", monkeypatch, init=init)
    logged(tmp_path, config_with("wandb"))
    assert told == [(5, {"train/total": 1.5}), (9, {"evaluation/all": 40.0}), "end"]
    logged(tmp_path, config_with("wandb"))
    first, second = asked
    assert first["id"] == second["id"]
    assert (first["project"], first["resume"], first["name"]) == ("comastre", "allow", tmp_path.name)
    assert first["config"]["training"]["loggers"] == ["wandb"]


def test_mlflow_gets_settings_once_and_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    stand_in(
        "mlflow",
        monkeypatch,
        set_experiment=lambda name: told.append(name),
        start_run=lambda run_id, run_name: told.append(run_id) or SimpleNamespace(info=SimpleNamespace(run_id="r1")),
        log_params=lambda fields: told.append(("settings", fields["continual.setting"])),
        log_metrics=lambda values, step: told.append((step, values)),
        end_run=lambda: told.append("end"),
    )
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    logged(tmp_path, config_with("mlflow"))
    values = [(5, {"train/total": 1.5}), (9, {"evaluation/all": 40.0}), "end"]
    assert told == ["mine", None, ("settings", "6-2"), *values]
    told.clear()
    logged(tmp_path, config_with("mlflow"))
    assert told == ["mine", "r1", *values]


def test_a_service_that_fails_costs_a_sentence_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(**given: Any) -> None:
        raise ConnectionError("no network")

    stand_in("wandb", monkeypatch, init=fails)
    logged(tmp_path, config_with("wandb"))
    said = capsys.readouterr().err
    assert said.count("wandb gets no more values of this run (ConnectionError: no network)") == 1
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 1


def test_a_logger_that_is_not_installed_or_not_known_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"training\.loggers names mlflow, which is not installed: pip install mlflow"):
        refuse_missing(config_with("mlflow"))
    with pytest.raises(UserError, match=r"training.loggers\[0\] is 'neptune'"):
        config_with("neptune")


def test_the_real_mlflow_keeps_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed, and not needed")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    logged(tmp_path, config_with("mlflow"))
    runs = mlflow.search_runs(experiment_names=["comastre"])
    assert runs["metrics.evaluation/all"].tolist() == [40.0]
