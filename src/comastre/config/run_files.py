"""Names of what a run directory holds: whoever writes or reads one finds them here."""

from __future__ import annotations

from pathlib import Path

CONFIG = "config.yaml"
"""The resolved configuration."""
ENVIRONMENT = "environment.json"
"""What it was trained with."""
METRICS = "metrics.jsonl"
"""Loss terms, a line per logged iteration."""
RESULTS = "results.json"
"""Scores after every step."""
CHECKPOINTS = "checkpoints"
"""What an interrupted run goes on from."""
STEPS = "steps"
"""A model bundle per step."""
EXAMPLES = "examples"
"""Pictures of some validation images after every step."""
TENSORBOARD = "tensorboard"
REPORT = "report.html"
LOCK = ".lock"
"""Locked while a process trains the run."""
HOLDER = ".holder"
"""Which process that is; apart from the lock, which not every system lets others read."""


def step_bundle(run: Path, step: int) -> Path:
    """The model bundle after a step."""
    return run / STEPS / f"{step:02d}"
