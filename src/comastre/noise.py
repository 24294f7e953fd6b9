"""What other libraries print, kept off the screen: a remark that nobody can act on hides the one that matters."""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_LIBRARIES = ("timm", "huggingface_hub", "matplotlib", "PIL", "lightning_fabric", "lightning", "httpx", "urllib3")
_REACH = 3.0
"""Seconds in which the hub must answer for its client to be asked: that one retries for most of a minute."""


def silence_libraries() -> None:
    """For a whole command: no warnings and no remarks of libraries, unless Python was started with -W."""
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
        # Processes that are started later, such as those that load images, are as quiet.
        os.environ.setdefault("PYTHONWARNINGS", "ignore")
    for name in _LIBRARIES:
        logging.getLogger(name).setLevel(logging.ERROR)


_ignoring = threading.Lock()
_blocks_that_ignore: list[warnings.catch_warnings] = []


@contextmanager
def without_warnings() -> Iterator[None]:
    """Ignore all warnings inside this block, which may be in several threads at once.

    Python's own block keeps what it found for all threads: two that overlap would leave warnings ignored for good.
    """
    with _ignoring:
        if not _blocks_that_ignore:
            outermost = warnings.catch_warnings()
            outermost.__enter__()
            warnings.simplefilter("ignore")
            _blocks_that_ignore.append(outermost)
        else:
            _blocks_that_ignore.append(_blocks_that_ignore[0])
    try:
        yield
    finally:
        with _ignoring:
            last = _blocks_that_ignore.pop()
            if not _blocks_that_ignore:
                last.__exit__(None, None, None)


@contextmanager
def quiet(*loggers: str) -> Iterator[None]:
    """Let these loggers say nothing less than an error inside this block."""
    before = {name: logging.getLogger(name).level for name in loggers}
    for name in loggers:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


@contextmanager
def quiet_errors_of_c(enabled: bool = True) -> Iterator[None]:
    """Keep what a library in C (libtiff) writes past Python to standard error off the screen."""
    if not enabled:
        yield
        return
    try:
        kept = os.dup(2)
    except OSError:  # closed
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.flush()
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def short_of_retries() -> Iterator[None]:
    """Ask the hub only if it answers at all; else its client takes what was fetched before, or fails at once."""
    from huggingface_hub import constants
    from huggingface_hub.utils import logging as _  # noqa: F401 (it sets its level when it is first imported)

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not _answers(constants.ENDPOINT)
    try:
        with quiet("huggingface_hub", "timm", "httpx", "urllib3"):
            yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _answers(address: str) -> bool:
    import requests

    try:
        requests.head(address, timeout=_REACH, allow_redirects=False)
    except requests.RequestException:
        return False
    return True
