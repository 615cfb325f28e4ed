"""No tokenizer: data that holds token ids, of which nothing is known but how many there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from setpoint.config import SetpointError
from setpoint.data.tokenizers.tokenizer import TokenArray

if TYPE_CHECKING:
    from setpoint.data.tokenizers.config import TokenIds


class IdTokenizer:
    """Stands in the place of a tokenizer where the data is ids: `tokenizer.Tokenizer`.

    Attributes:
        separates: whether an id separates documents. Where none does, documents are complete, and
            id 0 lies between them without being read or predicted.
    """

    def __init__(self, config: TokenIds) -> None:
        self.vocab_size = config.count
        self.separates = config.separator is not None
        self.separator = config.separator or 0
        self.name = f"ids {config.separator}" if self.separates else "ids"
        self.opening = (self.separator,) if self.separates else ()
        # A token counts as a byte, so that bits per byte are bits per token.
        self.token_bytes = np.ones(self.vocab_size, np.int64)
        if self.separates:
            self.token_bytes[self.separator] = 0

    def encode(self, data: bytes) -> TokenArray:
        """Refuse: a text has no ids here.

        Raises:
            SetpointError: always.
        """
        raise SetpointError(
            "tokenizer: type = ids makes no tokens of text.\n"
            "Valid: data of token ids; the tokenizer that made them."
        )

    def decode(self, tokens: Sequence[int] | npt.NDArray[np.integer[Any]]) -> bytes:
        """The ids themselves, in digits with a space behind each; separators are left out."""
        ids = np.asarray(tokens, np.int64).tolist()
        kept = (id for id in ids if not (self.separates and id == self.separator))
        return "".join(f"{id} " for id in kept).encode()
