"""From bytes to token ids and back."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from setpoint.config import SetpointError
from setpoint.data.config import Bytes
from setpoint.data.vocabulary import (
    BYTES_CHAT,
    EXTRA,
    ChatFacts,
    TextPiece,
    Vocabulary,
    read_vocabulary,
)

if TYPE_CHECKING:
    from setpoint.data.config import HuggingFace as Section
    from setpoint.data.config import TokenIds

TokenArray = npt.NDArray[np.unsignedinteger[Any]]
"""Token ids in the smallest unsigned type that holds the vocabulary."""

# Spelling of control tokens that no text can contain: between Unicode noncharacters.
ALIAS = "\ufdd0{}\ufdd1"


class Encoded(NamedTuple):
    """Tokens with their positions in the text.

    Arguments:
        tokens: (T,) ids.
        places: (T, 2) start and stop character of each token.
    """

    tokens: npt.NDArray[np.integer[Any]]
    places: npt.NDArray[np.int64]


class Tokenizer(Protocol):
    """Interface of tokenizers."""

    @property
    def name(self) -> str:
        """Identity of the mapping; part of the corpus digest."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of ids, including the separator."""
        ...

    @property
    def separator(self) -> int:
        """The id before, between and after documents."""
        ...

    @property
    def opening(self) -> tuple[int, ...]:
        """Tokens to put before a prompt."""
        ...

    @property
    def token_bytes(self) -> npt.NDArray[np.int64]:
        """(V,) number of bytes of each id; 0 for the separator."""
        ...

    def encode(self, data: bytes) -> TokenArray:
        """Token ids of a text, without separators."""
        ...

    def decode(self, tokens: Sequence[int] | npt.NDArray[np.integer[Any]]) -> bytes:
        """Bytes of (T,) ids, without separators; the ends may be incomplete characters."""
        ...


class ChatTokenizer(Tokenizer, Protocol):
    """A tokenizer that can encode conversations."""

    @property
    def chat(self) -> ChatFacts:
        """Control tokens and chat templates."""
        ...

    def encode_pieces(self, pieces: Sequence[TextPiece]) -> Encoded:
        """Encode the pieces of a text as a whole, including control tokens."""
        ...


class _Described:
    vocab_size: int

    def __repr__(self) -> str:
        path = getattr(self, "path", None)
        place = "" if path is None else f"{path!r}, "
        return f"{type(self).__name__}({place}{self.vocab_size} tokens)"


