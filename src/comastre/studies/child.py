"""A run of a study, as a process that does not outlive it: `python -m comastre.studies.child train ...`.

Its standard input is a pipe that the study holds open. When the study stops, or is killed, the pipe ends, on every
system alike; the run then saves and stops as after SIGTERM.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time

PATIENCE = 60.0
"""Seconds that a run has to save and stop."""


def watch(descriptor: int = 0) -> None:
    """Wait for the end of the pipe, then stop this process: politely, and where that takes too long, at once."""
    while os.read(descriptor, 1024):
        pass
    signal.raise_signal(signal.SIGTERM)
    time.sleep(PATIENCE)
    os._exit(128 + signal.SIGTERM)


def main() -> None:
    """The ordinary command with the arguments of this process."""
    threading.Thread(target=watch, daemon=True).start()
    sys.argv = ["comastre", *sys.argv[1:]]
    runpy.run_module("comastre", run_name="__main__")


if __name__ == "__main__":
    main()
