"""The main job on embedded data, with no download."""

from __future__ import annotations

from comastre.console import say


def demo() -> None:
    """Learn a stream of classes on the built-in Shapes data and show what was forgotten."""
    say("The demo is not in this version yet: `comastre presets` lists what can be trained.")
