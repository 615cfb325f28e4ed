"""Data sources: one variant per kind of source.

This file imports neither numpy nor torch, because `setpoint check` reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from math import inf
from typing import ClassVar, Literal

from setpoint.config import IDENTITY, RUNTIME, Config, Problem, Rule, Secret, dead, field, rule

# Names are parts of document names, which the split hashes: no slash, no space.
NAME = r"[A-Za-z0-9_.\-]+"

# Fields by which rows of conversations are recognized, and others.
ROW_FIELDS = ("messages", "conversations", "input_ids", "prompt", "completion", "instruction",
              "output", "segments", "text")  # fmt: skip
ROW_OPTIONS = ("input", "system", "history", "tools", "labels", "attention_mask", "position_ids")
MESSAGE_FIELDS = ("role", "content")

NOT_PLAIN = "text-files-hold-records"
PAIR = ("chosen", "rejected")
"""Keys of rows for training on preferences."""
PAIRS_AS_TEXT = "preference-pairs-as-text"

Format = Literal["text", "jsonl", "csv", "parquet", "arrow"]


class Filter(Config, role=IDENTITY):
    """Limits on the documents of a source."""

    shortest: int = field(default=0, ge=0)
    """Shortest document in bytes of text, or in tokens where the source has tokens."""

    longest: int | None = field(default=None, ge=1)
    """Longest document, in the same units; null: no limit."""

    too_long: Literal["drop", "truncate", "error"] = "drop"
    """How to handle documents over the limit: drop, truncate at the limit, or error."""

    shards: int | None = field(default=None, ge=2)
    """Number of parts into which documents are divided by a hash of their names; null: one."""

    shard: int = field(default=0, ge=0)
    """Part to read, from 0."""

    @dead("too_long")
    def _too_long_is_dead(self) -> str | None:
        return "longest is null" if self.longest is None else None

    @dead("shard")
    def _shard_is_dead(self) -> str | None:
        return "there is only one part" if self.shards is None else None

    @rule
    def _check_limits(self) -> Iterator[Problem]:
        if self.longest is not None and self.longest < self.shortest:
            message = f"is less than shortest = {self.shortest}"
            yield Problem("longest", message, valid=(str(self.shortest),))
        if self.shards is not None and self.shard >= self.shards:
            yield Problem(
                "shard",
                f"is not one of the {self.shards} parts",
                valid=(f"0 to {self.shards - 1}",),
            )


class SourceConfig(Config, role=IDENTITY):
    """Data source of documents."""

    name: str = field(pattern=NAME)
    """Source name: prefix of its documents' names, unique among the sources."""

    weight: float | None = field(default=None, ge=0, lt=inf)
    """Mixture weight: share of training sequences relative to other sources. 0: none until a phase
    changes it; null for all: no mixture, each document once per epoch."""

    epochs: float | None = field(default=None, gt=0, lt=inf)
    """Epoch limit in a mixture: passes over the source after which the others take over its share;
    null: no limit."""

    filter: Filter | None = None
    """Limits on document length, and the shard to read; null: all documents unchanged."""

    @property
    def is_streamed(self) -> bool:
        """True if documents are read during training."""
        return False

    has_answers: ClassVar[bool] = False
    """True if documents are questions with answers, so that rows hold them whole by default."""

    sized_by: ClassVar[str] = ""
    """`module:function` that `most_tokens` calls with the section; empty: the size is unknown."""

    def most_tokens(self) -> int | None:
        """Upper bound on the tokens (one per byte of text), without reading; None: unknown."""
        module, _, name = self.sized_by.partition(":")
        return getattr(import_module(module), name)(self) if module else None


def unmixed_problems(sources: Sequence[SourceConfig], path: str) -> Iterator[Problem]:
    """Find weights on sources for evaluation, which are always read whole."""
    for index, source in enumerate(sources):
        for name in ("weight", "epochs"):
            if getattr(source, name) is not None:
                yield Problem(
                    f"{path}.{index}.{name}",
                    "applies to training mixtures only; validation data is read whole",
                    valid=("null",),
                )
        if isinstance(source, Text) and source.streaming:
            yield Problem(
                f"{path}.{index}.streaming",
                "applies to training data only; validation data is read whole",
                valid=("false",),
            )


def _no_labels(field: str) -> str | None:
    return None if field.rpartition(".")[2] == "input_ids" else f"field = {field} has no labels"


class Stdlib(SourceConfig, type="stdlib", owner="setpoint.data.sources.texts:StdlibSource"):
    """The Python standard library's own source files, without tests: about 12 MB everywhere."""

    sized_by = "setpoint.data.sources.texts:stdlib_size"

    name: str = field(default="stdlib", pattern=NAME)
    """Source name: prefix of its documents' names, unique among the sources."""

    include: tuple[str, ...] = field(factory=lambda: ("*.py",))
    """Globs of paths inside the library; `*` also matches `/`: "json/*", "asyncio/*.py"."""

    @rule
    def _check_include(self) -> Iterator[Problem]:
        if not self.include:
            yield Problem("include", "is empty", valid=('["*.py"]', '["json/*"]'))


