"""Safe YAML that refuses a name given twice, of which YAML would silently drop the first.

A text of a few lines can stand for more values than any memory holds (anchors of anchors) or for itself; both are
refused before anything is built from it.
"""

from __future__ import annotations

from typing import Any

import yaml

from comastre.documents import DEEPEST

LONGEST = 500_000
"""Characters of a text: more than any configuration has, and read in seconds."""
MOST_VALUES = 100_000
"""Values that a text may stand for, once its anchors are filled in."""


class NotYaml(ValueError):  # noqa: N818 (it reads as what is wrong: raise NotYaml)
    """Why a text is not YAML, as the end of a sentence such as ' in line 3: a is given twice'."""


class _Unique:
    """Refuses a mapping with a name twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # a list as a name: refused by YAML itself
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
            seen.add(key.value)
        found: dict[Any, Any] = super().construct_mapping(node, deep)  # type: ignore[misc]
        return found


class _Values(_Unique, yaml.SafeLoader):
    pass


class _Texts(_Unique, yaml.BaseLoader):
    pass


def parse_yaml(text: str, as_text: bool = False) -> Any:
    """The content of a YAML (and so of a JSON) text; with `as_text` every value stays text, so `no` is no boolean."""
    if len(text) > LONGEST:
        raise NotYaml(f": it has {len(text):,} characters, which no configuration has")
    try:
        return _content(_Texts(text) if as_text else _Values(text))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark is not None else ""
        raise NotYaml(f"{line}: {getattr(error, 'problem', None) or error}") from None
    except RecursionError:
        raise NotYaml(": it is nested too deeply") from None
    except NotYaml:
        raise
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        # A date such as 2024-99-99 or a number of 5,000 digits, which look like one and are none.
        reason = "a number of thousands of digits" if "digits" in str(error) else str(error)
        raise NotYaml(f": {reason}") from None


def _content(loader: yaml.SafeLoader | yaml.BaseLoader) -> Any:
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _count(node, {}, ())
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _count(node: yaml.Node, known: dict[int, int], above: tuple[int, ...]) -> int:
    """How many values a node stands for; each node is looked at once, however often it is referred to."""
    if id(node) in above:
        raise NotYaml(f" in line {node.start_mark.line + 1}: it refers to itself")
    if len(above) > DEEPEST:
        raise NotYaml(f" in line {node.start_mark.line + 1}: it is nested too deeply")
    if id(node) not in known:
        parts: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            parts = node.value
        known[id(node)] = 1 + sum(_count(part, known, (*above, id(node))) for part in parts)
    if known[id(node)] > MOST_VALUES:
        raise NotYaml(f" in line {node.start_mark.line + 1}: it stands for more than {MOST_VALUES:,} values")
    return known[id(node)]
