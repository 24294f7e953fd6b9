"""The verb `comastre completion`: a script for the shell, made from the verbs' signatures and the configuration.

The script holds all words itself: a shell that asked the program at every Tab would wait for Python each time.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any, Literal, get_args, get_origin, get_type_hints

import tyro

from comastre.text import say

Shell = Literal["bash", "zsh", "fish"]


@dataclass(frozen=True)
class Option:
    """One option of a command; an empty `values` means anything, such as a file."""

    name: str
    values: tuple[str, ...] = ()
    flag: bool = False
    about: str = ""


@dataclass(frozen=True)
class Command:
    """What may follow `comastre NAME`."""

    name: str
    about: str
    words: tuple[str, ...]
    """Words that may follow beside files: presets, shells, or the commands below this one."""
    options: tuple[Option, ...]


def completion(shell: tyro.conf.Positional[Shell], /) -> int:
    """Print a script that completes commands, options, presets and fields in bash, zsh or fish.

    Save it where the shell looks for it, and again after an update of comastre:

    bash: comastre completion bash > ~/.local/share/bash-completion/completions/comastre

    zsh: comastre completion zsh > ~/.zfunc/_comastre (with fpath+=~/.zfunc before compinit in ~/.zshrc)

    fish: comastre completion fish > ~/.config/fish/completions/comastre.fish

    For the current bash or zsh only: eval "$(comastre completion bash)"

    Args:
        shell: Which shell the script is for.
    """
    scripts = {"bash": bash_script, "zsh": zsh_script, "fish": fish_script}
    say(scripts[shell](known_commands()))
    return 0


def known_commands() -> list[Command]:
    """All verbs with their words and options, those below `data` too."""
    from comastre.cli.main import DATA_VERBS, VERBS
    from comastre.config.datasets import datasets
    from comastre.config.settings import preset_names
    from comastre.studies.spec import built_in_names

    stage_one = tuple(name for name in preset_names() if "objectness" in name)
    presets = tuple(name for name in preset_names() if name not in stage_one)
    words = {
        "train": presets,
        "compare": (*built_in_names(), *presets),
        "pretrain": stage_one,
        "data": tuple(DATA_VERBS),
        "data check": (*datasets(), *presets),
    }
    verbs = VERBS | {f"data {name}": verb for name, verb in DATA_VERBS.items()}
    return [_describe(name, verb, words.get(name, ())) for name, verb in verbs.items()]


def bash_script(commands: Sequence[Command]) -> str:
    """The script for bash, 3.2 of macOS included; without a word of ours, readline offers files."""
    return f"""# bash completion of comastre
{_words_function(commands)}
_comastre() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD - 1]}}" command=""
    # bash takes --option=value apart at the equals sign.
    if [[ $word == = ]]; then word=""; elif [[ $before == = ]]; then before="${{COMP_WORDS[COMP_CWORD - 2]}}"; fi
    if ((COMP_CWORD > 1)); then command="${{COMP_WORDS[1]}}"; fi
    if [[ $command == data ]] && ((COMP_CWORD > 2)); then command="data ${{COMP_WORDS[2]}}"; fi
    COMPREPLY=($(compgen -W "$(_comastre_words "$command" "$before" "$word")" -- "$word"))
}}
complete -o bashdefault -o default -F _comastre comastre"""


def zsh_script(commands: Sequence[Command]) -> str:
    """The script for zsh, to be sourced or to be found in fpath as _comastre."""
    return f"""#compdef comastre
{_words_function(commands)}
_comastre() {{
    local command=""
    local -a found
    if ((CURRENT > 2)); then command="$words[2]"; fi
    if [[ $command == data ]] && ((CURRENT > 3)); then command="data $words[3]"; fi
    found=(${{=$(_comastre_words "$command" "$words[CURRENT-1]" "$words[CURRENT]")}})
    compadd -a found || _files
}}
if [[ $funcstack[1] == _comastre ]]; then _comastre "$@"; else compdef _comastre comastre; fi"""


def fish_script(commands: Sequence[Command]) -> str:
    """The script for fish, which shows what each word means."""
    lines = [
        "# fish completion of comastre",
        "function __comastre_in --description 'whether the command line begins with these commands'",
        "    set -l given (commandline -opc)[2..]",
        '    string match -q -- "$argv *" "$given "',
        "end",
        "function __comastre_after --description 'whether the command line is these commands and nothing else'",
        "    set -l given (commandline -opc)[2..]",
        '    test "$given" = "$argv"',
        "end",
    ]
    for command in commands:
        *above, last = command.name.split()
        place = f"-n {quote(' '.join(('__comastre_after', *above)))}"
        lines.append(f"complete -c comastre {place} -f -a {last} -d {quote(command.about)}")
        inside = f"-n {quote(f'__comastre_in {command.name}')}"
        if command.words and command.name != "data":
            lines.append(f"complete -c comastre {inside} -a {quote(' '.join(command.words))}")
    return "\n".join([*lines, *_fish_options(commands)])


def _fish_options(commands: Sequence[Command]) -> list[str]:
    """Every option once, for all commands that have it: most of them share the fields of the configuration."""
    owners: dict[Option, list[str]] = {}
    for command in commands:
        for option in command.options:
            owners.setdefault(option, []).append(command.name)
    groups = list(dict.fromkeys(tuple(names) for names in owners.values()))
    lines = []
    for number, names in enumerate(groups):
        where = "; or ".join(f"__comastre_in {name}" for name in names)
        lines += [f"function __comastre_group_{number}", f"    {where}", "end"]
    for option, having in owners.items():
        takes = f"-x -a {quote(' '.join(option.values))}" if option.values else "" if option.flag else "-r"
        about = f"-d {quote(option.about)}" if option.about else ""
        place = f"-n __comastre_group_{groups.index(tuple(having))}"
        parts = ("complete -c comastre", place, f"-l {option.name.removeprefix('--')}", takes, about)
        lines.append(" ".join(filter(None, parts)))
    return lines


def _words_function(commands: Sequence[Command]) -> str:
    """For bash and zsh: a function that prints the words after a command and a previous word, for a current word."""
    top = [command.name for command in commands if " " not in command.name]
    takes_value: dict[str, list[str]] = {}
    for command in commands:
        for option in command.options:
            if not option.flag:
                takes_value.setdefault(" ".join(option.values), []).append(f"{command.name} {option.name}")
    values = [f"        {_pattern(places)}) echo {quote(words)}; return ;;" for words, places in takes_value.items()]
    options = [_case(command.name, [option.name for option in command.options]) for command in commands]
    words = [_case(command.name, command.words) for command in commands if command.words]
    lines = (
        "# The words that may follow: COMMAND, PREVIOUS WORD, CURRENT WORD",
        "_comastre_words() {",
        '    case "$1 $2" in',
        *values,
        "    esac",
        '    case "$3" in',
        '    -*) case "$1" in',
        _case("", ["--help", "--version"]),
        *options,
        "        esac ;;",
        '    *) case "$1" in',
        _case("", top),
        *words,
        "        esac ;;",
        "    esac",
        "}",
    )
    return "\n".join(lines)


def _case(command: str, words: Sequence[str]) -> str:
    return f"        {quote(command)}) echo {quote(' '.join(words))} ;;"


def _pattern(places: Sequence[str]) -> str:
    return " | ".join(map(quote, places))


def _describe(name: str, verb: Callable[..., int], words: Sequence[str]) -> Command:
    """What a verb's signature says, and the fields of the configuration where it takes them."""
    hints = get_type_hints(verb)
    options = [Option("--help", flag=True)]
    for parameter in inspect.signature(verb).parameters.values():
        hint = hints[parameter.name]
        if parameter.name == "overrides":
            options += _fields()
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            words = (*words, *_choices(hint))
        else:
            options.append(Option(f"--{parameter.name.replace('_', '-')}", _choices(hint), flag=hint is bool))
    return Command(name, (inspect.getdoc(verb) or "").splitlines()[0], tuple(words), tuple(options))


def _fields() -> Iterator[Option]:
    from comastre.config.overrides import config_fields

    for field in config_fields():
        values = ("true", "false") if field.annotation is bool else _choices(field.annotation)
        yield Option(f"--{field.name}", values, about=field.description)


def _choices(hint: Any) -> tuple[str, ...]:
    """The words that an annotation such as `Literal["train", "val"] | None` allows; none where it allows any."""
    if get_origin(hint) is Literal:
        return tuple(map(str, get_args(hint)))
    return tuple(itertools.chain.from_iterable(map(_choices, get_args(hint))))
