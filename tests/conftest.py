"""Fixtures of all tests."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The class-presence cache of each test is empty and its own, also beside tests that run at the same time."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("COMASTRE_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared data beside the repository; tests that need it are skipped where it is missing."""
    folder = Path(__file__).parents[1] / ".." / "shared"
    if not folder.is_dir():
        pytest.skip("the shared data folder is not beside the repository")
    return folder.resolve()


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with random weights that finds something in any image, never sure of what; do not write to it."""
    import torch

    from comastre.bundle import store
    from comastre.class_table import class_table
    from comastre.methods.comastre.config import ModelConfig
    from comastre.methods.comastre.segmenter import build_segmenter

    # Thresholds at 0 so that even random weights recognise something.
    given = {"size": "tiny", "inference": {"alpha": 0.0, "overlap": 0.0}}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build_segmenter(ModelConfig.model_validate(given), [2, 1])
    classes = class_table(["disk", "star", "ring"], [2, 1], [(0, 0, 0), (255, 0, 0), (0, 255, 0), (0, 0, 255)])
    return store.save(model, classes, tmp_path_factory.mktemp("bundles") / "model")