class ByteTokenizer(_Described):
    """A tokenizer with bytes as ids and 256 as separator.

    Arguments:
        config: the section; it has no fields.
    """

    chat = BYTES_CHAT
    takes_pieces = True
    """True if texts can be cut anywhere without changing their tokens."""

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
        """The bytes for ids, without separators.

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

    def encode_pieces(self, pieces: Sequence[TextPiece]) -> Encoded:
        """Token ids of a text in pieces; every control token becomes the separator."""
        tokens: list[TokenArray] = [np.empty(0, np.uint16)]
        places: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
        offset = 0
        for text, control in pieces:
            if control:
                tokens.append(np.array([self.separator], np.uint16))
                places.append(np.array([offset], np.int64))
            else:
                tokens.append(self.encode(text.encode()))
                # All bytes of a character but its first are 10xxxxxx.
                starts = (tokens[-1] & 0xC0) != 0x80
                places.append(offset - 1 + np.cumsum(starts, dtype=np.int64))
            offset += len(text)
        first = np.concatenate(places)
        # A control token is as long as its text.
        after = np.append(first[1:], offset)[: len(first)]
        last = np.where(after > first, after, first + 1)
        return Encoded(np.concatenate(tokens), np.stack([first, last], axis=1))


class IdTokenizer(_Described):
    """Tokenizer for data that consists of token ids: `tokenizer.Tokenizer`.

    Attributes:
        separates: whether an id separates documents. Otherwise documents are complete, and id 0
            between them is neither input nor target.
    """

    def __init__(self, config: TokenIds) -> None:
        self.vocab_size = config.count
        self.separates = config.separator is not None
        self.separator = config.separator or 0
        self.name = f"ids {config.separator}" if self.separates else "ids"
        self.opening = (self.separator,) if self.separates else ()
        # A token counts as one byte, so bits per byte are bits per token.
        self.token_bytes = np.ones(self.vocab_size, np.int64)
        if self.separates:
            self.token_bytes[self.separator] = 0

    def encode(self, data: bytes) -> TokenArray:
        """Refuse to encode text.

        Raises:
            SetpointError: always.
        """
        raise SetpointError(
            "tokenizer: type = ids cannot tokenize text.\n"
            "Valid: data of token ids; the tokenizer that made them."
        )

    def decode(self, tokens: Sequence[int] | npt.NDArray[np.integer[Any]]) -> bytes:
        """The ids in decimal, each followed by a space, without separators."""
        ids = np.asarray(tokens, np.int64).tolist()
        kept = (id for id in ids if not (self.separates and id == self.separator))
        return "".join(f"{id} " for id in kept).encode()


SPACE = "\u2581"  # what SentencePiece writes for a space
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class HuggingFaceTokenizer(_Described):
    """A tokenizer from `tokenizer.json`.

    Special tokens have no bytes, and their spelling inside a document is plain text. Bytes are
    counted after normalization (NFC in Qwen's tokenizer, a leading space in Llama 2's).

    Arguments:
        config: the section, with the path of the files and the separator.
        directory: folder to read the files from, such as a checkpoint; None: `config.path`.

    Raises:
        SetpointError: the files cannot be read, the package is missing, or the bytes of tokens are
            unknown, as with WordPiece, which drops spaces.
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
        # No truncation, and <|endoftext|> in a document is plain text.
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
            SetpointError: the text is not UTF-8; names the position.
        """
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise SetpointError(
                f"tokenizer.type = huggingface accepts only UTF-8, but byte {error.start} is "
                f"{data[error.start]:#04x}, which is invalid.\nValid: text in UTF-8, or "
                f"--tokenizer bytes, which accepts any bytes."
            ) from None
        if os.environ.get("TOKENIZERS_PARALLELISM") == "false":
            # Faster without the offsets of tokens. Where threads are allowed this would start them,
            # and the library then warns at every fork.
            ids = self.tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        else:
            ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        return np.array(ids, dtype=np.min_scalar_type(self.vocab_size - 1))

    def decode(self, tokens: Sequence[int] | npt.NDArray[np.integer[Any]]) -> bytes:
        """Bytes of ids; special tokens have none.

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

    def encode_pieces(self, pieces: Sequence[TextPiece]) -> Encoded:
        """Token ids of a text in pieces, some of which are control tokens."""
        return self._chat_encoder.encode(pieces)

    @cached_property
    def _chat_encoder(self) -> ChatEncoder:
        return ChatEncoder(read_vocabulary(self.path, self.added), self.chat)

    def _opening(self) -> tuple[int, ...]:
        """Tokens that the tokenizer adds before a text, such as a beginning-of-text token."""
        plain = self.tokenizer.encode("a", add_special_tokens=False).ids
        full = self.tokenizer.encode("a", add_special_tokens=True).ids
        places = range(len(full) - len(plain) + 1)
        start = next((p for p in places if full[p : p + len(plain)] == plain), 0)
        return tuple(full[:start])


