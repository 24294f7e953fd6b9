"""On a CPU, a layer frees what the next one asks for again: glibc is told to keep it meanwhile.

By itself it hands every large tensor back to the system, which then clears each page anew, and time grows faster with
an image than its pixels (docs/experiments.md, Speed). With another C library, and where somebody has chosen for
themselves, nothing is done.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # as in malloc.h
# Tensors of less than 64 MiB come from memory that is kept, of which up to 2 GiB may be free; few are larger, and these
# leave gaps that others do not fill.
_KEEPING = {_MMAP_THRESHOLD: 2**26, _TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 2**26}
# Where glibc's own thresholds end up in a process that frees large tensors: they follow what it frees.
_USUAL = {_MMAP_THRESHOLD: 2**25, _TRIM_THRESHOLD: 2**26, _TOP_PAD: 2**17}
_blocks = 0
"""How many blocks, in all threads, are open: the settings are the process's."""
_counting = threading.Lock()


@contextmanager
def keeping_freed_memory(device: str = "cpu") -> Iterator[bool]:
    """Inside this block, and those around it, freed memory stays with the process; says whether it does."""
    if device != "cpu" or platform.libc_ver()[0] != "glibc" or _chosen_already():
        yield False
        return
    try:
        yield _count(1)
    finally:
        _count(-1)


def hand_back_freed_memory() -> None:
    """Inside such a block: now, before something large of another kind is made."""
    if _blocks:
        ctypes.CDLL(None).malloc_trim(0)


def _count(change: int) -> bool:
    """Open or close a block; the first one begins keeping memory, the last one hands it back."""
    global _blocks
    libc = ctypes.CDLL(None)
    with _counting:
        before, _blocks = _blocks, _blocks + change
        if _blocks == 0:
            _tell(libc, _USUAL)
            libc.malloc_trim(0)
        return before > 0 or _tell(libc, _KEEPING)


def _tell(libc: ctypes.CDLL, settings: Mapping[int, int]) -> bool:
    return all(libc.mallopt(name, value) == 1 for name, value in settings.items())


def _chosen_already() -> bool:
    names = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "LD_PRELOAD")
    return any(name in os.environ for name in names) or "malloc" in os.environ.get("GLIBC_TUNABLES", "")
