"""The verb `comastre methods`."""

from __future__ import annotations

from comastre.text import complain, say, table


def methods() -> int:
    """List the methods, of this package and of others installed beside it; each works as `train PRESET --method NAME`.

    The exit code is 1 when a package brings a method that cannot be used.
    """
    from comastre.config import methods as registry

    known, problems = registry.methods(), registry.installed().problems
    rows = [("METHOD", "PACKAGE", "TITLE", "LEARNS", "GIVES", "WHAT IT IS")]
    for spec in known.values():
        learns = ", ".join(name for name in registry.PROBLEMS if name in spec.problems)
        gives = ", ".join(name for name in registry.GIVES if name in spec.gives)
        rows.append((spec.name, registry.installed().packages[spec.name], spec.title, learns, gives, spec.about))
    say(table(rows, 0))
    say("\n`comastre train PRESET --method NAME --help` lists a method's own fields.")
    for sentence in problems.values():
        complain(f"the method {sentence}")
    return 1 if problems else 0
