"""Upload of files to a dataset on the Hugging Face Hub, in one commit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from setpoint.config import RunError, SetpointError
from setpoint.hub.fetch import hub_reason, split_hub_id

CARD = "README.md"
REFUSED = (401, 402, 403)
WRITES = "The token needs write access to it: --token env:NAME, HF_TOKEN, `hf auth login`"


class Uploaded(NamedTuple):
    """Result of an upload to a dataset.

    Arguments:
        commit: commit id; the previous one if nothing changed.
        files: number of files in total.
    """

    repository: str
    url: str
    commit: str
    files: int
    bytes: int


def require_id(repository: str) -> None:
    """Require a valid dataset id, and the package for uploads.

    Raises:
        SetpointError: the id is invalid, or the package is missing.
    """
    parts = split_hub_id(repository)
    if parts is None or parts[1] is not None:
        hint = " (--revision names the branch)" if parts is not None else ""
        raise SetpointError(
            f"{repository!r} is not an id of a data set on the hub{hint}.\nValid: owner/name."
        )
    if find_spec("huggingface_hub") is None:
        raise SetpointError(
            "pushing to the hub needs the package 'huggingface_hub'.\n"
            "Valid: pip install 'setpoint[data]'"
        )


def upload_dataset(
    repository: str,
    files: Mapping[str, Path],
    card: str,
    *,
    mark: str,
    owned: Collection[str],
    message: str,
    revision: str = "main",
    public: bool = False,
    token: str | None = None,
) -> Uploaded:
    """Upload files to a dataset on the Hub, atomically.

    Uploads before the commit are identified by hash, so the next call does not repeat them.

    Arguments:
        files: files by their paths in the dataset.
        card: text of the dataset card; a card without `mark` is kept.
        mark: a line that identifies Setpoint's card.
        owned: folders whose other files are deleted.
        revision: the branch, created if necessary.
        public: whether to create a public dataset, or to allow writing to one.
        token: None: from the environment, or `hf auth login`.

    Raises:
        SetpointError: see `require_id`; or the dataset is public.
        RunError: the Hub is unreachable, or refuses.
    """
    require_id(repository)
    import huggingface_hub as hub
    from huggingface_hub.errors import RepositoryNotFoundError
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    api: Any = hub.HfApi(token=token)
    place: dict[str, Any] = {"repo_id": repository, "repo_type": "dataset"}

    def ask(action: str, call: Callable[..., Any], **more: Any) -> Any:
        try:
            return call(**place, **more)
        except Exception as error:  # of the library, of the hub and of the connection
            status = getattr(getattr(error, "response", None), "status_code", None)
            refused = isinstance(error, RepositoryNotFoundError) or status in REFUSED
            raise RunError(
                f"{repository}: {action}: {hub_reason(error, 'data set')}. Nothing was pushed; the "
                "same command uploads what is missing" + f". {WRITES}" * refused
            ) from error

    ask("the dataset cannot be created", api.create_repo, private=not public, exist_ok=True)
    if not public and not ask("it cannot be read", api.repo_info).private:
        raise SetpointError(
            f"{repository} is a public data set.\n"
            "Valid: --public, if all of this data may be read by anyone; the id of a private one."
        )
    if revision != "main":
        ask("the branch cannot be created", api.create_branch, branch=revision, exist_ok=True)
    head = ask("it cannot be read", api.repo_info, revision=revision).sha
    remote = ask("it cannot be listed", api.list_repo_files, revision=revision)
    stale = [
        name for name in remote
        if name not in files and any(name.startswith(f"{folder}/") for folder in owned)
    ]  # fmt: skip
    operations: list[Any] = [hub.CommitOperationDelete(path_in_repo=name) for name in stale]
    operations += [
        hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=path)
        for name, path in files.items()
    ]
    writes_card = CARD not in remote
    if not writes_card:
        kept = ask("its card cannot be read", api.hf_hub_download, filename=CARD, revision=head)
        writes_card = mark in Path(kept).read_text(encoding="utf-8").splitlines()
    if writes_card:
        data = card.encode()
        operations.append(hub.CommitOperationAdd(path_in_repo=CARD, path_or_fileobj=data))
    done = ask(
        "the files cannot be uploaded",
        api.create_commit,
        operations=operations,
        commit_message=message,
        revision=revision,
        parent_commit=head,
    )
    return Uploaded(
        repository,
        f"{api.endpoint}/datasets/{repository}/tree/{revision}",
        done.oid,
        len(files) + writes_card,
        sum(path.stat().st_size for path in files.values()) + len(card.encode()) * writes_card,
    )
