"""Files of a Hugging Face tokenizer, read as JSON without building the tokenizer."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from setpoint.config import MissingPathError, Problem, SetpointError
from setpoint.data.config import (
    BYTES_VOCABULARY,
    Bytes,
    HuggingFace,
    TokenIds,
    TokenizerConfig,
)
from setpoint.files.tensor_header import lfs_pointer
from setpoint.hub.fetch import fetch_files, split_hub_id

TOKENIZER = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
EXTRA = "'setpoint[huggingface]'"


class TextPiece(NamedTuple):
    """Part of a text: a control token, or plain text."""

    text: str
    control: bool = False


class ChatFacts(NamedTuple):
    """Tokens and chat templates of a tokenizer.

    Arguments:
        title: its name in messages.
        tokens: ids of all tokens, by text.
        controls: the control tokens.
        variables: tokens named in its settings, such as `eos_token`.
        templates: chat templates by name, with `default` for the default one.
    """

    title: str
    tokens: Mapping[str, int]
    controls: Sequence[str]
    variables: Mapping[str, str]
    templates: Mapping[str, str]


_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_END = "<|endoftext|>"
BYTES_CHAT = ChatFacts(
    "the tokenizer 'bytes'", {_END: BYTES_VOCABULARY - 1}, (_END,), {"eos_token": _END}, {}
)


class Vocabulary:
    """Vocabulary, settings and chat templates of a tokenizer.

    Arguments:
        text: content of `tokenizer.json`.
        settings: content of `tokenizer_config.json`; empty if there is no file.
        template: content of `chat_template.jinja`; None if there is no file.

    Raises:
        SetpointError: `tokenizer.json` is not a tokenizer.
    """

    def __init__(
        self, where: str, text: str, settings: Mapping[str, Any], template: str | None = None
    ) -> None:
        self.where = where
        self.text = text
        self.settings = settings
        self.template = template
        content = _mapping(text, f"{where}: {TOKENIZER}")
        added = content.get("added_tokens", [])
        try:
            vocab = content["model"]["vocab"]
            if isinstance(vocab, list):  # of Unigram models: pairs, whose place is the id
                ids = {str(piece[0]): place for place, piece in enumerate(vocab)}
            else:
                ids = {str(token): int(number) for token, number in vocab.items()}
            ids.update({str(entry["content"]): int(entry["id"]) for entry in added})
            self.special = {str(entry["content"]) for entry in added if entry.get("special")}
        except (LookupError, TypeError, AttributeError, ValueError):
            raise SetpointError(
                f"{where}: {TOKENIZER} has no vocabulary (model.vocab and added_tokens)"
            ) from None
        if not ids:
            raise SetpointError(f"{where}: {TOKENIZER} has an empty vocabulary")
        self.json = content
        self.ids = ids

    @cached_property
    def named(self) -> dict[str, str]:
        """Tokens named in the settings, such as `eos_token`."""
        names: dict[str, str] = {}
        for name, token in self.settings.items():
            text = token.get("content") if isinstance(token, Mapping) else token
            if name.endswith("_token") and isinstance(text, str) and text in self.ids:
                names[name] = text
        return names

    @property
    def templates(self) -> dict[str, str]:
        """Chat templates by name, with `default` for the default one."""
        setting = self.settings.get("chat_template")
        pairs = setting if isinstance(setting, list) else []
        templates = {str(pair["name"]): str(pair["template"]) for pair in pairs}
        default = setting if self.template is None else self.template
        return {**templates, "default": default} if isinstance(default, str) else templates

    @property
    def size(self) -> int:
        """One more than the highest id."""
        return max(self.ids.values()) + 1

    def with_tokens(self, added: Sequence[str]) -> Vocabulary:
        """The vocabulary with missing control tokens added after its last id."""
        new = [token for token in added if token not in self.ids]
        if not new:
            return self
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        entries = [
            {"id": number, "content": token, **flags, "special": True}
            for number, token in enumerate(new, self.size)
        ]
        grown = {**self.json, "added_tokens": [*(self.json.get("added_tokens") or ()), *entries]}
        text = json.dumps(grown, ensure_ascii=False, indent=2)
        return Vocabulary(self.where, text, self.settings, self.template)

    def require_new(self, added: Sequence[str]) -> None:
        """Refuse to add existing tokens.

        Raises:
            SetpointError: a token exists already; names its id.
        """
        for token in added:
            if token in self.ids:
                raise SetpointError(
                    f"tokenizer.added: {token!r} is already a token of {self.where}, with id "
                    f"{self.ids[token]}.\nValid: tokens that it does not have."
                )

    def separator(self, token: str | None) -> str:
        """The token that separates documents.

        Arguments:
            token: text of the token; None: the end-of-text token in the settings, or else the
                beginning-of-text token.

        Raises:
            SetpointError: there is no such token, or the settings name none.
        """
        if token is not None:
            if token in self.ids:
                return token
            raise SetpointError(
                f"tokenizer.separator: {token!r} is not in {self.where}.\nValid: {self._choices()}."
            )
        for name in ("eos_token", "bos_token"):
            if name in self.named:
                return self.named[name]
        raise SetpointError(
            f"tokenizer.separator: null needs an eos_token or a bos_token, and {SETTINGS} of "
            f"{self.where} defines neither.\nValid: {self._choices()}."
        )

    def name(self, separator: str | None) -> str:
        """Name of the tokenizer in prepared data: its hash and the id of the separator.

        Arguments:
            separator: see `separator`.
        """
        digest = hashlib.sha256(self.text.encode()).hexdigest()
        return f"huggingface {digest} {self.ids[self.separator(separator)]}"

    def chat(self, separator: str) -> ChatFacts:
        """Control tokens and chat templates.

        Arguments:
            separator: token between documents, which ends answers if there is no eos_token.
        """
        added = {str(entry["content"]) for entry in self.json.get("added_tokens", [])}
        # Byte-fallback tokens are spelled like this, and are not control tokens.
        bytes_of = {entry for entry in self.special if _BYTE.fullmatch(entry)}
        controls = sorted((self.special - bytes_of) | ({separator} & added))
        variables = {"eos_token": separator, **self.named}
        return ChatFacts(
            f"the tokenizer {self.where}", self.ids, controls, variables, self.templates
        )

    def _choices(self) -> str:
        special = sorted(self.special, key=lambda token: self.ids[token])
        shown = ", ".join(special[:6]) + (" ..." if len(special) > 6 else "")
        return shown or "any token of its vocabulary"


def read_vocabulary(path: str, added: Sequence[str] = ()) -> Vocabulary:
    """Read the files of a tokenizer from a directory or the hub.

    Arguments:
        path: a directory with `tokenizer.json`, that file itself, or the id of a repository.
        added: see `Vocabulary.with_tokens`.

    Raises:
        SetpointError: the files are missing or invalid.
    """
    file = find_tokenizer(path)
    settings_file = file.with_name(SETTINGS)
    settings = _mapping(_read(settings_file), str(settings_file)) if settings_file.is_file() else {}
    chat = file.with_name(TEMPLATE)
    vocabulary = Vocabulary(path, _read(file), settings, _read(chat) if chat.is_file() else None)
    return vocabulary.with_tokens(added)


def vocabulary_size(tokenizer: TokenizerConfig) -> int | None:
    """Vocabulary size, without building the tokenizer.

    None for a tokenizer on the hub, a custom one, or files that cannot be read, which another check
    reports.
    """
    if isinstance(tokenizer, Bytes | TokenIds):
        return BYTES_VOCABULARY if isinstance(tokenizer, Bytes) else tokenizer.count
    vocabulary = _vocabulary_of(tokenizer)
    return None if vocabulary is None else vocabulary.size


def tokenizer_name(tokenizer: TokenizerConfig) -> str | None:
    """`Tokenizer.name`, without building the tokenizer; None as for `vocabulary_size`."""
    if isinstance(tokenizer, Bytes):
        return "bytes"
    if isinstance(tokenizer, TokenIds):
        return "ids" if tokenizer.separator is None else f"ids {tokenizer.separator}"
    vocabulary = _vocabulary_of(tokenizer)
    with suppress(SetpointError):
        return vocabulary and vocabulary.name(getattr(tokenizer, "separator", None))
    return None


def chat_facts(tokenizer: TokenizerConfig) -> ChatFacts | None:
    """Control tokens and templates of a tokenizer; None as for `vocabulary_size`."""
    if isinstance(tokenizer, Bytes):
        return BYTES_CHAT
    vocabulary = _vocabulary_of(tokenizer)
    with suppress(SetpointError):
        separator = getattr(tokenizer, "separator", None)
        return vocabulary and vocabulary.chat(vocabulary.separator(separator))
    return None


def _vocabulary_of(tokenizer: TokenizerConfig) -> Vocabulary | None:
    if isinstance(tokenizer, HuggingFace) and os.path.exists(os.path.expanduser(tokenizer.path)):
        with suppress(SetpointError):
            return read_vocabulary(tokenizer.path, tokenizer.added)
    return None


def beyond_vocabulary(place: object, token: int, position: int, size: int) -> str:
    """Message about an id outside the vocabulary."""
    return (
        f"{place} contains the token {token} at position {position:,}, but the tokenizer "
        f"has {size:,} tokens"
    )


def find_tokenizer(path: str) -> Path:
    """Path of `tokenizer.json`, which is downloaded if it is in a hub repository.

    Raises:
        SetpointError: it does not exist, or cannot be downloaded.
    """
    local = Path(os.path.expanduser(path))
    if local.is_file():
        return local
    if (local / TOKENIZER).is_file():
        return local / TOKENIZER
    if local.is_dir():
        raise SetpointError(
            f"tokenizer.path: {path} has no {TOKENIZER}.\nValid: a directory with one; "
            f"`tokenizer.save_pretrained(...)` of a fast tokenizer of transformers writes it."
        )
    if split_hub_id(path) is None:
        raise MissingPathError(
            f"tokenizer.path: {path} does not exist.\n"
            f"Valid: a directory with {TOKENIZER}, that file, or a hub id such as Qwen/Qwen3-0.6B; "
            f"`setpoint tokenizer train` trains one on the data."
        )
    works = f"A directory with {TOKENIZER} works without the hub."
    try:
        fetched = fetch_files(path, (TOKENIZER, SETTINGS, TEMPLATE), instead=works) / TOKENIZER
    except SetpointError as error:
        raise SetpointError(f"tokenizer.path: {error}") from error
    if not fetched.is_file():
        raise SetpointError(f"tokenizer.path: {path} on the hub has no {TOKENIZER}.\n{works}")
    return fetched


def _read(file: Path) -> str:
    try:
        if pointer := lfs_pointer(file):
            raise SetpointError(f"{file} cannot be read: {pointer}")
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SetpointError(f"{file} cannot be read: {reason}") from error


def _mapping(text: str, title: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise SetpointError(f"{title} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise SetpointError(f"{title} holds no JSON object")
    return content


def file_problems(config: HuggingFace) -> Iterator[Problem]:
    """Find missing files, an unknown separator, and added tokens that already exist."""
    # What is on the hub is looked for when the run starts.
    if not config.path or (not os.path.exists(config.path) and split_hub_id(config.path)):
        return
    try:
        vocabulary = read_vocabulary(config.path)
        vocabulary.require_new(config.added)
        vocabulary.with_tokens(config.added).separator(config.separator)
    except SetpointError as error:
        name = str(error).partition(": ")[0]
        if name.startswith("tokenizer."):
            yield Problem.of(error, name.removeprefix("tokenizer."), name)
        else:
            yield Problem.of(error, "path")
