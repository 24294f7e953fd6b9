"""What the class names of data mean to a model: which it knows, which are new, and which could be either."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from comastre.data.names import twin_of
from comastre.errors import UserError
from comastre.text import shortened


@dataclass(frozen=True)
class ClassRoles:
    """The classes of data as a model sees them."""

    old: tuple[str, ...]
    """What the model knows, in learning order."""
    new: tuple[str, ...]
    """What it is to learn, in the data's order."""
    labelled_old: frozenset[str]
    """Old classes that the data labels too."""
    labels: tuple[int, ...]
    """Model label of each dataset id 1, 2, ...: k + 1 for class k of old + new, 0 where it counts as unlabelled."""
    unseen: tuple[str, ...]
    """Listed in the data but shown by no image."""
    left_out: tuple[str, ...]
    """New in the data but not asked for."""

    @property
    def names(self) -> tuple[str, ...]:
        """All classes of the grown model, in learning order."""
        return (*self.old, *self.new)

    @property
    def taught(self) -> tuple[str, ...]:
        """What a lesson is about: the new classes, or, where there is none, the old ones that the data labels."""
        return self.new or tuple(name for name in self.old if name in self.labelled_old)

    @property
    def labelled(self) -> frozenset[str]:
        """Classes that the data labels."""
        return self.labelled_old | frozenset(self.new)


def assign_roles(
    old: Sequence[str],
    listed: Sequence[str],
    shown: Collection[int],
    same: Mapping[str, str] | None = None,
    confirmed: Collection[str] = (),
    only: Collection[str] = (),
    elsewhere: Collection[str] = (),
    continued: Sequence[str] = (),
) -> ClassRoles:
    """Match the names that data lists (ids 1, 2, ...; `shown` by some image) with the model's `old` names.

    `same` says which name of the data is which old class, `confirmed` which are new although they look like another,
    `only` which of the new ones are to be learned. `elsewhere` are names that other data lists, which `same` may name.
    A lesson that is `continued` is about these classes, whatever others are new in the data.
    """
    same = same or {}
    _check_flags((*old, *continued), (*listed, *elsewhere), same, confirmed, only)
    new: list[str] = list(continued)
    labelled_old, unseen, left_out, targets = set(), [], [], []
    for number, name in enumerate(listed, start=1):
        meant = same.get(name, name)
        if meant not in (*old, *continued) and name not in confirmed:
            _refuse_similar(name, (*old, *continued), [each for each in listed[: number - 1] if each not in same])
        if number not in shown:
            unseen.append(name)
        elif meant in old:
            labelled_old.add(meant)
        elif meant in continued:
            pass
        elif continued or (only and name not in only):
            left_out.append(name)
        else:
            new.append(name)
        targets.append(meant)
    labels = {name: label for label, name in enumerate((*old, *new), start=1)}
    skipped = {*unseen, *left_out}
    return ClassRoles(
        old=tuple(old),
        new=tuple(new),
        labelled_old=frozenset(labelled_old),
        labels=tuple(0 if name in skipped else labels[meant] for name, meant in zip(listed, targets, strict=True)),
        unseen=tuple(unseen),
        left_out=tuple(left_out),
    )


def known_labels(
    names: Sequence[str], listed: Sequence[str], same: Mapping[str, str], confirmed: Collection[str], what: str
) -> tuple[int, ...]:
    """Model label of each class that data for scoring (`what`) lists; 0 for those that the model does not know."""
    labels = {name: label for label, name in enumerate(names, start=1)}
    for name in listed:
        if same.get(name, name) not in labels and name not in confirmed:
            _refuse_similar(name, names, ())
    found = tuple(labels.get(same.get(name, name), 0) for name in listed)
    if not any(found):
        raise UserError(
            f"{what} labels none of the classes that are scored ({shortened(names)}), but {shortened(listed)}"
        )
    return found


def read_pairs(texts: Sequence[str]) -> dict[str, str]:
    """{'Dog': 'dog'} from ['Dog=dog']."""
    pairs = {}
    for text in texts:
        name, equals, old = (part.strip() for part in text.partition("="))
        if not (name and equals and old):
            raise UserError(f"--same-class {text!r} is not understood: write 'NAME IN THE DATA=NAME IN THE MODEL'")
        pairs[name] = old
    return pairs


def _refuse_similar(name: str, old: Sequence[str], earlier: Sequence[str]) -> None:
    for known, whose in ((old, "the model's"), (earlier, "the data's own")):
        twin = twin_of(name, known)
        if twin is not None:
            fix = f'--same-class "{name}={twin}" if they are one class, ' if known is old else ""
            raise UserError(
                f"the data's class {name!r} looks like {whose} {twin!r}: give {fix}"
                f'--new-class "{name}" if it is another{"" if known is old else ", or give both one name in the data"}'
            )


def _check_flags(
    old: Sequence[str],
    listed: Sequence[str],
    same: Mapping[str, str],
    confirmed: Collection[str],
    only: Collection[str],
) -> None:
    choices = {"--same-class": list(same), "--new-class": list(confirmed), "--only": list(only)}
    for flag, names in choices.items():
        for name in names:
            if name not in listed:
                raise UserError(f"{flag} names {name!r}, which is not a class of the data ({shortened(listed)})")
    for name, known in same.items():
        if known not in old:
            raise UserError(f"--same-class names {known!r}, which the model does not know ({shortened(old)})")
        if name in confirmed:
            raise UserError(f"{name!r} is given as --same-class and as --new-class: it can be only one of them")
    for flag in ("--new-class", "--only"):
        for name in choices[flag]:
            if same.get(name, name) in old:
                raise UserError(f"{flag} names {name!r}, which the model knows already: leave it away")
