"""Bundles on the Hugging Face hub; its client is imported when it is needed."""

from __future__ import annotations

import re
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from comastre.bundle import store
from comastre.bundle.card import ADDRESS
from comastre.bundle.statistics import STATISTICS
from comastre.errors import UserError
from comastre.noise import short_of_retries
from comastre.paths import user_path

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class HubOptions:
    """How a bundle is fetched; the names are those of Hugging Face's libraries."""

    revision: str | None = None
    """Branch, tag or commit."""
    token: str | bool | None = None
    cache_dir: str | Path | None = None
    local_files_only: bool = False
    """Take what was fetched before, without using the network."""


def locate(path_or_hub_id: str | Path, options: HubOptions | None = None) -> Path:
    """The local folder of a bundle, fetched from the hub where it is not a path but an id `owner/name`."""
    path = user_path(path_or_hub_id, "the model")
    if path.exists() or isinstance(path_or_hub_id, Path) or not _ID.fullmatch(path_or_hub_id):
        return path
    return fetch(path_or_hub_id, options or HubOptions())


def fetch(repo_id: str, options: HubOptions) -> Path:
    """The folder to which the bundle `repo_id` was downloaded; nothing but the files of a bundle is."""
    from huggingface_hub import snapshot_download

    try:
        with nullcontext() if options.local_files_only else short_of_retries():
            return Path(
                snapshot_download(
                    repo_id,
                    allow_patterns=[*store.FILES, STATISTICS],
                    revision=options.revision,
                    token=options.token,
                    cache_dir=options.cache_dir,
                    local_files_only=options.local_files_only,
                )
            )
    except Exception as error:  # each version of the hub's client has its own network errors
        raise UserError(
            f"there is no folder {repo_id}, and the hub gave no model of that id ({_reason(error)}): check the name"
        ) from error


def push(
    model: store.Bundle,
    repo_id: str,
    *,
    private: bool | None,
    token: str | bool | None,
    revision: str | None,
    commit_message: str,
    create_pr: bool,
) -> str:
    """Upload a model as a bundle in one commit; gives the commit's URL."""
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory() as folder:
        written = store.save(model, Path(folder) / "model")
        card = written / store.CARD
        card.write_text(card.read_text(encoding="utf-8").replace(ADDRESS, repo_id), encoding="utf-8")
        try:
            api = HfApi(token=token)
            api.create_repo(repo_id, private=private, exist_ok=True)
            done = api.upload_folder(
                repo_id=repo_id,
                folder_path=written,
                commit_message=commit_message,
                revision=revision,
                create_pr=create_pr,
            )
        except Exception as error:  # each version of the hub's client has its own network errors
            raise UserError(
                f"the model could not be uploaded to {repo_id} ({_reason(error)}): check the name, that you may "
                "write there, and log in with `hf auth login`"
            ) from error
    return str(done.commit_url)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
