"""Unpack an archive beside its place and then move it there: what is in place is whole."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import Path

from rich.console import Console

from comastre.errors import UserError

UNPACKING = ".unpacking-"
"""How the names of folders begin in which archives are unpacked; a kill may leave one behind."""


def unpack(archive: Path, folder: Path) -> None:
    """The content of a zip or tar archive into `folder`; entries that are there already are kept."""
    aside = Path(tempfile.mkdtemp(dir=folder, prefix=UNPACKING))
    console = Console(stderr=True)
    try:
        with console.status(f"unpacking {archive.name}"):
            if zipfile.is_zipfile(archive):
                with zipfile.ZipFile(archive) as opened:
                    opened.extractall(aside)  # checks the checksum of every entry
            else:
                with tarfile.open(archive) as opened_tar:
                    opened_tar.extractall(aside, filter="data")
        merge_into(aside, folder)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, RuntimeError, ValueError) as error:
        # RuntimeError is an encrypted archive, or one packed in a way that Python does not know.
        archive.unlink()
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(":")
        raise UserError(
            f"{archive} is damaged ({reason}) and was removed: run the command again to download it anew."
        ) from None
    except OSError as error:
        raise UserError(f"{archive} cannot be unpacked into {folder}: {error}.") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def merge_into(source: Path, target: Path) -> None:
    """Move the entries of one folder into another, going down where both have a folder of the same name."""
    for entry in sorted(source.iterdir()):
        place = target / entry.name
        if not place.exists():
            entry.replace(place)
        elif entry.is_dir() and place.is_dir():
            merge_into(entry, place)
