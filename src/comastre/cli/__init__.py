"""The command line; what it imports first notes when the command began."""

import time

STARTED = time.monotonic()
"""A time limit counts from here: on a slow machine imports take a while."""
