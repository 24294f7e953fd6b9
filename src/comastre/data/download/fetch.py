"""One file over HTTP: resumed where it stopped, with progress, and kept only when its checksum is right."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from comastre.errors import UserError

ATTEMPTS = 5
"""How often a broken connection is taken up again before giving up."""
_CHUNK = 1 << 16  # a connection that breaks loses at most so much
_TIMEOUT = 60.0  # seconds without a byte


def size_of(url: str) -> int:
    """Bytes of the file, or 0 where the server does not tell."""
    import requests

    try:
        answer = requests.head(url, allow_redirects=True, timeout=_TIMEOUT)
        answer.raise_for_status()
    except requests.RequestException as error:
        raise UserError(
            f"{url} cannot be reached: {_reason(error)}. Check the connection or give --base-url."
        ) from None
    return _length(answer)


def _length(answer: Any) -> int:
    """Bytes that a server announces; 0 where it says nothing that is a number."""
    text = str(answer.headers.get("content-length", ""))
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else 0


def download(url: str, target: Path, md5: str | None) -> Path:
    """Fetch `url` to `target` unless it is there already with the right checksum."""
    import pooch

    pooch.get_logger().setLevel(logging.ERROR)  # we say ourselves what happens
    checksum = None if md5 is None else f"md5:{md5}"
    try:
        pooch.retrieve(url, checksum, fname=target.name, path=target.parent, downloader=_Resuming(target))
    except ValueError:
        raise UserError(
            f"{url} arrived damaged (its MD5 is not {md5}) and was thrown away: run the command again, or give "
            "another --base-url."
        ) from None
    return target


class _Resuming:
    """A downloader for pooch that keeps what has arrived beside the target and asks for the rest."""

    def __init__(self, target: Path) -> None:
        self.partial = Path(f"{target}.partial")

    def __call__(self, url: str, output_file: Any, _pooch: Any) -> None:
        import requests

        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._fetch(url)
                break
            except requests.HTTPError as error:
                raise UserError(f"{url} cannot be downloaded: {_reason(error)}.") from None
            except requests.RequestException as error:
                if attempt == ATTEMPTS:
                    raise UserError(
                        f"{url} cannot be downloaded: {_reason(error)}. What came is kept: run the command again."
                    ) from None
        self.partial.replace(output_file)

    def _fetch(self, url: str) -> None:
        import requests

        here = self.partial.stat().st_size if self.partial.exists() else 0
        headers = {"Range": f"bytes={here}-"} if here else {}
        with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as answer:
            if answer.status_code == requests.codes.requested_range_not_satisfiable:
                # Nothing is left to send: either all of it is here, or the file on the server is another one now.
                total = answer.headers.get("content-range", "").rpartition("/")[2]
                if total == str(here):
                    return
                self.partial.unlink()
                raise requests.ConnectionError("the server has another file now")
            answer.raise_for_status()
            if answer.status_code != requests.codes.partial_content:
                here = 0  # the server cannot resume and sends everything
            length = _length(answer)
            expected = here + length if length else 0
            with self.partial.open("ab" if here else "wb") as file, _progress() as bar:
                task = bar.add_task(self.partial.name.removesuffix(".partial"), total=expected or None, completed=here)
                for block in answer.iter_content(_CHUNK):
                    file.write(block)
                    bar.advance(task, len(block))
        if expected and self.partial.stat().st_size < expected:
            raise requests.ConnectionError("the connection ended early")


def _progress() -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)


def _reason(error: Exception) -> str:
    answer = getattr(error, "response", None)
    if answer is not None:
        return f"the server answers {answer.status_code} {answer.reason}"
    # requests wraps the error of urllib3, which wraps the cause: only the innermost says what happened.
    inner = error.args[0] if error.args and isinstance(error.args[0], Exception) else error
    text = str(getattr(inner, "reason", None) or inner).strip()
    text = re.sub(r"^\[Errno -?\d+\] ", "", text.rpartition(": ")[2]).rstrip(".")
    return text.splitlines()[0][:200] if text else type(error).__name__
