"""The verb `comastre learn`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import tyro

from comastre.cli import STARTED
from comastre.config.overrides import UsageError
from comastre.text import say

Data = Annotated[str, tyro.conf.arg(metavar="DATA")]
OtherData = Annotated[str | None, tyro.conf.arg(metavar="DATA")]
Names = tyro.conf.UseAppendAction[Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")]]
Pairs = tyro.conf.UseAppendAction[Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=OLD")]]


def learn(
    model: tyro.conf.Positional[Annotated[str | None, tyro.conf.arg(metavar="MODEL")]] = None,
    /,
    *,
    data: Data,
    out: Annotated[Path, tyro.conf.arg(metavar="NEW_MODEL")],
    val: OtherData = None,
    old_val: OtherData = None,
    unlabelled: Annotated[str | None, tyro.conf.arg(metavar="FOLDER")] = None,
    keep: Annotated[str | None, tyro.conf.arg(metavar="PERCENT")] = None,
    minutes: Annotated[float | None, tyro.conf.arg(metavar="MINUTES")] = None,
    iterations: Annotated[int | None, tyro.conf.arg(metavar="NUMBER")] = None,
    instant: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    no_instant: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    guarantee: Annotated[str | None, tyro.conf.arg(metavar="exact")] = None,
    same_class: Pairs = (),
    new_class: Names = (),
    only: Names = (),
    continue_: Annotated[str | None, tyro.conf.arg(name="continue", metavar="NEW_MODEL")] = None,
    parent: Annotated[str | None, tyro.conf.arg(metavar="MODEL")] = None,
    fresh: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    overrides: tyro.conf.Suppress[Mapping[str, Any] | None] = None,
) -> int:
    """Teach a model the new classes of your own data, without its old images and without forgetting its old classes.

    A model of CoMasTRe's first learns by one look at each image, in seconds; then it is trained, and the better of the
    two is handed over. Where the data labels only what the model knows, it practises that.

    It ends with every class before and after, and a verdict. Exit codes: 0 learned, 1 nothing was learned, 3 too much
    was forgotten (the model is then written aside, to NEW_MODEL-refused).

    Interrupted, the same command goes on. Any field of the configuration can be given as --section.field value
    (`comastre train --help` lists them).

    Args:
        model: Folder of a model bundle, its id on the hub, or new:small to start from nothing (new:tiny, new:r50);
            with new:... --backbone.weights says where its backbone starts: a file, hub, or none (random).
        data: Images labelled for the new classes: a folder with images/, masks/ and classes.txt, or what COCO, YOLO,
            Label Studio, CVAT or Pascal VOC's tools write (docs/my-own-data.md).
        out: Folder for the new model, which must not exist yet; the old model is never touched.
        val: Data to score on; without it a part of the data is held out.
        old_val: Data labelled for old classes, on which forgetting is measured.
        unlabelled: Any images, on which the new model is compared with the old one; best such as show old classes.
        keep: How much of the old classes must be kept, such as 95%; 0 switches the gate off. By default 90% of their
            scores on --old-val; without it 60% of the pixels that the old model gives to them.
        minutes: Take at most so long, scoring included; by default as long as this much data takes.
        iterations: Train exactly so long.
        instant: Stop after one look at each image, which takes seconds and trains nothing.
        no_instant: Train at once, without that look before, and hand over what was trained.
        guarantee: exact: stop after that look, too, and show by comparing both models that no old score has moved.
            --own_queries.number K trains K queries beside what stands still.
        same_class: A class of the data that is an old class by another name, such as Dog=dog; may be repeated.
        new_class: A class of the data that is new although it looks like another; may be repeated.
        only: Learn only this new class of the data, others count as unlabelled; may be repeated.
        continue_: In place of MODEL: what a lesson gave, to go on with that lesson, for longer or with more images.
        parent: With --continue: the model before that lesson, where it is not beside it.
        fresh: Start over instead of going on; what was there is kept aside.
        overrides: Fields from the command line, already split off.
    """
    if (model is None) == (continue_ is None):
        raise UsageError("learn takes either a MODEL or --continue NEW_MODEL; see `comastre learn --help`")
    if instant and no_instant:
        raise UsageError("--instant and --no-instant contradict each other: give one of them")
    from comastre.learning.learn import learn

    learned = learn(
        model or continue_ or "",
        data,
        out=out,
        val=val,
        old_val=old_val,
        unlabelled=unlabelled,
        keep=keep,
        minutes=minutes,
        iterations=iterations,
        instant=True if instant else False if no_instant else None,
        guarantee=guarantee,
        same_class=same_class,
        new_class=new_class,
        only=only,
        continued=continue_ is not None,
        parent=parent,
        fresh=fresh,
        settings=overrides,
        began=STARTED,
    )
    from comastre.report.lesson_write import page_after

    page = page_after(learned)
    if page is not None:
        say(f"what changed, to look at: {page}")
    return learned.exit_code
