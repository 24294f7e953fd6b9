"""The command `comastre`: one function per verb; a verb imports what is heavy itself, so that help is instant."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import io
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from comastre import __version__
from comastre.cli import data as data_commands
from comastre.cli import evaluate as eval_command
from comastre.cli import learn as learn_command
from comastre.cli import report as report_command
from comastre.config.overrides import UsageError, config_fields, split_overrides
from comastre.errors import UserError
from comastre.text import complain, say, table

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

Source = Annotated[str, tyro.conf.arg(metavar="PRESET_OR_YAML")]
Out = Annotated[Path, tyro.conf.arg(metavar="DIR")]
BaseRun = Annotated[Path | None, tyro.conf.arg(metavar="RUN")]
ModelName = Annotated[str, tyro.conf.arg(metavar="MODEL")]
Images = Annotated[list[str], tyro.conf.arg(metavar="IMAGES")]


def demo(
    out: Out = Path("comastre-demo"),
    seed: int = 0,
    paper: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    fresh: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> int:
    """Learn a stream of classes on built-in data, with no download, and show what was forgotten.

    Args:
        out: Folder for the runs; started again, an interrupted demo goes on.
        seed: Seed of weights, order and points.
        paper: Also run with the paper's own switches, to see what is the paper's and what is ours.
        fresh: Start over; what was there is kept aside.
    """
    from comastre.cli.demo import demo

    demo(out, {"seed": seed}, paper=paper, fresh=fresh)
    return DONE


def train(
    source: tyro.conf.Positional[Source],
    /,
    out: Out,
    fresh: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    base: BaseRun = None,
    overrides: tyro.conf.Suppress[Mapping[str, Any] | None] = None,
) -> int:
    """Run all steps of a stream; started again with the same --out it resumes where it stopped.

    Any field of the configuration can be given as --section.field value.

    Args:
        source: A preset (see `comastre presets`) or a YAML file.
        out: Run directory: configuration, checkpoints, results and a model per step.
        fresh: Start over instead of resuming; the old run is kept aside.
        base: Another run whose first step this one takes as its own, so that methods start from the same model.
        overrides: Fields from the command line, already split off.
    """
    from comastre.config.settings import load_config

    # Validated before torch is imported: a typing mistake is answered at once.
    config = load_config(source, overrides)
    from comastre.training.run import run

    run(config, out, fresh=fresh, base=base)
    from comastre.report.write import report_after_training

    report_after_training(out)
    return DONE


def pretrain(
    source: tyro.conf.Positional[Source],
    /,
    out: Out,
    fresh: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    overrides: tyro.conf.Suppress[Mapping[str, Any] | None] = None,
) -> int:
    """Train stage 1 alone, without classes, for `comastre train ... --init RUN` to start from.

    Any field of the configuration can be given as --section.field value. Started again with the same --out it resumes
    where it stopped.

    Args:
        source: coco-objectness (COCO without the VOC classes, paper Table 4), or a YAML file with method: objectness.
        out: Run directory: configuration, checkpoints, results and the model.
        fresh: Start over instead of resuming; the old run is kept aside.
        overrides: Fields from the command line, already split off.
    """
    from comastre.config.settings import load_config

    config = load_config(source, overrides)
    if config.method != "objectness":
        raise UserError(
            f"{source} has the method {config.method}, which trains both stages: use `comastre train`, or start from "
            "coco-objectness"
        )
    from comastre.training.run import run

    results = run(config, out, fresh=fresh)
    say(f"{results.steps[0].summary(results.convention)}; start from it with: comastre train voc-15-1 --init {out} ...")
    return DONE


def predict(
    model: tyro.conf.Positional[ModelName],
    images: tyro.conf.Positional[Images],
    /,
    out: Out,
    device: str = "cpu",
    batch_size: int = 8,
    max_side: Annotated[int | None, tyro.conf.arg(metavar="PIXELS")] = None,
    overwrite: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> int:
    """Segment images with a trained model: label maps, overlays with a legend, and lists of segments.

    What cannot be read is reported at the end and does not stop the rest; the exit code is then 1.

    Args:
        model: Folder of a model bundle, or its id on the hub.
        images: Image files, folders (with their sub-folders), or patterns in quotes such as "photos/**/*.jpg".
        out: Folder for the results, which mirror the folders of the images: NAME.labels.png, .overlay.jpg and
            .segments.json (class, score, area, box and COCO's run lengths).
        device: cpu, cuda or mps.
        batch_size: Images of one size that are segmented at once.
        max_side: Reduce larger images to this long side before the model sees them; results keep the image's size.
        overwrite: Replace results that are already there.
    """
    from comastre.prediction.run import predict_files, render

    outcome = predict_files(
        model, images, out, device=device, batch_size=batch_size, max_side=max_side, overwrite=overwrite
    )
    say(render(outcome, out))
    if not outcome.failed:
        return DONE
    for sentence in outcome.failed:
        complain(sentence)
    number = len(outcome.failed)
    complain(f"{number:,} {'image' if number == 1 else 'images'} could not be segmented")
    return FAILED


def data() -> int:
    """Download public datasets (prepare), or read every file of a dataset and say what is bad (check)."""
    rows = [(name, (inspect.getdoc(verb) or "").splitlines()[0]) for name, verb in DATA_VERBS.items()]
    say(f"usage: comastre data COMMAND [ARGUMENTS]\n\n{inspect.getdoc(data)}\n\ncommands:\n{table(rows)}")
    return DONE


def presets() -> int:
    """List the presets with what they are and what they need."""
    from comastre.config.settings import presets

    say(table([("PRESET", "NEEDS", "WHAT IT IS"), *((each.name, each.needs, each.about) for each in presets())], 0))
    return DONE


def doctor() -> int:
    """Say what this machine has, what is wrong and how to fix it."""
    from comastre.cli.doctor import diagnose, render

    checks = diagnose()
    say(render(checks))
    return FAILED if any(check.status == "fail" for check in checks) else DONE


VERBS: dict[str, Callable[..., int]] = {
    "demo": demo,
    "train": train,
    "pretrain": pretrain,
    "learn": learn_command.learn,
    "predict": predict,
    "eval": eval_command.evaluate,
    "data": data,
    "report": report_command.report,
    "presets": presets,
    "doctor": doctor,
}

DATA_VERBS: dict[str, Callable[..., int]] = {"prepare": data_commands.prepare, "check": data_commands.check}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with 0 (done), 1 (failed), 2 (usage) or 130 (interrupted)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    try:
        code = dispatch(given)
    except UserError as error:
        if debug:
            raise
        complain(str(error))
        # A usage error and an interrupted run carry their own code.
        code = getattr(error, "exit_code", FAILED)
    except KeyboardInterrupt:
        if debug:
            raise
        complain("interrupted")
        code = INTERRUPTED
    except BrokenPipeError:
        # The program that reads our output (`| head`) has ended; the interpreter must not flush into the closed pipe.
        sys.stdout = io.StringIO()
        code = DONE
    except Exception as error:
        if debug:
            raise
        complain(f"{type(error).__name__}: {error} (this should not happen; --debug shows where)")
        code = FAILED
    sys.exit(code)


def dispatch(arguments: Sequence[str]) -> int:
    """Find the verb, read its arguments and run it."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        say(overview())
        return DONE if arguments else USAGE
    if arguments[0] == "--version":
        say(f"comastre {__version__}")
        return DONE
    verb, *rest = arguments
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, n=1)
        raise UsageError(
            f"there is no command {verb!r}: " + (f"did you mean {near[0]}?" if near else f"choose {', '.join(VERBS)}")
        )
    readers = {"train": _read_train, "pretrain": _read_pretrain, "learn": _read_learn, "data": _read_data}
    call = readers[verb](rest) if verb in readers else _read(VERBS[verb], verb, rest)
    return call()