class Text(
    SourceConfig,
    type="text",
    owner="setpoint.data.sources.texts:TextSource",
    rules=(
        Rule("setpoint.data.sources.texts:file_problems",
             "Paths of files that cannot be read here", needs="files",
             cautions={NOT_PLAIN: "files read as plain text hold records",
                       PAIRS_AS_TEXT: "rows read as text hold preference pairs"}),
        Rule("setpoint.data.sources.texts:field_is_dead",
             "Fields without a file that has any", dead=("field", "score")),
        Rule("setpoint.data.sources.texts:separator_is_dead",
             "A separator without a file of plain text", dead=("separator",)),
    ),
):  # fmt: skip
    """Your own texts: plain text in UTF-8, or a field of JSON, CSV, Parquet or Arrow rows."""

    sized_by = "setpoint.data.sources.texts:text_size"

    name: str = field(default="text", pattern=NAME)
    """Source name: prefix of its documents' names, unique among the sources."""

    paths: tuple[str, ...]
    """Files, folders, globs and URLs (s3://, gs://, abfs://, https://); `**` matches any folders:
    "corpus/**/*.md". Relative paths start at the working directory."""

    separator: str | None = None
    """Document separator: text that divides a file of plain text into documents, such as "\\n\\n";
    null: a file is a document."""

    format: Format | None = None
    """File format; null: by each file's suffix, text if unknown. Files with a further suffix .gz,
    .bz2, .xz or .zst are decompressed."""

    streaming: bool = False
    """Streaming: documents are read and tokenized while training runs, in shuffled blocks of
    `data.shuffle_buffer`."""

    @property
    def is_streamed(self) -> bool:
        return self.streaming

    shifted_labels: bool = False
    """Labels next to input_ids are already shifted by one: each position is labeled with the next
    token. false: with its own token."""

    score: str | None = None
    """Field with the score for data.curriculum.by = score, dotted if nested; null: none."""

    # The last one: from here on `field` is this.
    field: str = "text"
    """Text field of records, dotted if nested, such as "meta.text"; "input_ids": tokens, with
    labels, attention_mask and position_ids next to them."""

    @rule
    def _check_paths(self) -> Iterator[Problem]:
        yield from _path_problems(self.paths, "notes.txt", "text/*.md")

    @rule
    def _check_separator(self) -> Iterator[Problem]:
        if self.separator == "":
            yield Problem("separator", "is empty", valid=("null",))

    @rule
    def _check_field(self) -> Iterator[Problem]:
        if not self.field:
            yield Problem("field", "is empty", valid=("text", "meta.text"))

    @dead("shifted_labels")
    def _shifted_labels_is_dead(self) -> str | None:
        return _no_labels(self.field)


class Conversations(
    SourceConfig,
    type="conversations",
    owner="setpoint.data.sources.conversations:ConversationsSource",
    rules=(
        Rule("setpoint.data.sources.texts:file_problems",
             "Paths of files that cannot be read here", needs="files"),
    ),
):  # fmt: skip
    """Conversations, one per row, rendered by a chat template, with the loss on the answers."""

    has_answers = True

    name: str = field(default="conversations", pattern=NAME)
    """Source name: prefix of its documents' names, unique among the sources."""

    paths: tuple[str, ...]
    """Files, folders, globs and URLs of JSON, CSV, Parquet or Arrow. A row has `messages`,
    `conversations`, `prompt` and `completion`, `instruction` and `output`, `segments`, `text`, or
    `input_ids` and `labels`."""

    columns: dict[str, str] | None = None
    """Columns of the rows by these names, {"prompt": "question", "completion": "answer"}; role and
    content: fields of the messages. null: the names themselves."""

    template: str | None = None
    """Chat template: plain, alpaca, chatml, llama3, one of the tokenizer's by name, or a Jinja
    file; null: the tokenizer's own."""

    loss_on: Literal["answers", "last_answer", "completion", "all"] = "answers"
    """Tokens trained on. answers: the assistant's messages with their end of turn; last_answer: the
    last of these; completion: all after the prompt in rows with `prompt` and `completion`, which as
    strings are one text without a template, and every token in other rows; all: every token."""

    untrained: Literal["error", "drop"] = "error"
    """Rows in which no token is trained on. drop: they are left out."""

    shifted_labels: bool = False
    """Labels next to input_ids are already shifted by one: each position is labeled with the next
    token. false: with its own token."""

    @rule
    def _check_paths(self) -> Iterator[Problem]:
        yield from _path_problems(self.paths, "chats.jsonl", "chats/*.jsonl")

    @rule
    def _check_columns(self) -> Iterator[Problem]:
        for name in self.columns or {}:
            if name not in (known := (*ROW_FIELDS, *ROW_OPTIONS, *MESSAGE_FIELDS)):
                message = f"{name!r} is not a field of a conversation"
                yield Problem("columns", message, valid=known)


