"""Paths that a user names: on the command line, in a configuration, from Python."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from comastre.errors import UserError


def user_path(given: str | Path, what: str = "the name") -> Path:
    """The path that was meant, with ~ as the home folder; `what` names it in the sentence that refuses it.

    `~photo.jpg` is a file, as no user is called so. What no file system takes for a name is refused here, because every
    later question about it, even whether it exists, would be an error.
    """
    if not isinstance(given, str | os.PathLike):
        raise UserError(f"{what} must be a path, as text or as a Path, not {type(given).__name__}")
    path = Path(given)
    try:
        path = path.expanduser()
    except RuntimeError:  # no such user
        path = Path(given)
    try:
        path.lstat()
    except ValueError:
        raise UserError(f"{what} {shown(path)} holds a character that no file's name can have: check it") from None
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.EINVAL):
            raise UserError(f"{what} {shown(path)} cannot be a file's name ({error.strerror}): check it") from None
    return path


def shown(path: str | Path, most: int = 120) -> str:
    """A path in a sentence; of a very long one, its ends."""
    text = str(path)
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 4 :]}"