def overview() -> str:
    """The text of `comastre --help`."""
    rows = [(name, (inspect.getdoc(verb) or "").splitlines()[0]) for name, verb in VERBS.items()]
    options = [("--help", "Show this, or with a command its arguments."), ("--version", "Show the version.")]
    options.append(("--debug", "Show the traceback of an error."))
    return (
        "usage: comastre COMMAND [ARGUMENTS]\n\n"
        "Teach a segmentation model new classes without the old images and without forgetting the old classes.\n\n"
        f"commands:\n{table(rows)}\n\noptions:\n{table(options)}"
    )


def field_help() -> str:
    """All configuration fields with defaults and descriptions, grouped by section."""
    lines = ["fields (leading sections may be left out where that is unique; model defaults are those of size r101):"]
    fields = list(config_fields())
    for section in dict.fromkeys(each.section for each in fields):
        rows = [
            (f"--{each.name}", _shown(each.default), " ".join(filter(None, (each.description, each.choices))))
            for each in fields
            if each.section == section
        ]
        lines += ["", f"{section or 'run'}:", table(rows)]
    return "\n".join(lines)


def _shown(default: Any) -> str:
    return "-" if default is None else str(default).lower() if isinstance(default, bool) else str(default)


def _read_train(rest: Sequence[str]) -> Callable[[], int]:
    return _read_with_fields(train, rest, ("out", "fresh", "base"))


