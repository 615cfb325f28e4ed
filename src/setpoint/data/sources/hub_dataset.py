"""Data sets from the Hugging Face Hub and from the library `datasets`."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from setpoint.config import MissingPathError, Problem, SetpointError
from setpoint.data.document import BuiltSource, Document, FileRecord, Place, Placed
from setpoint.data.sources.config import HubDataset
from setpoint.data.sources.files import EXTRA, inputs_of
from setpoint.data.sources.records import FileRow, fields_of, holds_tokens, needed_columns
from setpoint.hub.fetch import hub_reason

SAVED = ("dataset_dict.json", "state.json")  # what `save_to_disk` leaves in a folder
_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


def folder_of(config: HubDataset) -> str | None:
    """Local folder; None for a data set on the hub."""
    path = os.path.expanduser(config.path)
    return path if os.path.isdir(path) else None


def is_saved(folder: str) -> bool:
    """True if a folder was written by `save_to_disk`."""
    return any(os.path.isfile(os.path.join(folder, name)) for name in SAVED)


def path_problems(config: HubDataset) -> Iterator[Problem]:
    """Find invalid paths, and options without effect on local data, without accessing the hub."""
    folder = folder_of(config)
    if folder is None and _ID.fullmatch(config.path) is None:
        message = "is neither a local directory nor a valid hub id"
        valid = ("owner/name", "./directory")
        yield Problem("path", message, valid=valid, kind=MissingPathError.kind)
    useless = {"revision": config.revision, "token": config.token} if folder else {}
    if folder and is_saved(folder):
        useless |= {
            "subset": config.subset,
            "data_files": config.data_files,
            "streaming": config.streaming,
        }
    for name, value in useless.items():
        if value:
            contents = "that save_to_disk wrote" if is_saved(folder or "") else "of data files"
            yield Problem(name, f"has no effect on a local folder {contents}", hint="Remove it.")
    if importlib.util.find_spec("datasets") is None:
        yield Problem("type", "needs the package 'datasets'", hint=f"pip install {EXTRA}")


def _place_after(row: int, shard: Any) -> Place:
    return {"row": row, "shard": shard.state_dict()}


class HubDatasetSource(BuiltSource[HubDataset]):
    """Documents from a field of a data set, one per row."""

    def __init__(self, config: HubDataset, *, where: str = "data.sources") -> None:
        super().__init__(config, where=where)
        self._stream: Any = None

    def documents(self) -> Iterator[Document]:
        """The rows of the split, named `<name>/<split>#<number>`, or by shard when streamed.

        Raises:
            SetpointError: the package is missing, the data set cannot be loaded or read, split or
                field do not exist, or a row has no text; names the row.
        """
        if self.config.streaming:
            for part in range(self._open()):
                yield from (document for document, _ in self.read(part, {}))
            return
        from setpoint.data.sources.tokens import row_documents  # brings numpy

        self._check()
        name, row = f"{self.config.name}/{self.config.split}", None
        for row in self._read(self._selected(self._load_rows()), name):
            yield from row_documents(row, self.config, self.where)
        if row is None:
            raise SetpointError(f"{self.where}.split: {name} has no rows.\nValid: another split.")

    def inputs(self) -> Iterator[str] | None:
        """See `inputs_of`; None for a stream, whose changes cannot be detected."""
        config = self.config
        if config.streaming:
            return None
        if folder_of(config) is not None:
            files = self._local_files()
            return inputs_of({f"{config.name}/{name}": path for name, path in files.items()})
        table = self._load_rows()
        size = table.info.dataset_size or 0
        # That of the files as they lie in the library's cache, which are those of one revision.
        return iter([f"{config.name}/{config.path}\t{size} {len(table)} {table._fingerprint}"])

    def parts(self) -> Sequence[FileRecord]:
        """The shards, by the files of the data set. See `StreamSource`.

        Raises:
            SetpointError: see `documents`.
        """
        count, state = self._open(), hashlib.sha256()
        for line in self._files():
            state.update(f"{line}\n".encode())
        # Which files a shard is of is known to the library alone.
        digest = state.hexdigest()
        return [FileRecord(self._part_name(number), 0, digest) for number in range(count)]

    def _open(self) -> int:
        """Open the stream, and return its number of shards."""
        self._check()
        self._stream = self._selected(self._load_rows())
        return self._stream.num_shards

    def read(self, part: int, place: Place) -> Iterator[Placed]:
        """See `StreamSource`; the library restores its own state.

        Raises:
            SetpointError: see `documents`.
        """
        from setpoint.data.sources.tokens import placed_documents  # brings numpy

        shard = self._stream.shard(num_shards=self._stream.num_shards, index=part)
        if "shard" in place:
            shard.load_state_dict(place["shard"])
        for row in self._read(shard, self._part_name(part), place.get("row", 0)):
            next_place = partial(_place_after, row.number + 1, shard)
            yield from placed_documents(row, self.config, self.where, place, next_place)
            # The state of the library is only needed if a row may hold several documents.
            place = next_place() if holds_tokens(self.config.field) else {}

    def _part_name(self, part: int) -> str:
        return f"{self.config.name}/{self.config.split}/{part:05d}"

    def _local_files(self) -> dict[str, Path]:
        folder = Path(folder_of(self.config) or "")
        files = (path for path in sorted(folder.rglob("*")) if path.is_file())
        return {str(path.relative_to(folder)): path for path in files}

    def _files(self) -> Iterator[str]:
        """Names of the files, each with a state that changes with its content."""
        config = self.config
        if folder_of(config) is not None:
            files = self._local_files().items()
            yield from (f"{name}\t{path.stat().st_size}" for name, path in files)
            return
        import datasets

        try:
            # The names hold the commit.
            builder = datasets.load_dataset_builder(config.path, **self._load_options())
        except Exception as error:  # of the library, of the hub and of the connection
            raise self._failure(f"the data set {config.path!r} cannot be loaded", error) from error
        listed: Any = getattr(builder.config, "data_files", None) or {}
        yield from (str(file) for files in listed.values() for file in files)
        if not listed:
            yield str(builder.hash)

    def _check(self) -> None:
        for problem in path_problems(self.config):
            raise SetpointError(f"{self.where}.{problem.path}: {problem.message}. {problem.hint}")

    def _selected(self, table: Any) -> Any:
        """The table with only the required columns."""
        try:
            keys = table.column_names  # None where only the rows of a stream say it
        except Exception as error:
            raise self._failure(f"{self.config.path!r} cannot be read", error) from error
        if keys is None:
            return table
        name = f"{self.config.name}/{self.config.split}"
        return table.select_columns(needed_columns(fields_of(self.config), keys, name, self.where))

    def _read(self, table: Any, name: str, first: int = 0) -> Iterator[FileRow]:
        """The rows of a table, starting at row `first`."""
        number = first - 1
        try:
            for number, values in enumerate(table, first):
                yield FileRow(name, "row", number, values)
        except (SetpointError, GeneratorExit):
            raise
        except Exception as error:  # the readers of many formats have their own
            raise self._failure(f"row {number + 2:,} of {name} cannot be read", error) from error

    def _load_rows(self) -> Any:
        try:
            import datasets
        except ModuleNotFoundError as error:
            raise SetpointError(
                f"{self.where}: type = huggingface needs the package {error.name!r}.\n"
                f"Valid: pip install {EXTRA}"
            ) from None
        config, folder = self.config, folder_of(self.config)
        if folder is not None and is_saved(folder):
            return self._load_saved(datasets, folder)
        options = self._load_options()
        try:
            return datasets.load_dataset(
                folder or config.path, split=config.split, streaming=config.streaming, **options
            )
        except Exception as error:  # of the library, of the hub and of the connection
            raise self._failure(f"the data set {config.path!r} cannot be loaded", error) from error

    def _load_options(self) -> dict[str, Any]:
        """Arguments for the library, without the split."""
        config, token = self.config, None
        if config.token is not None:
            try:
                token = str(config.token.reveal())
            except SetpointError as error:
                raise SetpointError(f"{self.where}.token: {error}") from None
        return {
            "name": config.subset,
            "revision": config.revision,
            "data_files": list(config.data_files) or None,
            "token": token,
        }

    def _load_saved(self, datasets: Any, folder: str) -> Any:
        """Split of a data set on disk."""
        split, slice_ = self.config.split.partition("[")[::2]
        try:
            dataset = datasets.load_from_disk(folder)
        except Exception as error:
            raise self._failure(f"the data set in {folder} cannot be read", error) from error
        if slice_ or "+" in split:
            raise SetpointError(
                f"{self.where}.split: {self.config.split!r} is not the name of a split, as needed "
                f"for {folder}, which save_to_disk wrote.\nValid: the name of a split."
            )
        if isinstance(dataset, datasets.DatasetDict):
            if split not in dataset:
                raise SetpointError(
                    f"{self.where}.split: {folder} has no split {split!r}.\n"
                    f"Valid: {', '.join(map(str, dataset))}."
                )
            return dataset[split]
        if dataset.split is not None and str(dataset.split) != split:
            raise SetpointError(
                f"{self.where}.split: {folder} holds the split '{dataset.split}', not {split!r}.\n"
                f"Valid: {dataset.split}."
            )
        return dataset

    def _failure(self, action: str, error: Exception) -> SetpointError:
        return SetpointError(
            f"{self.where}: {action}: {hub_reason(error, 'data set')}.\n"
            "Valid: the id of a data set on the hub, with an existing subset, split and revision; "
            "a folder; files of your own with type = 'text'."
        )
