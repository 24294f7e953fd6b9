"""The verb `presets`."""

from __future__ import annotations

import re

import pytest
from command import run


def test_presets_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    done = run(capsys, "presets")
    assert done.code == 0
    assert re.search(r"^voc-15-5 +VOC 2012", done.out, flags=re.MULTILINE)
