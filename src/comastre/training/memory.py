"""Batches that are larger than the memory: refused before they are made where that is plain, named where it shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from comastre.config.run import RunConfig
from comastre.errors import UserError

_FULL = re.compile("out of memory|not enough memory|allocate memory", re.IGNORECASE)


def refuse_too_large(config: RunConfig) -> None:
    """Say that a batch cannot fit where its pixels alone are more than the machine's memory."""
    training, side = config.training, config.data.crop
    images = training.batch_size // (training.nodes * training.accumulate)
    needed, there = images * 3 * side * side * 4, psutil.virtual_memory().total
    if needed > there:
        raise UserError(
            f"{_batch(config)} are {needed / 1e9:,.0f} GB of pixels alone, but this machine has {there / 1e9:,.0f} GB: "
            "lower --training.batch_size or --data.crop, or raise --training.accumulate"
        )


@contextmanager
def named_when_full(config: RunConfig) -> Iterator[None]:
    """Turn what torch raises where memory ends into a sentence; it has a class for that on a GPU alone."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, RuntimeError) and not _FULL.search(str(error)):
            raise
        raise UserError(
            f"{_batch(config)} need more memory than there is: lower --training.batch_size or --data.crop, raise "
            "--training.accumulate, or give --training.recompute; what is saved is kept"
        ) from error


def _batch(config: RunConfig) -> str:
    side = config.data.crop
    return f"batches of {config.training.batch_size:,} images of {side:,} x {side:,} pixels"
