"""The sections `data` and `tokenizer`: what text to train on, how to split it and into what tokens.

Nothing here imports numpy or torch: `setpoint check` reads this file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from setpoint.config import IDENTITY, Config, Problem, Rule, check, dead, field

# Names are parts of document names, which the split hashes: no slash, no space.
NAME = r"[A-Za-z0-9_.\-]+"

# 256 bytes and the separator; the tokenizer itself needs numpy. A test compares the two.
BYTES_VOCABULARY = 257

NOT_PLAIN = "text-files-hold-records"


class SourceConfig(Config, role=IDENTITY):
    """Data source of documents."""

    name: str = field(pattern=NAME)
    """Source name: prefix of its documents' names, unique among the sources."""


class Stdlib(SourceConfig, type="stdlib", owner="setpoint.data.sources.stdlib:StdlibSource"):
    """The Python standard library's own source files, without tests: about 12 MB everywhere."""

    name: str = field(default="stdlib", pattern=NAME)
    """Source name: prefix of its documents' names, unique among the sources."""

    include: tuple[str, ...] = field(factory=lambda: ("*.py",))
    """Globs of paths inside the library; `*` also matches `/`: "json/*", "asyncio/*.py"."""

    @check
    def _check_include(self) -> Iterator[Problem]:
        if not self.include:
            yield Problem("include", "no pattern, so no file", valid=('["*.py"]', '["json/*"]'))


class Text(
    SourceConfig,
    type="text",
    owner="setpoint.data.sources.text:TextSource",
    rules=(
        Rule("setpoint.data.sources.text:file_problems", ("paths",),
             "Whether the paths lead to files", needs="files"),
        Rule("setpoint.data.sources.formats:record_files", ("paths",),
             "Whether the files are plain text", needs="files",
             cautions={NOT_PLAIN: "files of type = text hold records, not plain text"}),
    ),
):  # fmt: skip
    """Text files of your own, in UTF-8."""

    name: str = field(default="text", pattern=NAME)
    """Source name: prefix of its documents' names, unique among the sources."""

    paths: tuple[str, ...] = field(
        also_called=(
            "train_file",
            "train_files",
            "data_path",
            "data_files",
            "dataset_path",
            "train_data_dir",
        )
    )
    """Files and globs, relative to the working directory; `**` matches any folders:
    "corpus/**/*.md"."""

    separator: str | None = None
    """Document separator: text that divides a file into documents, such as "\\n\\n"; unset: a file
    is a document."""

    @check
    def _check_paths(self) -> Iterator[Problem]:
        if not self.paths:
            yield Problem("paths", "no path, so no file", valid=('["notes.txt"]', '["text/*.md"]'))
        for index, path in enumerate(self.paths):
            if not path:
                yield Problem(f"paths.{index}", "is empty", valid=("notes.txt", "text/*.md"))

    @check
    def _check_separator(self) -> Iterator[Problem]:
        if self.separator == "":
            yield Problem("separator", "is empty, and would not divide anything", valid=("null",))


class Random(SourceConfig, type="random", owner="setpoint.data.sources.random:RandomSource"):
    """Synthetic documents of known entropy, for tests and benchmarks."""

    name: str = field(default="random", pattern=NAME)
    """Source name: prefix of its documents' names, unique among the sources."""

    documents: int = field(default=256, ge=1)
    """Number of documents."""

    length: int = field(default=1024, ge=1)
    """Document length in bytes."""

    pattern: Literal["markov", "uniform"] = "markov"
    """Byte distribution. markov: each byte depends on the one before (first-order Markov chain);
    uniform: independent bytes, which no model can predict."""

    alphabet: int = field(default=64, ge=2, le=256)
    """Alphabet size: number of distinct byte values, starting at the space (32)."""

    seed: int = field(default=0, ge=0)
    """Seed of the text, separate from the job's seed, so that jobs with different seeds can train
    on the same text."""


class Data(Config, role=IDENTITY, owner="setpoint.data.corpus:build_corpora"):
    """Training and validation data."""

    sources: tuple[SourceConfig, ...] = field(
        factory=lambda: (Stdlib(),),
        also_called=("dataset", "dataset_name", "train_dataset"),
    )
    """Training data sources, one or several."""

    held_out: float = field(
        default=0.05,
        ge=0,
        lt=1,
        also_called=(
            "val_set_size",
            "val_size",
            "validation_split",
            "val_split",
            "val_split_fraction",
            "test_size",
            "eval_split_ratio",
        ),
    )
    """Validation split: fraction of documents held out; of a single document, the end of its text.
    0: none. A document's split depends on its name alone, so adding documents moves no other."""

    validation: tuple[SourceConfig, ...] = field(
        default=(),
        before=[],
        also_called=(
            "validation_file",
            "validation_files",
            "val_file",
            "val_files",
            "val_data_path",
            "eval_file",
            "eval_dataset",
            "eval_data_path",
            "validation_dataset",
        ),
    )
    """Validation data sources, used instead of a split of `sources`; all of their documents are
    held out."""

    @dead("held_out")
    def _held_out_is_dead(self) -> str | None:
        return "validation takes its place" if self.validation else None

    @check
    def _check_sources(self) -> Iterator[Problem]:
        if not self.sources:
            yield Problem("sources", "no source, so no text", valid=('[{type = "stdlib"}]',))
        for field_name, sources in (("sources", self.sources), ("validation", self.validation)):
            first: dict[str, int] = {}
            for index, source in enumerate(sources):
                if first.setdefault(source.name, index) != index:
                    yield Problem(
                        f"{field_name}.{index}.name",
                        f"is the name of {field_name}.{first[source.name]} already",
                        valid=(f"{source.name}-{index}",),
                        hint="Documents are named after their source, and names must differ.",
                    )


class TokenizerConfig(Config, role=IDENTITY):
    """Tokenizer: how text becomes token ids."""


class Bytes(TokenizerConfig, type="bytes", owner="setpoint.data.tokenizer:ByteTokenizer"):
    """Each byte is a token, and token 256 separates documents: a vocabulary of 257."""


class HuggingFace(
    TokenizerConfig,
    type="huggingface",
    owner="setpoint.data.huggingface:HuggingFaceTokenizer",
    rules=(
        Rule("setpoint.data.vocabulary:file_problems", ("path", "separator"),
             "Whether the tokenizer's files are there and name the separator", needs="files"),
    ),
):  # fmt: skip
    """Tokenizer in Hugging Face's format, byte-level BPE or SentencePiece, for text in UTF-8."""

    path: str = field(also_called=("tokenizer_name_or_path", "hf_tokenizer", "tokenizer_file"))
    """Tokenizer: a directory with tokenizer.json, the file itself, or a Hugging Face Hub repository
    id. Its content is part of the data's digest."""

    separator: str | None = field(default=None, also_called=("eod_token", "eot_token"))
    """Document separator token, put before, between and after documents; null: the tokenizer's
    end-of-text token, or else its beginning-of-text token."""

    @check
    def _check_path(self) -> Iterator[Problem]:
        if not self.path:
            yield Problem("path", "is empty", valid=("a directory", "Qwen/Qwen3-0.6B"))
