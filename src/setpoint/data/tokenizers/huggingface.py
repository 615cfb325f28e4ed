"""A tokenizer of the Hugging Face format, with the bytes that each of its tokens stands for."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from setpoint.config import SetpointError
from setpoint.data.tokenizers.chat import ChatEncoder, Encoded, Piece
from setpoint.data.tokenizers.tokenizer import TokenArray
from setpoint.data.tokenizers.vocabulary import EXTRA, Vocabulary, read_vocabulary

if TYPE_CHECKING:
    from setpoint.data.tokenizers.config import HuggingFace as Section

SPACE = "\u2581"  # what SentencePiece writes for a space
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class HuggingFaceTokenizer:
    """A tokenizer from `tokenizer.json`.

    Special tokens stand for no bytes, and the text of one inside a document is text. A token's
    bytes are those of the text as the tokenizer sees it: some change it first (NFC in Qwen's, a
    space in front in Llama 2's), and then the changed text is what is counted.

    Arguments:
        config: the section: where the files are, and which token separates documents.
        directory: where the files are instead, such as a checkpoint that keeps them; None: where
            the section says.

    Raises:
        SetpointError: the files cannot be read, the package is missing, or the bytes of tokens
            cannot be known, as with WordPiece, which drops spaces.
    """

    def __init__(self, config: Section, *, directory: Path | None = None) -> None:
        path = config.path if directory is None else str(directory)
        if directory is None and config.added:
            read_vocabulary(path).require_new(config.added)
        vocabulary = read_vocabulary(path, config.added)
        try:
            from tokenizers import Tokenizer
        except ModuleNotFoundError as error:
            raise SetpointError(
                f"tokenizer.type = huggingface needs the package {error.name!r}: install {EXTRA}"
            ) from None
        try:
            self.tokenizer = Tokenizer.from_str(vocabulary.text)
        except Exception as error:
            raise SetpointError(
                f"tokenizer.path: tokenizer.json of {path} cannot be used: {error}"
            ) from error
        # A document is taken whole, and what it says is text, even where it says <|endoftext|>.
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.tokenizer.encode_special_tokens = True
        self.path, self.added, self.document = path, config.added, vocabulary.text
        self.vocab_size = vocabulary.size
        separator = vocabulary.separator(config.separator)
        self.separator = vocabulary.ids[separator]
        self.chat = vocabulary.chat(separator)
        self.opening = self._opening()
        self.name = vocabulary.name(config.separator)
        self._pieces = _pieces(vocabulary, self.separator)
        lengths = [len(piece) for piece in self._pieces]
        self.token_bytes: npt.NDArray[np.int64] = np.array(lengths, dtype=np.int64)

    def encode(self, data: bytes) -> TokenArray:
        """Token ids of a text.

        Raises:
            SetpointError: it is not UTF-8, with the place.
        """
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise SetpointError(
                f"tokenizer.type = huggingface takes UTF-8, and byte {error.start} is "
                f"{data[error.start]:#04x}, which is none.\nValid: text in UTF-8, or --tokenizer "
                f"bytes, which takes any bytes."
            ) from None
        if os.environ.get("TOKENIZERS_PARALLELISM") == "false":
            # Faster without the offsets of tokens. Where threads are allowed this would start them,
            # and the library then warns at every fork.
            ids = self.tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        else:
            ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        return np.array(ids, dtype=np.min_scalar_type(self.vocab_size - 1))

    def decode(self, tokens: Sequence[int] | npt.NDArray[np.integer[Any]]) -> bytes:
        """The bytes that ids stand for, token by token.

        Arguments:
            tokens: (T,) ids; special tokens stand for nothing.

        Returns:
            the text; part of a UTF-8 sequence may be cut at the ends.

        Raises:
            SetpointError: an id is not in the vocabulary.
        """
        ids = [int(token) for token in tokens]
        wrong = [token for token in ids if not 0 <= token < self.vocab_size]
        if wrong:
            raise SetpointError(
                f"tokenizer: {wrong[0]} is not a token of {self.path}.\n"
                f"Valid: 0 to {self.vocab_size - 1}."
            )
        return b"".join(self._pieces[token] for token in ids)

    def encode_pieces(self, pieces: Sequence[Piece]) -> Encoded:
        """Token ids of a text in pieces, of which some are control tokens."""
        return self._chat_encoder.encode(pieces)

    @cached_property
    def _chat_encoder(self) -> ChatEncoder:
        return ChatEncoder(read_vocabulary(self.path, self.added), self.chat)

    def _opening(self) -> tuple[int, ...]:
        """What the tokenizer itself puts before a text, such as a beginning-of-text token."""
        plain = self.tokenizer.encode("a", add_special_tokens=False).ids
        whole = self.tokenizer.encode("a", add_special_tokens=True).ids
        places = range(len(whole) - len(plain) + 1)
        at = next((p for p in places if whole[p : p + len(plain)] == plain), 0)
        return tuple(whole[:at])


def _pieces(vocabulary: Vocabulary, separator: int) -> list[bytes]:
    """(V,) the bytes of each token; nothing for special tokens, the separator, and gaps."""
    kinds = set(_types(vocabulary.json))
    model = vocabulary.json["model"]
    pieces = [b""] * vocabulary.size
    added = {str(each["content"]) for each in vocabulary.json.get("added_tokens", [])}
    if "ByteLevel" in kinds:
        read = _byte_level
    elif model.get("byte_fallback") or "Metaspace" in kinds or SPACE in vocabulary.text:
        read = _sentence_piece
    else:
        raise SetpointError(
            f"tokenizer.path: {vocabulary.where} is of the kind {model.get('type')}, which does "
            f"not keep the spaces of a text, so its tokens stand for no certain bytes.\n"
            f"Valid: byte-level BPE (GPT-2, Llama 3, Qwen) and SentencePiece with spaces kept "
            f"(Llama 2, Mistral, Gemma)."
        )
    unknown = model.get("unk_token")
    for token, number in vocabulary.ids.items():
        byte = _BYTE.fullmatch(token) if model.get("byte_fallback") else None
        if byte:
            pieces[number] = bytes([int(byte[1], 16)])
        elif token in vocabulary.special or token == unknown or number == separator:
            pieces[number] = b""
        else:
            pieces[number] = token.encode() if token in added else read(token)
    return pieces


def _types(part: object) -> Iterator[str]:
    """The types of the steps of a tokenizer, its vocabulary aside."""
    if isinstance(part, Mapping):
        if isinstance(part.get("type"), str):
            yield part["type"]
        for name, value in part.items():
            if name not in ("vocab", "merges", "added_tokens"):
                yield from _types(value)
    elif isinstance(part, list):
        for item in part:
            yield from _types(item)


def _sentence_piece(token: str) -> bytes:
    return token.replace(SPACE, " ").encode()


def _byte_level(token: str) -> bytes:
    # A token that was added by hand may be plain text.
    if all(sign in _BYTE_OF for sign in token):
        return bytes(_BYTE_OF[sign] for sign in token)
    return token.encode()


def _byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in byte-level BPE (GPT-2, Radford et al., 2019).

    Printable ones of Latin-1 stand for themselves; the others follow from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    signs = {chr(byte): byte for byte in printable}
    signs.update({chr(0x100 + place): byte for place, byte in enumerate(hidden)})
    return signs


_BYTE_OF = _byte_alphabet()