def _read_pretrain(rest: Sequence[str]) -> Callable[[], int]:
    return _read_with_fields(pretrain, rest, ("out", "fresh"))


def _read_with_fields(verb: Callable[..., int], rest: Sequence[str], options: Sequence[str]) -> Callable[[], int]:
    """The call of a verb whose fields are split off before tyro reads its own options."""
    name = verb.__name__
    if "--help" in rest or "-h" in rest:
        with contextlib.suppress(SystemExit):
            _read(verb, name, ["--help"])
        say(field_help())
        raise SystemExit(DONE)
    overrides, own = split_overrides(rest, options)
    return functools.partial(_read(verb, name, own), overrides=overrides)


def _read_learn(rest: Sequence[str]) -> Callable[[], int]:
    """The call of `learn`, which takes fields of the configuration, too."""
    if "--help" in rest or "-h" in rest:
        return _read(learn_command.learn, "learn", ["--help"])
    overrides, own = split_overrides(rest, learn_command.OPTIONS)
    return functools.partial(_read(learn_command.learn, "learn", own), overrides=overrides)


def _read_data(rest: Sequence[str]) -> Callable[[], int]:
    """The call of a verb below `data`; `check` takes fields of the configuration."""
    if not rest or rest[0] in ("-h", "--help", "help"):
        return data
    name, *own = rest
    if name not in DATA_VERBS:
        near = difflib.get_close_matches(name, DATA_VERBS, n=1)
        raise UsageError(
            f"there is no command 'data {name}': " + (f"did you mean {near[0]}?" if near else "choose prepare or check")
        )
    if name != "check" or "--help" in own or "-h" in own:
        return _read(DATA_VERBS[name], f"data {name}", own)
    overrides, own = split_overrides(own, ("processes",))
    return functools.partial(_read(DATA_VERBS[name], "data check", own), overrides=overrides)


def _read(verb: Callable[..., int], name: str, rest: Sequence[str]) -> Callable[..., int]:
    """The call that the arguments ask for, not yet made; tyro's framed complaint becomes one sentence."""

    @functools.wraps(verb)
    def call_later(*args: Any, **kwargs: Any) -> Any:
        return functools.partial(verb, *args, **kwargs)

    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return tyro.cli(call_later, args=list(rest), prog=f"comastre {name}")
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UsageError(f"{_unframed(complaint.getvalue())}; see `comastre {name} --help`") from None


def _unframed(text: str) -> str:
    """One line of what stands in tyro's frame (drawn with lines or, without UTF-8, with dashes)."""
    title, *lines = (line.strip("│ ") for line in text.splitlines())
    said = itertools.takewhile(lambda line: not line.startswith("For full helptext"), lines)
    return " ".join(line for line in said if line.strip("─-╰╯ ")).rstrip(".") or title
