"""Fixtures of the tests of `learn`."""

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """The class-presence cache of each test is empty and its own."""
    monkeypatch.setenv("COMASTRE_CACHE", str(tmp_path_factory.mktemp("cache")))
