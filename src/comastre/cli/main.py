"""The command `comastre`: finds the verb, reads its arguments, and turns errors into one line and an exit code.

Every verb has a file of its own beside this one and imports what is heavy itself, so that help is instant.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import functools
import inspect
import io
import itertools
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tyro

from comastre import __version__
from comastre.cli.compare import compare
from comastre.cli.completion import completion
from comastre.cli.convert import convert
from comastre.cli.data import DATA_VERBS, data
from comastre.cli.demo import demo
from comastre.cli.diff import diff
from comastre.cli.doctor import doctor
from comastre.cli.evaluate import evaluate
from comastre.cli.export import export
from comastre.cli.import_model import import_model
from comastre.cli.learn import learn
from comastre.cli.log import log
from comastre.cli.methods import methods
from comastre.cli.predict import predict
from comastre.cli.presets import presets
from comastre.cli.pretrain import pretrain
from comastre.cli.report import report
from comastre.cli.train import train
from comastre.cli.undo import undo
from comastre.cli.verb_help import on_this_screen, readable
from comastre.config.methods import DEFAULT, find
from comastre.config.overrides import UsageError, config_fields, named_method, split_overrides
from comastre.config.settings import read_settings
from comastre.documents import read_json
from comastre.errors import UserError
from comastre.noise import silence_libraries
from comastre.paths import shown
from comastre.text import complain, say, table

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
HELP = ("-h", "--help")

VERBS: dict[str, Callable[..., int]] = {
    "demo": demo,
    "train": train,
    "pretrain": pretrain,
    "compare": compare,
    "learn": learn,
    "predict": predict,
    "eval": evaluate,
    "import-model": import_model,
    "convert": convert,
    "export": export,
    "log": log,
    "diff": diff,
    "undo": undo,
    "data": data,
    "report": report,
    "presets": presets,
    "methods": methods,
    "doctor": doctor,
    "completion": completion,
}
# Others that take fields of the configuration refer to the list of `comastre train --help`.
LIST_FIELDS = ("train", "pretrain")
# These get a model where the others get settings.
TAKE_MODELS = ("learn", "predict")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with 0 (done), 1 (failed), 2 (usage), 3 (refused by the gate of `learn`) or 130."""
    _open_streams()
    if arguments is None:  # a command, not a call from Python
        silence_libraries()
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    try:
        _refuse_lost_folder()
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
        if isinstance(error, OSError) and error.errno in _UNWRITABLE and error.filename is None:
            # Errors of a file name it or are sentences already: this is the output of the program itself.
            complain(
                f"the output of this command cannot be written ({error.strerror}): send it elsewhere and try again"
            )
            sys.stdout = io.StringIO()
        else:
            complain(_unforeseen(error))
        code = FAILED
    sys.exit(code)


