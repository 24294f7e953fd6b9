"""Safe YAML that refuses a name given twice, of which YAML would silently drop the first."""

from __future__ import annotations

from typing import Any

import yaml


class NotYaml(ValueError):  # noqa: N818 (it reads as what is wrong: raise NotYaml)
    """Why a text is not YAML, as the end of a sentence such as ' in line 3: a is given twice'."""


class _Unique:
    """Refuses a mapping with a name twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
            seen.add(str(key.value))
        found: dict[Any, Any] = super().construct_mapping(node, deep)  # type: ignore[misc]
        return found


class _Values(_Unique, yaml.SafeLoader):
    pass


class _Texts(_Unique, yaml.BaseLoader):
    pass


def parse_yaml(text: str, as_text: bool = False) -> Any:
    """The content of a YAML (and so of a JSON) text; with `as_text` every value stays text, so `no` is no boolean."""
    try:
        return yaml.load(text, _Texts if as_text else _Values)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark is not None else ""
        raise NotYaml(f"{line}: {getattr(error, 'problem', None) or error}") from None
