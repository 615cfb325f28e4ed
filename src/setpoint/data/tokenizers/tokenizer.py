"""From bytes to token ids and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from setpoint.config import SetpointError
from setpoint.data.tokenizers.chat import Encoded, Piece, encode_bytes
from setpoint.data.tokenizers.config import Bytes
from setpoint.data.tokenizers.vocabulary import BYTES_CHAT, ChatFacts

TokenArray = npt.NDArray[np.unsignedinteger[Any]]
"""Token ids in the smallest unsigned type that holds the vocabulary."""


class Tokenizer(Protocol):
    """What the corpus, the loader and the generator need of a tokenizer."""

    @property
    def name(self) -> str:
        """What identifies the mapping; part of the corpus digest."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of ids, the separator included."""
        ...

    @property
    def separator(self) -> int:
        """The id which stands before, between and after documents."""
        ...

    @property
    def opening(self) -> tuple[int, ...]:
        """What the tokenizer itself puts before a text that a model is to go on with."""
        ...

    @property
    def token_bytes(self) -> npt.NDArray[np.int64]:
        """(V,) how many bytes each id stands for; 0 for the separator."""
        ...

    def encode(self, data: bytes) -> TokenArray:
        """Token ids of a text, without separators."""
        ...

    def decode(self, tokens: Sequence[int] | npt.NDArray[np.integer[Any]]) -> bytes:
        """The bytes that ids stand for; separators stand for none."""
        ...


class ChatTokenizer(Tokenizer, Protocol):
    """A tokenizer that conversations can be encoded with."""

    @property
    def chat(self) -> ChatFacts:
        """What it knows of conversations."""
        ...

    def encode_pieces(self, pieces: Sequence[Piece]) -> Encoded:
        """Encode pieces of one text as the whole of it, with control tokens where pieces are."""
        ...


class ByteTokenizer:
    """Every byte is its own id, and 256 separates documents.

    Arguments:
        config: the section; it has no fields.
    """

    chat = BYTES_CHAT
    takes_pieces = True
    """Whether the tokens of a text are those of its pieces, wherever it is cut."""

    def __init__(self, config: Bytes | None = None) -> None:
        self.name = "bytes"
        self.vocab_size = 257
        self.separator = 256
        self.opening = (self.separator,)
        self.token_bytes = np.ones(self.vocab_size, dtype=np.int64)
        self.token_bytes[self.separator] = 0

    def encode(self, data: bytes) -> TokenArray:
        """Token ids of a text."""
        return np.frombuffer(data, dtype=np.uint8).astype(np.uint16)

    def decode(self, tokens: Sequence[int] | npt.NDArray[np.integer[Any]]) -> bytes:
        """The bytes that ids stand for.

        Arguments:
            tokens: (T,) ids; separators are left out.

        Returns:
            the text; part of a UTF-8 sequence may be cut at the ends.

        Raises:
            SetpointError: an id is not in the vocabulary.
        """
        ids = np.asarray(tokens, dtype=np.int64)
        wrong = ids[(ids < 0) | (ids >= self.vocab_size)]
        if wrong.size:
            raise SetpointError(
                f"tokenizer: {int(wrong[0])} is not a token of the type 'bytes'.\n"
                f"Valid: 0 to {self.vocab_size - 1}, where {self.separator} separates documents."
            )
        return ids[ids != self.separator].astype(np.uint8).tobytes()

    def encode_pieces(self, pieces: Sequence[Piece]) -> Encoded:
        """Token ids of a text in pieces, of which some are the separator."""
        return encode_bytes(pieces, self.separator)
