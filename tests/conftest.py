"""Fixtures of all tests."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared data beside the repository; tests that need it are skipped where it is missing."""
    folder = Path(__file__).parents[1] / ".." / "shared"
    if not folder.is_dir():
        pytest.skip("the shared data folder is not beside the repository")
    return folder.resolve()
