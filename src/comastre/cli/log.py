"""The verb `comastre log`."""

from __future__ import annotations

from typing import Annotated

import tyro

from comastre.text import say, shortened, table


def log(model: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="MODEL")]], /) -> int:
    """Show how a model came to be: its lessons with dates, data, scores and what the gate said.

    Args:
        model: Folder of a model bundle, or its id on the hub.
    """
    from comastre.bundle import store
    from comastre.bundle.history import digest
    from comastre.bundle.hub import locate
    from comastre.config.methods import title_of

    folder = locate(model)
    bundle = store.load(folder)
    what = bundle.description
    say(f"{model}: {title_of(what.method)}, size {what.size}, {len(bundle.classes.names)} classes")
    say(f"sha256 {digest(folder)}")
    if not bundle.classes.lineage:
        say("how it learned them is not recorded")
    for number, step in enumerate(bundle.classes.lineage, start=1):
        scores = [f"{name} {value:.1f}" for name, value in step.scores.items() if value is not None]
        rows = [
            (f"lesson {number}", f"{step.date}, {step.status}"),
            ("  learned", shortened(step.new_classes, 30) if step.new_classes else "nothing new: known classes again"),
            ("  from", step.data),
        ]
        rows += [("  scores", shortened(scores, 30))] if scores else []
        rows += [("  kept", step.note)] if step.note else []
        rows += [("  began with", f"sha256 {step.parent}")] if step.parent else []
        say("")
        say(table(rows, indent=0))
    return 0
