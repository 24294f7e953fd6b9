"""Which datasets there are: ours and those of other packages, found by the entry points `comastre.datasets`.

Nothing heavy is imported here: a spec says where its implementation is, and that is imported when it is used.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from comastre.config.entry_points import Found, find_specs
from comastre.errors import UserError

if TYPE_CHECKING:
    from comastre.config.run import DataConfig

GROUP = "comastre.datasets"


@dataclass(frozen=True)
class DatasetSpec:
    """A dataset by name, and where the functions are that open it."""

    name: str
    """As in `data.dataset` and in NAME:FOLDER."""
    title: str
    """For reports, such as 'Pascal VOC'."""
    about: str
    """One line."""
    implementation: str
    """`module:function` of (config: DataConfig, split: "train" | "val") -> SegmentationDataset."""
    needs_root: bool = True
    """Whether it needs a folder; else it is generated."""
    preset: str | None = None
    """Whose setting `data check` shows; None: all classes at once."""
    fields: tuple[str, ...] = ()
    """Fields of the data section that it reads, besides `root` and `options`."""
    validation_fields: tuple[str, ...] = ()
    """Fields of the data section, such as `seed` or `options.year`, that decide which validation images there are."""
    has_validation: str | None = None
    """`module:function` of (config: DataConfig) -> bool, for data that may come without a validation split.

    Where it says no, the implementation is also asked for the split "all": every image, none held out. None: the data
    always has a validation split.
    """
    signs: tuple[str, ...] = ()
    """Names of folders by which a user's folder is recognised as this dataset, to say so in an error."""

    def __post_init__(self) -> None:
        # A colon ends a name in NAME:FOLDER, and a single letter there is a drive of Windows.
        if not re.fullmatch(r"[a-z][a-z0-9_-]+", self.name):
            raise ValueError(f"'{self.name}' is no name for a dataset: use small letters, digits, _ and -")
        for path in filter(None, (self.implementation, self.has_validation)):
            if not re.fullmatch(r"[\w.]+:\w+", path):
                raise ValueError(f"{self.name}: '{path}' must be written module:function")

    @property
    def place(self) -> str:
        """How it is named on the command line."""
        return f"{self.name}:FOLDER" if self.needs_root else self.name

    def open(self, config: DataConfig, split: str) -> Any:
        """The split of this dataset that `config` describes; `comastre.data.build` gives it its type."""
        return self._function(self.implementation)(config, split)

    def validates(self, config: DataConfig) -> bool:
        """Whether the data comes with a validation split, so that none has to be held out."""
        return self.has_validation is None or bool(self._function(self.has_validation)(config))

    def _function(self, path: str) -> Any:
        module, _, name = path.partition(":")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            package = installed().packages.get(self.name, module)
            raise UserError(
                f"the dataset {self.name} of the package {package} cannot be opened, as {path} cannot be imported "
                f"({error}): install what it needs, or another version of it."
            ) from error


@cache
def installed() -> Found[DatasetSpec]:
    """All datasets of the installed packages and what is wrong with others; looked up once per process."""
    return find_specs(GROUP, DatasetSpec)


def datasets() -> Mapping[str, DatasetSpec]:
    """All datasets by name: those that need no folder first, then by name."""
    in_order = sorted(installed().specs.values(), key=lambda spec: (spec.needs_root, spec.name))
    return {spec.name: spec for spec in in_order}


def find_dataset(name: str) -> DatasetSpec:
    """The dataset of that name, or one sentence with the name that was probably meant."""
    return installed().find(name, "dataset", _hint)


def _hint(name: str) -> str:
    near = near_dataset(name)
    return f"did you mean {near}?" if near else f"the datasets are {', '.join(datasets())}."


def near_dataset(name: str) -> str | None:
    """The dataset whose name looks most like `name`, where one does."""
    return next(iter(difflib.get_close_matches(name.lower(), datasets(), n=1, cutoff=0.65)), None)


def readers_of(field: str) -> tuple[str, ...]:
    """Names of the datasets that read a field of the data section."""
    return tuple(spec.name for spec in datasets().values() if field in spec.fields)