def _unforeseen(error: Exception) -> str:
    """What the disk refused is no fault of the program, and named; everything else is."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        what = shown(str(error.filename))
        return f"{what} cannot be used ({error.strerror}): check the name, your permissions and the space on the disk"
    return f"{type(error).__name__}: {error} (this should not happen; --debug shows where)"


_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def _open_streams() -> None:
    """Standard streams that can be written to, whatever letters they have: that must not end a run."""
    if os.name == "posix":
        for number in (0, 1, 2):
            try:
                os.fstat(number)
            except OSError:
                # Closed by the caller; the next file to be opened would get its number, and prints would end up in it.
                os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, io.StringIO())
    for stream in (sys.stdout, sys.stderr):
        # A Windows console or pipe may lack a letter of a class's name.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _refuse_lost_folder() -> None:
    try:
        Path.cwd()
    except OSError:
        raise UserError(
            "the folder that this command was started in is no longer there: change to another one (cd ~) and try again"
        ) from None


def dispatch(arguments: Sequence[str]) -> int:
    """Find the verb, read its arguments and run it."""
    if not arguments or arguments[0] in (*HELP, "help"):
        say(overview())
        return DONE if arguments else USAGE
    if arguments[0] == "--version":
        say(f"comastre {__version__}")
        return DONE
    name, *rest = arguments
    verb = _find(name, VERBS)
    if name == "data":
        if not rest or rest[0] in (*HELP, "help"):
            return verb()
        name, *rest = rest
        verb = _find(name, DATA_VERBS, "data ")
        name = f"data {name}"
    return _read(verb, name, rest)()


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


def field_help(method: str) -> str:
    """All configuration fields of a method with defaults and descriptions, grouped by section."""
    lines = [
        f"fields of the method {method} (leading sections may be left out where that is unique; defaults are those of "
        "size r101):"
    ]
    fields = list(config_fields(method))
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


def _find(name: str, verbs: Mapping[str, Callable[..., int]], before: str = "") -> Callable[..., int]:
    """The verb of this name; `before` is what stands before it on the command line."""
    if name not in verbs:
        near = difflib.get_close_matches(name, verbs, n=1)
        *others, last = verbs
        hint = f"did you mean {near[0]}?" if near else f"choose {', '.join(others)} or {last}"
        raise UsageError(f"there is no command {before + name!r}: {hint}")
    return verbs[name]


def _read(verb: Callable[..., int], name: str, rest: Sequence[str]) -> Callable[[], int]:
    """The call that the arguments ask for, not yet made.

    A verb with a parameter `overrides` takes fields of the configuration, which are split off before tyro reads the
    verb's own options.
    """
    parameters = inspect.signature(verb).parameters
    if "overrides" not in parameters:
        return _parse(verb, name, rest)
    if any(argument in HELP for argument in rest):
        with contextlib.suppress(SystemExit):
            _parse(verb, name, ["--help"])
        if name in LIST_FIELDS:
            say(field_help(named_method(rest) or _meant_method(name, rest) or DEFAULT))
        raise SystemExit(DONE)
    options = [parameter.rstrip("_").replace("_", "-") for parameter in parameters]
    part = "inference" if name == "predict" else ""
    overrides, own = split_overrides(rest, options, _meant_method(name, rest), part)
    return functools.partial(_parse(verb, name, own), overrides=overrides)


def _meant_method(name: str, rest: Sequence[str]) -> str | None:
    """The method that a preset, a YAML file or, where a model is given, a model names; None where it can't be told."""
    source = next((argument for argument in rest if not argument.startswith("-")), None)
    if source is None:
        return None
    # What is wrong with a source is told by whoever reads it to use it.
    with contextlib.suppress(UserError, OSError, ValueError):
        if name == "compare":
            named = re.search(r"--methods[= ]([^, ]+)", " ".join(rest))
            return find(named[1]).name if named else None
        if name in TAKE_MODELS:
            described = read_json(Path(source).joinpath("config.json"))
            if not isinstance(described, dict) or "method" not in described:
                return None
            spec = find(described["method"])
            at_once = any(argument.partition("=")[0] in ("--instant", "--guarantee") for argument in rest)
            return (spec.taught_at_once_by if at_once else None) or spec.learns_on_as or spec.name
        return str(read_settings(source)["method"])
    return None


def _parse(verb: Callable[..., int], name: str, rest: Sequence[str]) -> Callable[..., int]:
    """The call with the arguments that tyro reads; its framed complaint becomes one sentence."""

    def call_later(*args: Any, **kwargs: Any) -> Any:
        return functools.partial(verb, *args, **kwargs)

    asked = any(argument in HELP for argument in rest)
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint), on_this_screen() if asked else contextlib.nullcontext():
            return tyro.cli(readable(verb, call_later), args=list(rest), prog=f"comastre {name}")
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UsageError(f"{_unframed(complaint.getvalue())}; see `comastre {name} --help`") from None


def _unframed(text: str) -> str:
    """One line of what stands in tyro's frame (drawn with lines or, without UTF-8, with dashes)."""
    title, *lines = (line.strip("│ ") for line in text.splitlines())
    said = itertools.takewhile(lambda line: not line.startswith("For full helptext"), lines)
    return " ".join(line for line in said if line.strip("─-╰╯ ")).rstrip(".") or title
