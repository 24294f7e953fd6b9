"""What methods are for, on the built-in stream: fine-tuning forgets, each keeps more, joint training is the ceiling."""

from __future__ import annotations

from pathlib import Path

import pytest

from comastre.cli.main import dispatch
from comastre.studies.found import StudyFound, read_found

STUDY = Path(__file__).parents[2] / "docs" / "studies" / "shapes"
FAMILIES = {
    ("DeepLabv3 fine-tuning", "DeepLabv3 joint"): ("MiB", "SDR", "PLOP", "REMINDER", "RCIL"),
    ("Mask2Former fine-tuning", "Mask2Former joint"): ("CoMFormer",),
    ("CoMasTRe fine-tuning", "CoMasTRe joint"): ("CoMasTRe", "CoMasTRe exact", "CoMasTRe exact with own queries"),
}
"""By fine-tuning and joint training of the same network, the methods on it."""


def mean_kept(study: StudyFound, row: str) -> float:
    kept = [run.kept for run in study.of(row, "6-2")]
    assert kept and None not in kept
    return sum(each for each in kept if each is not None) / len(kept)


def mean_all(study: StudyFound, row: str) -> float:
    scores = [run.steps[-1].scores["paper"].all for run in study.of(row, "6-2")]
    assert scores and None not in scores
    return sum(each for each in scores if each is not None) / len(scores)


def hold(study: StudyFound) -> None:
    """As means over the seeds."""
    for (fine_tuning, joint), names in FAMILIES.items():
        assert mean_kept(study, fine_tuning) < 50
        for name in names:
            assert mean_kept(study, name) > mean_kept(study, fine_tuning) + 10, name
            assert mean_all(study, fine_tuning) < mean_all(study, name) < mean_all(study, joint), name


def test_the_committed_study_shows_it_over_three_seeds() -> None:
    study = read_found(STUDY)
    hold(study)
    # With the same weight on recognition the ceilings of both query networks are near each other.
    assert abs(mean_all(study, "Mask2Former joint") - mean_all(study, "CoMasTRe joint")) < 3
    for names in FAMILIES.values():
        assert all(len(study.of(name, "6-2")) == 3 for name in names)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_it_is_so_again_for_another_seed(tmp_path: Path) -> None:
    rows = [name for (first, last), names in FAMILIES.items() for name in (first, *names, last)]
    command = ["compare", str(STUDY / "study.yaml"), "--settings", "6-2", "--seeds", "3", "--jobs", "2"]
    assert dispatch([*command, "--rows", ",".join(rows), "--out", str(tmp_path / "study")]) == 0
    hold(read_found(tmp_path / "study"))