def _pieces(vocabulary: Vocabulary, separator: int) -> list[bytes]:
    """(V,) bytes of each token; empty for special tokens, the separator, and unused ids."""
    kinds = set(_types(vocabulary.json))
    model = vocabulary.json["model"]
    pieces = [b""] * vocabulary.size
    added = {str(entry["content"]) for entry in vocabulary.json.get("added_tokens", [])}
    if "ByteLevel" in kinds:
        read = _byte_level
    elif model.get("byte_fallback") or "Metaspace" in kinds or SPACE in vocabulary.text:

        def read(token: str) -> bytes:
            return token.replace(SPACE, " ").encode()
    else:
        raise SetpointError(
            f"tokenizer.path: {vocabulary.where} is of type {model.get('type')}, which does "
            f"not keep spaces in text, so its tokens do not correspond to exact bytes.\n"
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
    """Types of the components of a tokenizer, without the vocabulary."""
    if isinstance(part, Mapping):
        if isinstance(part.get("type"), str):
            yield part["type"]
        for name, value in part.items():
            if name not in ("vocab", "merges", "added_tokens"):
                yield from _types(value)
    elif isinstance(part, list):
        for item in part:
            yield from _types(item)


def _byte_level(token: str) -> bytes:
    # A token that was added by hand may be plain text.
    if all(char in _BYTE_OF for char in token):
        return bytes(_BYTE_OF[char] for char in token)
    return token.encode()


# Byte alphabet of byte-level BPE (GPT-2, Radford et al., 2019): printable Latin-1 characters stand
# for themselves, others are mapped from U+0100 on.
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(0x100 + place): byte
    for place, byte in enumerate(byte for byte in range(256) if byte not in _PRINTABLE)
}


class ChatEncoder:
    """A Hugging Face tokenizer with control tokens renamed so that no text can contain them.

    A conversation is encoded as a whole, with all effects at boundaries (normalization, leading and
    stripped spaces), but message text never becomes a control token.

    Raises:
        SetpointError: renaming changes ids.
    """

    def __init__(self, vocabulary: Vocabulary, facts: ChatFacts) -> None:
        from tokenizers import Tokenizer

        self.aliases = {text: ALIAS.format(i) for i, text in enumerate(facts.controls)}
        self.tokenizer = Tokenizer.from_str(_respelled(vocabulary.text, self.aliases))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        for text, alias in self.aliases.items():
            if self.tokenizer.token_to_id(alias) != facts.tokens[text]:
                raise SetpointError(
                    f"tokenizer.path: the control token {text} of {vocabulary.where} cannot be "
                    f"distinguished from text, so conversations cannot be encoded with it"
                )

    def encode(self, pieces: Sequence[TextPiece]) -> Encoded:
        """Encode a text; positions refer to the text as spelled in `pieces`."""
        spelled = "".join(self.aliases[text] if control else text for text, control in pieces)
        encoding = self.tokenizer.encode(spelled, add_special_tokens=False)
        places = np.array(encoding.offsets, np.int64).reshape(-1, 2)
        # Where each piece begins as it is given and as it is spelled here.
        given = np.cumsum([0, *(len(piece.text) for piece in pieces)])
        offsets = np.cumsum(
            [0, *(len(self.aliases[text]) if control else len(text) for text, control in pieces)]
        )
        first = np.maximum(np.searchsorted(offsets, places[:, 0], "right") - 1, 0)
        last = np.maximum(np.searchsorted(offsets, places[:, 1], "left") - 1, 0)
        controls = np.array([*(piece.control for piece in pieces), False])
        # A control token is whole in one piece, of which its end is that of the piece.
        begins = given[first] + np.where(controls[first], 0, places[:, 0] - offsets[first])
        ends = np.where(
            controls[last],
            given[np.minimum(last + 1, len(given) - 1)],
            given[last] + places[:, 1] - offsets[last],
        )
        return Encoded(np.array(encoding.ids, np.int64), np.stack([begins, ends], axis=1))


def _respelled(text: str, aliases: Mapping[str, str]) -> str:
    """`tokenizer.json` with renamed control tokens and without post-processing.

    Post-processing would add tokens and remove spaces from the offsets.
    """
    import json

    content = json.loads(text)
    content["post_processor"] = content["truncation"] = content["padding"] = None
    for entry in content.get("added_tokens", []):
        entry["content"] = aliases.get(entry["content"], entry["content"])
    model = content["model"]
    vocab = model["vocab"]
    if isinstance(vocab, list):
        model["vocab"] = [[aliases.get(piece[0], piece[0]), *piece[1:]] for piece in vocab]
    else:
        model["vocab"] = {aliases.get(token, token): number for token, number in vocab.items()}
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = aliases.get(model["unk_token"], model["unk_token"])
    return json.dumps(content, ensure_ascii=False)
