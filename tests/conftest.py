"""Fixtures of all tests, and how they share the processors."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

MOST_WORKERS = 8  # each loads torch, and more of them than long test files have nothing to do

settings.register_profile("long", max_examples=5000)  # tests/any_values.py says what the default is

if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    # Before torch is imported: workers that each use every processor would wait for one another.
    share = (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, share)))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Workers of `-n auto`: none for a single file, whose tests share fixtures and start sooner without."""
    files = {argument.partition("::")[0] for argument in config.args}
    if len(files) == 1 and Path(*files).is_file():
        return 0
    return min(os.cpu_count() or 1, MOST_WORKERS)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The class-presence cache of each test is empty and its own, also beside tests that run at the same time."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("COMASTRE_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests use no network beyond this machine, also where there is one."""
    monkeypatch.setattr("comastre.noise._answers", lambda address: False)


@pytest.fixture(scope="session")
def shared() -> Path:
    """Photographs and trained weights, which a repository does not hold; tests that need them are skipped elsewhere."""
    folder = Path(__file__).parents[1] / ".." / "shared"
    if not folder.is_dir():
        pytest.skip("needs photographs or trained weights from a folder `shared` beside the repository")
    return folder.resolve()


@pytest.fixture(scope="session", autouse=True)
def no_cache_of_the_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is cached about test data goes into a folder of this test process, not into the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMASTRE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with random weights that finds something in any image, never sure of what; do not write to it."""
    import torch

    from comastre.bundle import store
    from comastre.class_table import class_table
    from comastre.config.settings import load_config
    from comastre.training.parts import describe, method_of

    # As tiny models are trained, but built as the bare size, and with thresholds at 0 so that even random weights
    # recognise something.
    thresholds = {"alpha": 0.0, "class_threshold": 0.0, "overlap": 0.0}
    shape = {"pixel_decoder": {"layers": 1, "top_down": False}, "inference": thresholds}
    config = load_config("shapes-6-2", {"comastre": shape})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = method_of(config).build([2, 1])
    classes = class_table(["disk", "star", "ring"], [2, 1], [(0, 0, 0), (255, 0, 0), (0, 255, 0), (0, 0, 255)])
    bundle = store.Bundle(model, classes, describe(config))
    return store.save(bundle, tmp_path_factory.mktemp("bundles") / "model")
