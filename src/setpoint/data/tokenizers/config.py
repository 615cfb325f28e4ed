"""The section `tokenizer`: one variant per tokenizer.

This file imports neither numpy nor torch, because `setpoint check` reads it.
"""

from __future__ import annotations

from collections.abc import Iterator

from setpoint.config import IDENTITY, Config, Invalid, Problem, Rule, derive, derived, field, rule

# 256 bytes and the separator; the tokenizer itself needs numpy. A test compares the two.
BYTES_VOCABULARY = 257


class TokenizerConfig(Config, role=IDENTITY):
    """Tokenizer, which turns text into token ids."""


class Bytes(
    TokenizerConfig, type="bytes", owner="setpoint.data.tokenizers.tokenizer:ByteTokenizer"
):
    """Each byte is a token, and token 256 separates documents: a vocabulary of 257."""


class TokenIds(TokenizerConfig, type="ids", owner="setpoint.data.tokenizers.tokenizer:IdTokenizer"):
    """No tokenizer: the data holds only token ids, in token files or rows of input_ids."""

    count: int = derived(ge=1)
    """Number of token ids, starting at 0. Default: model.vocab_size."""

    separator: int | None = field(default=None, ge=0)
    """Separator token id, which separates documents and splits files without .idx; null: none, a
    file is one document."""

    @derive("count")
    def _derive_count(self) -> int:
        raise Invalid("must be set, or model.vocab_size must be: it is the number of token ids")

    @rule
    def _check_separator(self) -> Iterator[Problem]:
        if self.separator is not None and self.separator >= self.count:
            yield Problem(
                "separator",
                f"is not an id of a vocabulary of {self.count:,}",
                valid=("null", f"0 to {self.count - 1}"),
            )


class HuggingFace(
    TokenizerConfig,
    type="huggingface",
    owner="setpoint.data.tokenizers.tokenizer:HuggingFaceTokenizer",
    rules=(
        Rule("setpoint.data.tokenizers.vocabulary:file_problems",
             "Tokenizer files that are missing, without a separator or with added tokens",
             needs="files"),
    ),
):  # fmt: skip
    """Tokenizer in Hugging Face's format, byte-level BPE or SentencePiece, for text in UTF-8."""

    path: str
    """Tokenizer: a directory with tokenizer.json, the file itself, or a Hugging Face Hub repository
    id. Its content is part of the data's digest."""

    separator: str | None = None
    """Document separator token, before, between and after documents; null: the tokenizer's
    end-of-text token, else its beginning-of-text token."""

    added: tuple[str, ...] = ()
    """Control tokens added to the vocabulary, with ids after its last; chat templates can use them.
    The model needs rows for them: see model.vocab_size."""

    @rule
    def _check_added(self) -> Iterator[Problem]:
        for index, token in enumerate(self.added):
            if not token:
                yield Problem(f"added.{index}", "is empty", hint="Give the text of a token.")
            elif token in self.added[:index]:
                yield Problem(f"added.{index}", f"is added.{self.added.index(token)} again")

    @rule
    def _check_path(self) -> Iterator[Problem]:
        if not self.path:
            yield Problem("path", "is empty", valid=("a directory", "Qwen/Qwen3-0.6B"))
