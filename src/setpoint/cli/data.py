"""`setpoint data ...` and `tokenizer train`: rows, statistics and shards of a job's data."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from setpoint.cli.main import Loading
from setpoint.cli.options import COMMON, JSON, Arguments, Command, Option
from setpoint.cli.output import bold, colours, dim, emit, styled, table
from setpoint.cli.source import open_source
from setpoint.config import ConfigError, Invalid, RunError, Secret, SetpointError, plural, verify
from setpoint.data.sources.chat import NAMED
from setpoint.files.atomic import publishing
from setpoint.hub.upload import require_id
from setpoint.track.progress import make_work_progress

if TYPE_CHECKING:
    from setpoint.data.inspection import Sample, Token
    from setpoint.data.prepare import PreparedText
    from setpoint.data.sides import Sides
    from setpoint.data.tokenizer import Tokenizer
    from setpoint.train.config import Job

OUTPUT = Option("--output DIR", "Cache folder, data.prepare.folder; -o for short.")
WORKERS = Option("--workers N", "Number of processes, data.prepare.workers; default: one per core.")
FIELDS = {OUTPUT: "folder", WORKERS: "workers"}
"""Options that set fields of data.prepare."""


class PreparedJob(NamedTuple):
    """The data of a job in the cache, by `train`, `validation` and `evaluation/NAME`."""

    job: Job
    tokenizer: Tokenizer
    parts: dict[str, PreparedText]


def checked_job(arguments: Arguments, concerns: Callable[[str], bool]) -> Job:
    """Resolve a job; problems of files count only at paths that concern its data."""
    job = open_source(arguments.positional[0], arguments).resolve()
    problems = [each for each in verify(job, {"files"}).problems if concerns(each.path)]
    if problems:
        raise ConfigError(problems)
    return job


def prepare_job(arguments: Arguments) -> PreparedJob:
    """Resolve a job, and prepare all of its data."""
    for option, field in FIELDS.items():
        if (value := arguments.value(option.name)) is not None:
            arguments.overrides.append(f"--data.prepare.{field}={value}")
    job = checked_job(
        arguments, lambda path: "sources" in path or path.startswith(("data.", "tokenizer."))
    )
    from setpoint.data.prepare import prepare_all
    from setpoint.data.push import TRAIN, VALIDATION

    datasets = job.evaluation.datasets if job.evaluation is not None else ()
    texts = [
        (item.name, item.sources, f"evaluation.datasets.{index}.sources")
        for index, item in enumerate(datasets)
    ]
    tokenizer = job.tokenizer.build()
    with make_work_progress() as progress:
        prepared = prepare_all(job.data, tokenizer, texts, show=progress.work)
    names = [TRAIN, *[VALIDATION] * bool(job.data.validation)]
    names += [f"evaluation/{item.name}" for item in datasets]
    return PreparedJob(job, tokenizer, dict(zip(names, prepared, strict=True)))


@Command("data prepare SOURCE [OVERRIDES]", OUTPUT, WORKERS, *COMMON, JSON)
def data_prepare(arguments: Arguments) -> int:
    """Tokenize all data of a configuration into shards in the cache, on all cores.

    This covers training data, validation data and the data sets of the evaluation. Training maps
    the shards into memory and starts immediately; tokens and their order are the same as when
    reading the sources. Data that is already prepared is verified and kept, and an interrupted
    preparation is resumed. If another process is preparing the same data, the command waits for it.

    Examples:
        setpoint data prepare mine.toml  then: setpoint train mine.toml
        setpoint data prepare mine.toml -o tokens --workers 16  then --data.prepare.folder tokens
    """
    parts = prepare_job(arguments).parts.values()
    lines = [
        f"{part.folder}: {plural(part.documents, 'document')}, "
        f"{part.tokens:,} tokens of {', '.join(part.sources)}"
        for part in parts
    ]
    emit(arguments, [part.to_json() for part in parts], "\n".join(lines))
    return 0


@Command(
    "data push SOURCE REPOSITORY [OVERRIDES]",
    Option("--revision NAME", "Branch to push to, created if needed; default: main."),
    Option("--public", "Make the data set public; needed to push to a public one."),
    Option(
        "--token REFERENCE", "Token, env:NAME or file:PATH; default: HF_TOKEN or `hf auth login`."
    ),
    Option("--shards N", "Number of shards of each split; default: as prepared, of 128 MiB."),
    OUTPUT,
    WORKERS,
    *COMMON,
    JSON,
)
def data_push(arguments: Arguments) -> int:
    """Prepare all data of a configuration and push it to a data set of the Hugging Face hub.

    REPOSITORY is owner/name; if it does not exist, it is created as a private one. Its data set
    card explains how to train on it. All files are uploaded in one commit, or none on failure;
    repeating the command uploads only the missing files. To train on it, use type = "tokens" with
    paths = ["hf://datasets/owner/name/train"].

    Examples:
        setpoint data push mine.toml me/my-tokens  private, on main
        setpoint data push mine.toml me/my-tokens --revision v2 --token env:MY_TOKEN  on a branch
    """
    token, repository = arguments.value("--token"), arguments.positional[1]
    try:
        secret = None if token is None else str(Secret(token).reveal())
    except Invalid as error:
        raise SetpointError(f"--token {error}") from None
    require_id(repository)  # fail before hours of preparation
    prepared = prepare_job(arguments)
    from setpoint.data.push import Target, push

    revision = arguments.value("--revision") or "main"
    target = Target(repository, revision, arguments.has("--public"), secret)
    folders = {name: Path(part.folder) for name, part in prepared.parts.items()}
    tokenizer = prepared.job.tokenizer, prepared.tokenizer
    pushed = push(folders, *tokenizer, target, arguments.integer("--shards"))
    emit(
        arguments,
        pushed._asdict(),
        f"{pushed.url}: {plural(pushed.files, 'file')}, {pushed.bytes:,} bytes, commit "
        f"{pushed.commit[:12]}",
    )
    return 0


@Command(
    "tokenizer train SOURCE [OVERRIDES]",
    Option(
        "--vocab-size N", "Number of tokens, 256 bytes and control tokens included.", required=True
    ),
    Option("--output DIR", "Output directory; -o for short.", required=True),
    Option("--special TOKEN", "Further control token, besides <|endoftext|>.", True),
    Option(f"--template {'|'.join(NAMED)}", "A chat template, and its control tokens."),
    *COMMON,
    JSON,
)
def tokenizer_train(arguments: Arguments) -> int:
    """Train a byte-level BPE tokenizer on the training split of data.sources.

    The tokenizer is written to a new directory in Hugging Face format. The same data gives the same
    tokenizer. Use it in a job with --tokenizer huggingface --tokenizer.path DIR.

    Examples:
        setpoint tokenizer train mine.toml --vocab-size 4096 -o mine-4096  on your own text
        setpoint tokenizer train mine.toml --vocab-size 4096 --template chatml -o chat  for chats
    """
    size, output = arguments.integer("--vocab-size"), arguments.value("--output")
    assert size is not None and output is not None
    folder = Path(os.path.expanduser(output))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SetpointError(f"--output {output} already exists; give a new folder")
    # The new tokenizer will have the tokens of a template.
    job = checked_job(
        arguments, lambda path: path.startswith("data.sources.") and not path.endswith(".template")
    )
    from setpoint.data.bpe import train_bpe

    with make_work_progress() as progress:
        trained = train_bpe(
            job.data,
            size,
            special=arguments.values("--special"),
            template=arguments.value("--template"),
            show=progress.work,
        )
    try:
        with publishing(folder) as staged:  # whole or not at all
            for name, text in trained.files.items():
                (staged / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(f"--output {folder} cannot be written: {error.strerror}") from error
    lines = [
        f"{output}: {trained.vocab_size:,} tokens of {trained.bytes_per_token:.2f} bytes, from "
        f"{plural(trained.documents, 'document')} with {plural(trained.bytes, 'byte')}"
    ]
    if trained.vocab_size < size:
        lines.append(f"no further pair of tokens occurs twice, so there are fewer than {size:,}")
    lines.append(f"use it: --tokenizer huggingface --tokenizer.path {output}")
    names = ("vocab_size", "documents", "bytes", "bytes_per_token")
    facts = {"output": output, **{name: getattr(trained, name) for name in names}}
    emit(arguments, facts, "\n".join(lines))
    return 0


SECTIONS = ("data", "tokenizer", "batch")
"""Sections whose problems prevent reading the data."""
ROWS = 3
"""Rows that are printed by default."""
STREAMED = 10_000
"""Rows of streamed data that are searched for those of a source."""
BAR = 50
"""Characters of the longest bar."""


class JobData(NamedTuple):
    """The data of a job."""

    job: Job
    tokenizer: Tokenizer
    corpora: Sides


def open_data(arguments: Arguments) -> JobData:
    """Resolve a job, and read and tokenize its data."""
    job = checked_job(arguments, lambda path: path.partition(".")[0] in SECTIONS)
    with Loading():
        import setpoint.train.build.job_data  # noqa: F401 - imports torch, which takes seconds
    tokenizer = job.tokenizer.build()
    with make_work_progress() as progress:
        corpora = job.data.build(tokenizer=tokenizer, show=progress.work)
    return JobData(job, tokenizer, corpora)


@Command(
    "data inspect SOURCE [OVERRIDES]",
    Option("--source NAME", "Only rows with targets of this source of the data."),
    Option("--count N", f"Number of rows; default: {ROWS}."),
    Option("--tokens", "One token a line: place, id, text, document, trained or not."),
    *COMMON,
    JSON,
)
def data_inspect(arguments: Arguments) -> int:
    """Print the first rows of the training data, as in the batches.

    The text shows where tokens end, which tokens are trained on, control tokens, and where
    documents begin. On a terminal colours mark them; elsewhere `|` ends a token, and text between
    [[ and ]] is read but not trained on.

    Examples:
        setpoint data inspect tiny  the first rows of a preset
        setpoint data inspect chats.toml --count 1 --tokens  each token of one row
    """
    data, source = open_data(arguments), arguments.value("--source")
    names = [each.name for each in data.job.data.sources]
    if source is not None and source not in names:
        raise SetpointError(f"--source {source}: no such source\nValid: {', '.join(names)}")
    samples = _first_rows(data, arguments.integer("--count") or ROWS, source)
    show = _tokens if arguments.has("--tokens") else _text
    emit(
        arguments,
        lambda: [sample.to_json() for sample in samples],
        lambda: "\n\n".join(f"{_title(sample)}\n{show(sample)}" for sample in samples),
    )
    return 0


def _first_rows(data: JobData, count: int, source: str | None) -> list[Sample]:
    """The first rows of the stream of all ranks."""
    from setpoint.data.inspection import samples_of
    from setpoint.train.build.job_data import build_training_data

    job = data.job
    if job.seed is None:
        raise SetpointError("seed is null, but the order of rows depends on it: --seed 1")
    sequences, sampler = build_training_data(job, data.corpora.train)
    samples: list[Sample] = []
    taken, most = 0, max(sequences.epoch_rows or STREAMED, count)
    while len(samples) < count and taken < most:
        # The packing of rows does not depend on the number taken at once.
        step = min(max(count, 16 if source else count), most - taken)
        rows = samples_of(sequences, sampler.take(step), data.tokenizer, taken)
        samples += [row for row in rows if source is None or source in row.sources]
        taken += step
    sampler.close()
    if not samples:
        raise SetpointError(f"--source {source}: none of the first {taken:,} rows is from it")
    return samples[:count]


def _title(sample: Sample) -> str:
    source = f" of {', '.join(sample.sources)}" if sample.sources else ""
    return bold(
        f"row {sample.number}{source}: {plural(len(sample.tokens), 'token')}, {sample.trained} "
        f"trained on, {plural(sample.documents, 'document')}"
    )


def _text(sample: Sample) -> str:
    """Render the text, with a heading where a document begins."""
    marks = not colours()
    # With marks between single bytes the text would be unreadable.
    ends = marks and any(len(token.data) > 1 for token in sample.tokens if not token.control)
    lines: list[str] = []
    document: int | None = -1
    run: list[str] = []
    masked = False
    for index, token in enumerate(sample.characters()):
        if token.document != document:
            if masked:
                run.append("]]")
                masked = False
            lines += ["".join(run)] * bool(run)
            document, run = token.document, []
            if document is None:
                count = sum(part.document is None for part in sample.tokens)
                lines.append(dim(f"--- {plural(count, 'token')} of padding"))
            else:
                name = sample.names[document]
                lines.append(dim(f"--- document {document}" + (f": {name}" if name else "")))
        if document is None:
            continue
        text = token.data.decode(errors="backslashreplace")
        if not marks:
            run.append(_coloured(token, text, index))
            continue
        # The first token of a row is never a target; show it like the next one.
        if (token if index or len(sample.tokens) < 2 else sample.tokens[1]).trained == masked:
            run.append("]]" if masked else "[[")
            masked = not masked
        run.append(text + "|" * ends)
    lines += ["".join(run) + "]]" * masked] * bool(run)
    return "\n".join(lines)


def _coloured(token: Token, text: str, index: int) -> str:
    """Style tokens: untrained ones dim, control tokens magenta, every other one on a background."""
    codes = ["35"] if token.control else []
    codes += ["1"] if token.trained else ["2"]
    codes += ["48;5;236"] * (index % 2)
    # A background colour at the end of a line would fill the line.
    return "\n".join(styled(line, ";".join(codes)) if line else "" for line in text.split("\n"))


def _tokens(sample: Sample) -> str:
    rows = [
        [
            str(index),
            str(token.position),
            str(token.id),
            "" if token.document is None else str(token.document),
            "yes" if token.trained else "-",
            token.data.decode() if token.control else _quoted(token.data),
        ]
        for index, token in enumerate(sample.tokens)
    ]
    return table(rows, ["place", "position", "id", "document", "trained", "text"])


def _quoted(data: bytes) -> str:
    try:
        return repr(data.decode())
    except UnicodeDecodeError:
        return repr(data)


@Command("data stats SOURCE [OVERRIDES]", *COMMON, JSON)
def data_stats(arguments: Arguments) -> int:
    """Print lengths, tokens, shares and duplicates of the data of a job.

    The data is read and tokenized. The statistics of each source and split are documents, bytes,
    tokens, tokens that are trained on, share of all tokens, lengths in tokens, documents longer
    than batch.sequence_length, and documents with equal content.

    Examples:
        setpoint data stats tiny  the data of a preset
        setpoint data stats mine.toml --json  for a program
    """
    facts = _stats(open_data(arguments))
    emit(arguments, facts, lambda: "\n\n".join(_stats_text(facts)))
    return 0


def _stats(data: JobData) -> dict[str, Any]:
    import numpy as np

    from setpoint.data.corpus import Corpus
    from setpoint.data.inspection import duplicates, histogram, lengths_of, source_stats
    from setpoint.train.build.job_data import phases_of

    job, held_out = data.job, data.corpora.held_out
    corpora = [each for each in data.corpora.train if isinstance(each, Corpus)]
    for index, source in enumerate(job.data.sources):
        if source.is_streamed:
            raise SetpointError(
                f"data.sources.{index}.streaming: true, but streamed data cannot be counted.\n"
                "Valid: false, or setpoint data inspect."
            )
    length = job.batch.sequence_length
    names = [source.name for source in job.data.sources]
    train = source_stats(corpora, names, length)
    if job.data.is_mixture:
        for each, share in zip(train, phases_of(job)[0].shares, strict=True):
            each["mixture_share"] = share
    held_out_stats: list[dict[str, Any]] = []
    if held_out is not None:
        held_out_stats = source_stats([held_out], held_out.sources, length)
    lengths = np.concatenate([lengths_of(corpus) for corpus in corpora])
    bars = [{"from": a, "to": b, "documents": n} for a, b, n in histogram(lengths)]
    return {
        "sequence_length": length,
        "train": train,
        "held_out": held_out_stats,
        "duplicates": duplicates(corpora, held_out),
        "histogram": bars,
        "rows": _row_counts(data),
    }


def _row_counts(data: JobData) -> dict[str, Any]:
    """The rows of an epoch, and notes about truncated or omitted documents."""
    from setpoint.train.build.job_data import build_training_data

    if data.job.seed is None:
        return {"note": "seed is null, but packing depends on it"}
    try:
        sequences, _ = build_training_data(data.job, data.corpora.train)
    except SetpointError as error:  # too little data for one row; still show the rest
        return {"note": str(error)}
    members = getattr(sequences, "members", (sequences,))
    notes = [note for member in members if (note := getattr(member, "note", ""))]
    rows = sequences.epoch_rows or 0
    steps = data.job.batch.steps_for(rows)
    return {"rows": rows, "steps": steps, "note": "; ".join(notes)}


def _stats_text(facts: dict[str, Any]) -> list[str]:
    """Render the facts as paragraphs."""
    length = facts["sequence_length"]
    parts: list[str] = []
    for side, title in (("train", "Training"), ("held_out", "Held out")):
        if facts[side]:
            rows = [_stats_cells(row) for row in facts[side]]
            if len(rows) > 1:
                rows.append(_stats_cells(_total(facts[side])))
            drawn = ["drawn"] * ("mixture_share" in facts[side][0])
            headings = ["source", "documents", "bytes", "tokens", "share", *drawn, "trained on",
                        f"longer than {length}", "same content"]  # fmt: skip
            parts.append(f"{bold(title)}\n{table(rows, headings)}")
    names = list(facts["train"][0]["lengths"])
    rows = [
        [row["source"], *(f"{row['lengths'][name]:,.0f}" for name in names)]
        for row in facts["train"]
        if row["lengths"]
    ]
    parts.append(f"{bold('Tokens of a training document')}\n{table(rows, ['source', *names])}")
    parts.append(_bars(facts["histogram"]))
    rows = facts["rows"]
    counted = ""
    if "rows" in rows:
        count, steps = rows["rows"], rows["steps"]
        counted = f"rows in an epoch: {count:,} of {length} tokens, {steps:,.4g} step"
        counted += "s" * (steps != 1)
        # The note of a single source repeats the number of rows.
        rows["note"] = re.sub(rf"(?<![\d,]){count:,} rows,? ", "", rows["note"])
    parts.append("; ".join(filter(None, [counted, rows["note"]])))
    twice = facts["duplicates"]
    if twice["documents"]:
        pairs = "; ".join(" = ".join(group) for group in twice["examples"])
        pairs = f"{twice['documents']:,}, such as {pairs}"
        parts.append(f"training documents with the content of another one: {pairs}")
    if twice["held_out_in_training"]:
        parts.append(f"held-out documents that are trained on: {twice['held_out_in_training']:,}")
    return parts


def _stats_cells(facts: dict[str, Any]) -> list[str]:
    tokens = facts["tokens"]
    part = facts["trained_tokens"] / tokens if tokens else 0.0
    return [
        facts["source"],
        *(f"{facts[name]:,}" for name in ("documents", "bytes", "tokens")),
        f"{facts['share']:.1%}",
        *([f"{facts['mixture_share']:.1%}"] if "mixture_share" in facts else []),
        f"{part:.1%}",
        *(f"{facts[name]:,}" for name in ("longer_than_sequence", "duplicates")),
    ]


def _total(sources: list[dict[str, Any]]) -> dict[str, Any]:
    names = ("documents", "bytes", "tokens", "share", "trained_tokens", "longer_than_sequence",
             "duplicates")  # fmt: skip
    names += ("mixture_share",) * ("mixture_share" in sources[0])
    return {"source": "all", **{name: sum(source[name] for source in sources) for name in names}}


def _bars(classes: list[dict[str, int]]) -> str:
    """Draw a histogram of document lengths."""
    most = max(length_class["documents"] for length_class in classes)
    rows = [
        [
            f"{length_class['from']:,} to {length_class['to']:,}",
            f"{length_class['documents']:,}".rjust(len(f"{most:,}")),
            "#" * -(-length_class["documents"] * BAR // most),
        ]
        for length_class in classes
    ]
    width = max(len(row[0]) for row in rows)
    rows = [[row[0].rjust(width), *row[1:]] for row in rows]
    return f"{bold('Training documents by tokens')}\n{table(rows)}"
