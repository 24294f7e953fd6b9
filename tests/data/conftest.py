"""Fixtures of the dataset tests."""

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """The class-presence cache of each test is empty and its own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("COMASTRE_CACHE", str(folder))
    return folder
