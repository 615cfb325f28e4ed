"""Data sources: one variant per kind of source.

Nothing here imports numpy or torch: `setpoint check` reads this file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from math import inf
from typing import ClassVar, Literal

from setpoint.config import IDENTITY, Config, Problem, Rule, check, field

# Names are parts of document names, which the split hashes: no slash, no space.
NAME = r"[A-Za-z0-9_.\-]+"

NOT_PLAIN = "text-files-hold-records"

Format = Literal["text", "jsonl", "csv", "parquet", "arrow"]


class SourceConfig(Config, role=IDENTITY):
    """Data source of documents."""

    name: str = field(pattern=NAME)
    """Source name: prefix of its documents' names, unique among the sources."""

    weight: float | None = field(
        default=None, ge=0, lt=inf, before=None, also_called=("sampling_ratio", "proportion")
    )
    """Mixture weight: share of the training sequences relative to the other sources; null for all:
    no mixture, each document once per epoch. 0: none, until a phase gives it some."""

    epochs: float | None = field(default=None, gt=0, lt=inf, before=None)
    """Epoch limit in a mixture: passes over the source after which the others share its place;
    null: no limit."""

    sized_by: ClassVar[str] = ""
    """`module:function` that `most_tokens` calls with the section; empty: the size is unknown."""

    def most_tokens(self) -> int | None:
        """Upper bound of the source's tokens, where a token is at least a byte of text.

        Nothing is read for it. None: unknown.
        """
        module, _, name = self.sized_by.partition(":")
        return getattr(import_module(module), name)(self) if module else None


def unmixed_problems(sources: Sequence[SourceConfig], path: str) -> Iterator[Problem]:
    """Find weights of sources that are read whole, since they are evaluated on."""
    for index, source in enumerate(sources):
        for name in ("weight", "epochs"):
            if getattr(source, name) is not None:
                yield Problem(
                    f"{path}.{index}.{name}",
                    "is for a mixture to train on, and validation data is read whole",
                    valid=("null",),
                )


class Stdlib(SourceConfig, type="stdlib", owner="setpoint.data.sources.stdlib:StdlibSource"):
    """The Python standard library's own source files, without tests: about 12 MB everywhere."""

    sized_by = "setpoint.data.sources.stdlib:most_tokens"

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
        Rule("setpoint.data.sources.formats:file_problems", ("paths", "format"),
             "Whether the paths lead to files that can be read here", needs="files"),
        Rule("setpoint.data.sources.formats:record_files", ("paths", "format"),
             "Whether files of text hold text", needs="files",
             cautions={NOT_PLAIN: "files read as plain text hold records"}),
        Rule("setpoint.data.sources.formats:field_is_dead", ("field", "format", "paths"),
             "Whether any file has fields", dead=("field",)),
        Rule("setpoint.data.sources.formats:separator_is_dead", ("separator", "format", "paths"),
             "Whether any file is plain text", dead=("separator",)),
    ),
):  # fmt: skip
    """Your own texts: plain text in UTF-8, or a field of JSON Lines, CSV, Parquet or Arrow rows."""

    sized_by = "setpoint.data.sources.formats:most_tokens"

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
    """Files, folders, globs and URLs (s3://, gs://, abfs://, https://); `**` matches any folders:
    "corpus/**/*.md". Relative ones start at the working directory."""

    separator: str | None = None
    """Document separator: text that divides a file of plain text into documents, such as "\\n\\n";
    unset: a file is a document."""

    format: Format | None = field(default=None, before=None, also_called=("ds_type", "file_type"))
    """File format; null: by each file's suffix, .jsonl, .ndjson, .csv, .tsv, .parquet, .arrow,
    .feather, and text for any other. A .gz, .bz2, .xz or .zst after it is decompressed."""

    # The last one: from here on `field` is this.
    field: str = field(
        default="text",
        before="text",
        also_called=("text_field", "text_column", "content_field", "hf_dataset_text_field"),
    )
    """Field that holds the text, in files of records: a column, or a key, dotted for what is
    nested: "meta.text"."""

    @check
    def _check_paths(self) -> Iterator[Problem]:
        yield from _path_problems(self.paths, "notes.txt", "text/*.md")

    @check
    def _check_separator(self) -> Iterator[Problem]:
        if self.separator == "":
            yield Problem("separator", "is empty, and would not divide anything", valid=("null",))

    @check
    def _check_field(self) -> Iterator[Problem]:
        if not self.field:
            yield Problem("field", "is empty", valid=("text", "meta.text"))


class Conversations(
    SourceConfig,
    type="conversations",
    owner="setpoint.data.sources.conversations:ConversationsSource",
    rules=(
        Rule("setpoint.data.sources.formats:conversation_problems", ("paths",),
             "Whether the paths lead to files that can be read here", needs="files"),
    ),
):  # fmt: skip
    """Conversations, one a row, written out by a chat template, with the loss on the answers."""

    name: str = field(default="conversations", pattern=NAME)
    """Source name: prefix of its documents' names, unique among the sources."""

    paths: tuple[str, ...] = field()
    """Files, folders, globs and URLs of JSON Lines, CSV, Parquet or Arrow, as in text. A row has
    `messages` (role, content, tool_calls), `conversations` (from, value), `prompt` and
    `completion`, `instruction` and `output`, or `input_ids` and `labels`."""

    template: str | None = field(
        default=None, also_called=("chat_template", "prompt_template", "chat_template_path")
    )
    """Chat template: plain, alpaca, chatml or llama3, another of the tokenizer's by its name, or a
    Jinja file; null: the tokenizer's own."""

    loss_on: Literal["answers", "last_answer", "all"] = "answers"
    """Tokens that are trained on. answers: those of the assistant's messages with their end of
    turn; last_answer: the last of these; all: every token."""

    untrained: Literal["error", "drop"] = "error"
    """Rows in which no token is trained on. drop: they are left out."""

    @check
    def _check_paths(self) -> Iterator[Problem]:
        yield from _path_problems(self.paths, "chats.jsonl", "chats/*.jsonl")


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

    def most_tokens(self) -> int:
        """See `SourceConfig.most_tokens`."""
        return self.documents * self.length


def _path_problems(paths: tuple[str, ...], *valid: str) -> Iterator[Problem]:
    if not paths:
        yield Problem("paths", "no path, so no file", valid=tuple(f'["{each}"]' for each in valid))
    for index, path in enumerate(paths):
        if not path:
            yield Problem(f"paths.{index}", "is empty", valid=valid)
