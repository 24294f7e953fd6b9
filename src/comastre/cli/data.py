"""The verb `comastre data` and those below it."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from comastre.config.datasets import datasets, find_dataset, installed
from comastre.errors import UserError
from comastre.text import complain, say, table


def list_datasets() -> int:
    """List the datasets that this package and others installed beside it bring.

    The exit code is 1 when a package brings one that cannot be used.
    """
    known, problems = datasets(), installed().problems
    rows = [["NAME", "PACKAGE", "ABOUT"]]
    rows += [[spec.place, installed().packages[name], spec.about] for name, spec in known.items()]
    say(table(rows, indent=0))
    for sentence in problems.values():
        complain(f"the dataset {sentence}")
    return 1 if problems else 0


def data() -> int:
    """List datasets, download public ones (prepare), or read every file and say what is bad (check)."""
    rows = [(name, (inspect.getdoc(verb) or "").splitlines()[0]) for name, verb in DATA_VERBS.items()]
    say(f"usage: comastre data COMMAND [ARGUMENTS]\n\n{inspect.getdoc(data)}\n\ncommands:\n{table(rows)}")
    return 0


def prepare(
    dataset: tyro.conf.Positional[Literal["voc", "ade20k", "coco"]],
    /,
    root: Annotated[Path, tyro.conf.arg(metavar="DIR")],
    base_url: Annotated[str | None, tyro.conf.arg(metavar="URL")] = None,
    keep_archives: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> int:
    """Download a public dataset from its official place, check it, unpack it and convert what needs it.

    Started again it goes on where it stopped. The dataset's own terms of use apply.

    Args:
        dataset: voc (2012, with SBD: 3 GB), ade20k (scene parsing, 1 GB) or coco (2017, 20 GB).
        root: Folder for the data, which is then --data.root.
        base_url: A mirror that holds the same files.
        keep_archives: Keep the downloaded archives in DIR/downloads.
    """
    from comastre.data.download.prepare import prepare

    prepare(dataset, root, base_url, keep_archives)
    return 0


def check(
    source: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="DATASET_OR_PRESET")]],
    /,
    preview: Annotated[Path | None, tyro.conf.arg(metavar="PAGE")] = None,
    processes: Annotated[int | None, tyro.conf.arg(metavar="NUMBER")] = None,
    overrides: tyro.conf.Suppress[Mapping[str, Any] | None] = None,
) -> int:
    """Read every image and mask once, count the images of each class and step, and list every bad file.

    Fields of the configuration can be given, such as --continual.setting 15-1.
    The exit code is 1 when anything is bad.

    Args:
        source: A folder with images/, masks/ and classes.txt, an export of a labelling tool, NAME:FOLDER such as
            voc:FOLDER (see `comastre data list`), shapes, a preset, or a YAML file.
        preview: Write a page (.html) with samples, their labels drawn, and what each class has of images and pixels.
        processes: Reading processes; by default one per processor.
        overrides: Fields from the command line, already split off.
    """
    from comastre.config.settings import load_config, preset_names, validate
    from comastre.section import merge

    dataset, settings, found = source, overrides or {}, None
    if _names_a_place(source):
        from comastre.data.sources import parse_source

        found = parse_source(source)
        dataset, settings = found.dataset, merge({"data": found.settings()}, settings)
    if dataset in (*datasets(), *installed().problems):
        spec = find_dataset(dataset)
        if spec.preset is not None:
            config = load_config(spec.preset, settings)
        else:
            plain = {"data": {"dataset": dataset}, "continual": {"setting": "joint"}}
            config = validate(merge(plain, settings), source)
    elif Path(source).exists() or source in preset_names():
        config = load_config(source, overrides)
    else:
        near = difflib.get_close_matches(source, (*datasets(), *preset_names()), n=1)
        hint = f"did you mean {near[0]}?" if near else f"the datasets are {', '.join(datasets())}"
        raise UserError(f"{source} is neither a dataset nor a preset nor a file: {hint}")
    if processes is not None and processes < 1:
        raise UserError(f"--processes is {processes} but must be 1 or more")
    from comastre.stream.check import check_data, render

    if preview is not None:
        from comastre.report.write import refuse_foreign

        refuse_foreign(preview, "--preview")  # before a large dataset is read for it

    # Of a user's own data without a word on steps, nothing is asked but what `learn` asks; public data is complete.
    for_a_setting = found is None or "continual" in settings or find_dataset(found.dataset).has_validation is None
    report = check_data(config, processes, found, for_a_setting)
    say(render(report))
    if preview is not None:
        from comastre.report.data_page import write_page

        title = found.name if found is not None else source
        say(f"samples with their labels drawn: {write_page(report, preview, title)}")
    return 1 if report.problems else 0


def _names_a_place(source: str) -> bool:
    """Whether `source` is data on the disk, such as voc:FOLDER, rather than a preset or a YAML file."""
    described = source.lower().endswith((".json", ".xml")) or Path(source).name in ("data.yaml", "data.yml")
    return (":" in source and not Path(source).exists()) or described or Path(source).is_dir()


DATA_VERBS: dict[str, Callable[..., int]] = {"list": list_datasets, "prepare": prepare, "check": check}
