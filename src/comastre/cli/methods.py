"""The verb `comastre methods`."""

from __future__ import annotations

from comastre.text import complain, say, table


def methods() -> int:
    """List the methods, of this package and of others installed beside it; each works as `train PRESET --method NAME`.

    The exit code is 1 when a package brings a method that cannot be used.
    """
    from comastre.config import methods as registry

    rows = [("METHOD", "TITLE", "LEARNS", "GIVES", "WHAT IT IS")]
    for spec in registry.methods().values():
        learns = ", ".join(name for name in registry.PROBLEMS if name in spec.problems)
        gives = ", ".join(name for name in registry.GIVES if name in spec.gives)
        rows.append((spec.name, spec.title, learns, gives, spec.about))
    say(table(rows, 0))
    say("\n`comastre train PRESET --method NAME --help` lists a method's own fields.")
    for sentence in registry.broken_methods():
        complain(f"the method {sentence}")
    return 1 if registry.broken_methods() else 0
