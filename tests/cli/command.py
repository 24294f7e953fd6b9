"""Runs the command line inside a test."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from comastre.cli import main as cli


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> SimpleNamespace:
    """Exit code, output and complaints of `comastre ARGUMENTS`."""
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    said = capsys.readouterr()
    return SimpleNamespace(code=stop.value.code, out=said.out, err=said.err)
