"""Values of a run for Weights & Biases or MLflow, where the user names them; by default nothing is sent anywhere."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module, util
from pathlib import Path
from typing import Any, Protocol

from comastre.config.run import RunConfig
from comastre.config.settings import flatten
from comastre.documents import json_bytes, read_json
from comastre.errors import UserError
from comastre.files import write_whole
from comastre.text import complain

PROJECT = "comastre"
"""Where the service's own variables name no project or experiment."""
_KNOWN_AS = ".loggers.json"
"""In a run directory: what the services call the run, so that a restart goes on with it."""
_LONGEST = 500
"""Characters of a value that MLflow takes."""


class Logger(Protocol):
    """Something that is told the values of a run."""

    def log(self, values: Mapping[str, float], overall: int) -> None:
        """Values after so many iterations of the whole run."""

    def close(self) -> None:
        """Nothing more comes in this start."""


def refuse_missing(config: RunConfig) -> None:
    """Say which logger is not installed, before anything is trained."""
    for name in config.training.loggers:
        if util.find_spec(name) is None:
            raise UserError(f"training.loggers names {name}, which is not installed: pip install {name}")


def open_loggers(config: RunConfig, out: Path) -> list[Logger]:
    """The loggers that a run names; one that cannot be reached costs a sentence, not the run."""
    known = _known_as(out)
    before = dict(known)
    opened: list[Logger] = [_Careful(name, config, out, known) for name in config.training.loggers]
    if known != before:
        write_whole(out / _KNOWN_AS, json_bytes(known))
    return opened


class _Careful:
    """A logger whose troubles, whatever a library raises, end it and not the training."""

    def __init__(self, name: str, config: RunConfig, out: Path, known: dict[str, str]) -> None:
        self._name = name
        self._inner: Logger | None = None
        try:
            self._inner = _OPENERS[name](config, out, known)
        except Exception as error:
            self._end(error)

    def log(self, values: Mapping[str, float], overall: int) -> None:
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        try:
            if self._inner is not None:
                self._inner.log(finite, overall)
        except Exception as error:
            self._end(error)

    def close(self) -> None:
        try:
            if self._inner is not None:
                self._inner.close()
        except Exception as error:
            self._end(error)

    def _end(self, error: Exception) -> None:
        self._inner = None
        complain(f"{self._name} gets no more values of this run ({type(error).__name__}: {error})")


class _WeightsAndBiases:
    def __init__(self, config: RunConfig, out: Path, known: dict[str, str]) -> None:
        library = import_module("wandb")
        self._run = library.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=out.resolve().name,
            id=known.setdefault("wandb", secrets.token_hex(8)),
            resume="allow",
            dir=str(out),
            config=config.model_dump(mode="json"),
        )

    def log(self, values: Mapping[str, float], overall: int) -> None:
        self._run.log(dict(values), step=overall)

    def close(self) -> None:
        self._run.finish()


class _Mlflow:
    def __init__(self, config: RunConfig, out: Path, known: dict[str, str]) -> None:
        self._library: Any = import_module("mlflow")
        self._library.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
        run = self._library.start_run(run_id=known.get("mlflow"), run_name=out.resolve().name)
        if "mlflow" not in known:
            fields = flatten(config.model_dump(mode="json"))
            self._library.log_params({name: str(value)[:_LONGEST] for name, value in fields.items()})
        known["mlflow"] = str(run.info.run_id)

    def log(self, values: Mapping[str, float], overall: int) -> None:
        self._library.log_metrics(dict(values), step=overall)

    def close(self) -> None:
        self._library.end_run()


_OPENERS: Mapping[str, Callable[[RunConfig, Path, dict[str, str]], Logger]] = {
    "wandb": _WeightsAndBiases,
    "mlflow": _Mlflow,
}


def log_all(loggers: Sequence[Logger], values: Mapping[str, float], overall: int) -> None:
    """Tell every logger."""
    for logger in loggers:
        logger.log(values, overall)


def _known_as(out: Path) -> dict[str, str]:
    try:
        content = read_json(out / _KNOWN_AS)
    except (OSError, ValueError):
        return {}
    return {str(name): str(value) for name, value in content.items()} if isinstance(content, dict) else {}
