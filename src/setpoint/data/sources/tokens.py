"""Tokens that were made elsewhere: `.npy`, nanoGPT's `.bin`, Megatron's `.bin` and `.idx`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from setpoint.config import SetpointError
from setpoint.data.document import Document
from setpoint.data.sources.config import Tokens
from setpoint.data.sources.files import File, inputs_of, named_errors
from setpoint.data.sources.token_files import (
    WrongIds,
    beyond_vocabulary,
    check_npy,
    find_wrong_ids,
    layout_of,
    prepared_folders,
    prepared_inputs,
    token_files,
)
from setpoint.data.store import stored_documents
from setpoint.data.tokenizers.tokenizer import Tokenizer

Ids = npt.NDArray[np.integer[Any]]
CHUNK = 1 << 22  # tokens that are looked at, at a time


class TokensSource:
    """Documents from files of token ids, which are mapped into memory.

    Arguments:
        where: the path of `config` in the job, for messages.
    """

    def __init__(self, config: Tokens, *, where: str = "data.sources") -> None:
        self.config = config
        self.where = where

    def tokenized(self, tokenizer: Tokenizer) -> Iterator[Document]:
        """The documents: as an index says, or divided at separators, or a file each.

        Prepared data has its own.

        Separators at the ends of a document are left out, as they stand between documents anyway.
        Without an id that separates, nothing is divided or left out.

        Raises:
            SetpointError: a file is missing, damaged, empty or of another dtype, or holds an id
                that is none of the tokenizer's; with file and position.
        """
        for folder in prepared_folders(self.config, f"{self.where}.paths"):
            try:
                yield from stored_documents(folder, self.config.name, tokenizer)
            except SetpointError as error:
                raise SetpointError(f"{self.where}.paths: {error}") from error
        separator = self.config.separator
        if separator is None and getattr(tokenizer, "separates", True):
            separator = tokenizer.separator
        for name, file in self._files().items():
            ids, bounds = self._mapped(Path(str(file)), tokenizer.vocab_size)
            found = self._separators(ids, separator, tokenizer, file)
            if separator is None:
                parts = list(pairwise(bounds or (0, len(ids))))
            elif bounds is not None:
                parts = [_bare(ids, *ends, separator) for ends in pairwise(bounds)]
            else:
                ends = [-1, *found, len(ids)]
                parts = [(start + 1, end) for start, end in pairwise(ends)]
            parts = [(start, end) for start, end in parts if start < end]
            if not parts:
                raise SetpointError(
                    f"{self.where}.paths: {file} holds no tokens but separators.\n"
                    "Valid: a file with tokens; leave this one out."
                )
            for number, (start, end) in enumerate(parts):
                numbered = f"{name}#{number:06d}" if len(parts) > 1 else name
                yield Document(numbered, tokens=ids[start:end])

    def inputs(self) -> Iterator[str]:
        """See `inputs_of`."""
        yield from prepared_inputs(self.config, f"{self.where}.paths")
        yield from inputs_of(self._files())

    def _files(self) -> dict[str, File]:
        return token_files(self.config, f"{self.where}.paths", fetch=True).checked()

    def _mapped(self, path: Path, size: int) -> tuple[Ids, Sequence[int] | None]:
        """Tokens of a file, and where its documents begin, where it says."""
        dtype = self.config.token_dtype
        with named_errors(path, f"{self.where}.paths"):
            if path.suffix == ".npy":
                check_npy(path, dtype, self.where)
                ids, bounds = np.load(path, mmap_mode="r", allow_pickle=False), None
            else:
                layout = layout_of(path, dtype, self.where)
                bounds, kind = layout.documents, np.dtype(layout.dtype).newbyteorder("<")
                shape = (layout.count,)
                if not layout.count:
                    raise SetpointError(
                        f"{self.where}.paths: {path} is empty.\nValid: a file with tokens."
                    )
                ids = np.memmap(path, kind, mode="r", offset=layout.offset, shape=shape)
            if wrong := find_wrong_ids(path, dtype, self.where, size):
                raise self._error(wrong)
        return cast(Ids, np.asarray(ids)), bounds

    def _separators(
        self, ids: Ids, separator: int | None, tokenizer: Tokenizer, file: object
    ) -> list[int]:
        """Where separators stand; each token is looked at on the way."""
        found: list[int] = []
        for start in range(0, len(ids), CHUNK):
            piece = ids[start : start + CHUNK]
            wrong = np.flatnonzero((piece < 0) | (piece >= tokenizer.vocab_size))
            if len(wrong):
                at = int(wrong[0])
                token, position = int(piece[at]), start + at
                raise self._error(beyond_vocabulary(file, token, position, tokenizer.vocab_size))
            if separator is not None:
                found += (np.flatnonzero(piece == separator) + start).tolist()
        return found

    def _error(self, wrong: WrongIds) -> SetpointError:
        return SetpointError(f"{self.where}.{wrong.field}: {wrong.message}.\nValid: {wrong.valid}")


def _bare(ids: Ids, start: int, end: int, separator: int) -> tuple[int, int]:
    """The ends of a document without separators at them."""
    while start < end and ids[start] == separator:
        start += 1
    while start < end and ids[end - 1] == separator:
        end -= 1
    return start, end