class HubDataset(
    SourceConfig,
    type="huggingface",
    owner="setpoint.data.sources.hub_dataset:HubDatasetSource",
    rules=(
        Rule("setpoint.data.sources.hub_dataset:path_problems",
             "A data set that cannot be found", needs="files"),
    ),
):  # fmt: skip
    """Data set from the Hugging Face Hub, or a local one of the library `datasets`."""

    name: str = field(default="huggingface", pattern=NAME)
    """Source name: prefix of its documents' names, unique among the sources."""

    path: str
    """Hub id, such as "HuggingFaceFW/fineweb-edu"; or a folder that `save_to_disk` wrote or that
    holds data files."""

    subset: str | None = None
    """Subset (configuration) of the data set, by name; null: the default one."""

    split: str = "train"
    """Split to read, in the syntax of `datasets`: "train", "train[:10%]", "train+test"."""

    revision: str | None = None
    """Branch, tag or commit on the hub; null: the newest. Only a commit pins the data."""

    data_files: tuple[str, ...] = ()
    """Data files inside the data set, globs included; empty: those in its own configuration."""

    token: Secret | None = field(default=None, role=RUNTIME)
    """Reference to the access token of the hub: "env:HF_TOKEN"; null: the token of `hf auth
    login`."""

    streaming: bool = False
    """Streaming: documents are read and tokenized while training runs, without a download first.
    Validation data is read whole."""

    @property
    def is_streamed(self) -> bool:
        return self.streaming

    shifted_labels: bool = False
    """Labels next to input_ids are already shifted by one: each position is labeled with the next
    token. false: with its own token."""

    score: str | None = None
    """Field with the score for data.curriculum.by = score, dotted if nested; null: none."""

    # The last one: from here on `field` is this.
    field: str = "text"
    """Text field: a column, dotted if nested; "input_ids": tokens, with labels, attention_mask and
    position_ids next to them."""

    @rule
    def _check_path(self) -> Iterator[Problem]:
        for name in ("path", "split", "field"):
            if not getattr(self, name):
                yield Problem(name, "is empty")

    @dead("shifted_labels")
    def _shifted_labels_is_dead(self) -> str | None:
        return _no_labels(self.field)


class Tokens(
    SourceConfig,
    type="tokens",
    owner="setpoint.data.sources.tokens:TokensSource",
    rules=(
        Rule("setpoint.data.sources.tokens:file_problems",
             "Token files that are missing or damaged", needs="files"),
    ),
):  # fmt: skip
    """Token ids: .npy, nanoGPT's .bin, Megatron's .bin with .idx, or prepared data."""

    sized_by = "setpoint.data.sources.tokens:token_count"

    name: str = field(default="tokens", pattern=NAME)
    """Source name: prefix of its documents' names, unique among the sources."""

    paths: tuple[str, ...]
    """Files (.npy, .bin), folders and globs, mapped into memory; folders that `setpoint data
    prepare` wrote; or hf://datasets/owner/name/..., which is downloaded first."""

    token_dtype: Literal["uint8", "uint16", "uint32", "int32", "int64"] | None = None
    """Token dtype of .bin files; required if they have neither a header nor an .idx (nanoGPT:
    uint16). null: as in the header or .idx."""

    separator: int | None = field(default=None, ge=0)
    """Token id that separates documents in files without .idx; null: the tokenizer's separator."""

    @rule
    def _check_paths(self) -> Iterator[Problem]:
        yield from _path_problems(self.paths, "shards", "shards/*.npy")


class Random(SourceConfig, type="random", owner="setpoint.data.sources.synthetic:RandomSource"):
    """Synthetic documents of known entropy, for tests and benchmarks."""

    name: str = field(default="random", pattern=NAME)
    """Source name: prefix of its documents' names, unique among the sources."""

    documents: int = field(default=256, ge=1)
    """Number of documents."""

    length: int = field(default=1024, ge=1)
    """Document length in bytes."""

    pattern: Literal["markov", "uniform"] = "markov"
    """Byte distribution. markov: each byte depends on the one before; uniform: independent bytes,
    which no model can predict."""

    alphabet: int = field(default=64, ge=2, le=256)
    """Alphabet size: number of distinct byte values, starting at the space (32)."""

    seed: int = field(default=0, ge=0)
    """Seed for the text, separate from the job's."""

    def most_tokens(self) -> int:
        return self.documents * self.length


class Questions(
    SourceConfig, type="questions", owner="setpoint.data.sources.synthetic:QuestionsSource"
):
    """Synthetic questions about words with known answers, with the loss on the answers."""

    has_answers = True

    name: str = field(default="questions", pattern=NAME)
    """Source name: prefix of its documents' names, unique among the sources."""

    documents: int = field(default=6000, ge=1)
    """Number of questions, a document each: upper('abcd') == 'ABCD', last('abcd') == 'd'."""

    seed: int = field(default=0, ge=0)
    """Seed for the words, separate from the job's."""

    def most_tokens(self) -> int:
        # The longest, between two ends of text.
        return self.documents * len(".upper('abcd') == 'ABCD'.")


def _path_problems(paths: tuple[str, ...], *valid: str) -> Iterator[Problem]:
    if not paths:
        yield Problem("paths", "is empty", valid=tuple(f'["{pattern}"]' for pattern in valid))
    for index, path in enumerate(paths):
        if not path:
            yield Problem(f"paths.{index}", "is empty", valid=valid)
