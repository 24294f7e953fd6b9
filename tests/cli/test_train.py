"""The verb `train`: its help lists the configuration, and the engine gets what was asked for."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from command import run


def test_train_help_lists_all_fields_with_defaults(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    done = run(capsys, "train", "--help")
    assert re.search(r"--training\.iterations +20000 +Iterations of the first step", done.out)
    assert re.search(r"--comastre\.classification\.loss +focal .*\(focal \| cross_entropy\)", done.out)
    assert "\ncomastre.class_decoder:\n" in done.out


def test_train_hands_the_resolved_configuration_to_the_engine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    engine = ModuleType("comastre.training.run")
    engine.run = lambda config, out, *, fresh, base: calls.append((config, out, fresh, base))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "comastre.training.run", engine)
    arguments = ("shapes-6-2", "--out", "a b", "--fresh", "--devices", "2", "--base", "other")
    done = run(capsys, "train", "--model.size=small", *arguments)
    assert done.code == 0, done.err
    ((config, out, fresh, base),) = calls
    assert (out, fresh, base) == (Path("a b"), True, Path("other"))
    assert config.backbone.name == "tf_efficientnet_lite0"
    assert config.training.devices == 2
    assert config.continual.setting == "6-2"
