"""The one table of conventions: everybody who names one finds it there."""

import pytest

from comastre.config.conventions import CONVENTIONS, PAPER
from comastre.config.run import EvaluationConfig
from comastre.config.settings import load_config
from comastre.errors import UserError


def test_every_convention_has_a_rule_of_its_own_and_words() -> None:
    rules = [(each.background_in_base, each.background_in_all, each.ignore_future) for each in CONVENTIONS.values()]
    assert len(set(rules)) == len(rules)
    words = [text for each in CONVENTIONS.values() for text in (each.of_a_model, each.of_a_run)]
    assert all(words) and len(set(words)) == len(words)


def test_a_configuration_takes_these_and_no_other() -> None:
    assert EvaluationConfig().convention == PAPER
    for name in CONVENTIONS:
        assert load_config("shapes-6-2", {"evaluation": {"convention": name}}).evaluation.convention == name
    with pytest.raises(UserError, match="convention is 'mean' but must be 'paper', 'no_background_in_base'"):
        load_config("shapes-6-2", {"evaluation": {"convention": "mean"}})
