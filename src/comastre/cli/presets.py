"""The verb `comastre presets`."""

from __future__ import annotations

from comastre.text import say, table


def presets() -> int:
    """List the presets with what they are and what they need."""
    from comastre.config.settings import presets

    say(table([("PRESET", "NEEDS", "WHAT IT IS"), *((each.name, each.needs, each.about) for each in presets())], 0))
    return 0
