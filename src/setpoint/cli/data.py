"""`setpoint data prepare`, `data push` and `tokenizer train`: what is made of the data of a job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from setpoint.cli.options import COMMON, JSON, SOURCE_HELP, Arguments, Command, Option
from setpoint.cli.output import emit
from setpoint.cli.source import open_source
from setpoint.config import ConfigError, Invalid, Secret, SetpointError, verify
from setpoint.data.sources.chat import NAMED
from setpoint.files.atomic import publishing
from setpoint.hub.upload import require_id
from setpoint.track.progress import make_work_progress

if TYPE_CHECKING:
    from setpoint.data.cache import Prepared
    from setpoint.data.tokenizers.tokenizer import Tokenizer
    from setpoint.train.config import Job

OUTPUT = Option("--output", "Cache folder, data.prepare.folder; -o for short.", "DIR")
WORKERS = Option(
    "--workers", "Number of processes, data.prepare.workers; default: one a core.", "N", type=int
)
FIELDS = {OUTPUT: "folder", WORKERS: "workers"}
"""Options that set fields of data.prepare."""


class PreparedJob(NamedTuple):
    """The data of a job in the cache, by `train`, `validation` and `evaluation/NAME`."""

    job: Job
    tokenizer: Tokenizer
    parts: dict[str, Prepared]


def prepare_job(arguments: Arguments) -> PreparedJob:
    """Resolve a job, and prepare all of its data.

    Raises:
        SetpointError: the configuration is wrong where the data is concerned, or the data cannot
            be read.
        RunError: prepared data cannot be written.
    """
    for option, field in FIELDS.items():
        if (value := arguments.value(option.name)) is not None:
            arguments.overrides.append(f"--data.prepare.{field}={value}")
    job: Job = open_source(arguments.positional[0], arguments).resolve()
    problems = [each for each in verify(job, {"files"}).problems if "sources" in each.path
                or each.path.startswith(("data.", "tokenizer."))]  # fmt: skip
    if problems:
        raise ConfigError(problems)
    from setpoint.data.cache import prepare_all
    from setpoint.data.push import TRAIN, VALIDATION

    datasets = job.evaluation.datasets if job.evaluation is not None else ()
    texts = [
        (each.name, each.sources, f"evaluation.datasets.{index}.sources")
        for index, each in enumerate(datasets)
    ]
    tokenizer = job.tokenizer.build()
    with make_work_progress() as progress:
        prepared = prepare_all(job.data, tokenizer, texts, show=progress.work)
    names = [TRAIN, *[VALIDATION] * bool(job.data.validation)]
    names += [f"evaluation/{each.name}" for each in datasets]
    return PreparedJob(job, tokenizer, dict(zip(names, prepared, strict=True)))


@Command(
    "data prepare",
    "SOURCE [OVERRIDES]",
    "Tokenize all data of a configuration into shards in the cache, with all cores: training and\n"
    "validation data, and the data sets of the evaluation. Training maps them into memory and\n"
    "starts at once; no token and no order differs from training on the sources themselves. What\n"
    "is prepared already is verified and left; a preparation that was stopped goes on where it\n"
    "was, and where another process does the same, this one waits for it.\n" + SOURCE_HELP,
    [OUTPUT, WORKERS, *COMMON, JSON],
    [
        ("setpoint data prepare mine.toml", "then: setpoint train mine.toml"),
        ("setpoint data prepare mine.toml -o tokens --workers 16",
         "then train with --data.prepare.folder"),
    ],
)  # fmt: skip
def data_prepare(arguments: Arguments) -> int:
    """Prepare everything, and print the folders."""
    parts = prepare_job(arguments).parts.values()
    lines = [
        f"{part.folder}: {part.documents:,} document{'s' * (part.documents != 1)}, "
        f"{part.tokens:,} tokens of {', '.join(part.sources)}"
        for part in parts
    ]
    emit(arguments, [part.to_json() for part in parts], "\n".join(lines))
    return 0


@Command(
    "data push",
    "SOURCE REPOSITORY [OVERRIDES]",
    "Prepare all data of a configuration, as data prepare does, and push it to the data set\n"
    "REPOSITORY (owner/name) of the Hugging Face hub, with a card that says how to train on it.\n"
    "The data set is made where there is none, and private. All files come in one commit, or\n"
    "none where anything fails; the same command then uploads only what is missing. Training\n"
    'reads it as type = "tokens" with paths = ["hf://datasets/owner/name/train"].\n' + SOURCE_HELP,
    [
        Option("--revision", "Branch to push to, made where there is none; default: main.", "NAME"),
        Option("--public", "Make the data set public; needed to push to a public one."),
        Option("--token", "Its token: env:NAME or file:PATH; default: HF_TOKEN or `hf auth login`.",
               "REFERENCE"),
        Option("--shards", "Number of shards of each split; default: as prepared, of 128 MiB.", "N",
               type=int),
        OUTPUT,
        WORKERS,
        *COMMON,
        JSON,
    ],
    [
        ("setpoint data push mine.toml me/my-tokens", "private, on main"),
        ("setpoint data push mine.toml me/my-tokens --revision v2 --token env:MY_TOKEN",
         "on a branch"),
    ],
    positional=(2, 2),
)  # fmt: skip
def data_push(arguments: Arguments) -> int:
    """Push everything, and print the address."""
    token, repository = arguments.value("--token"), arguments.positional[1]
    try:
        secret = None if token is None else str(Secret(token).reveal())
    except Invalid as error:
        raise SetpointError(f"--token {error}") from None
    require_id(repository)  # before hours of preparation
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
        f"{pushed.url}: {pushed.files:,} files, {pushed.bytes:,} bytes, commit "
        f"{pushed.commit[:12]}",
    )
    return 0


@Command(
    "tokenizer train",
    "SOURCE [OVERRIDES]",
    "Train a tokenizer, byte-level BPE, on the training split of data.sources, and write it to a\n"
    "new folder in Hugging Face's format. The same data gives the same tokenizer. A job uses it\n"
    "with --tokenizer huggingface --tokenizer.path DIR.\n" + SOURCE_HELP,
    [
        Option("--vocab-size", "Number of tokens, 256 bytes and control tokens included.", "N",
               type=int),
        Option("--output", "Output directory; -o for short.", "DIR"),
        Option("--special", "A control token beside <|endoftext|>.", "TOKEN", True),
        Option("--template", "A chat template, and its control tokens.", "NAME",
               choices=tuple(NAMED)),
        *COMMON,
        JSON,
    ],
    [
        ("setpoint tokenizer train mine.toml --vocab-size 4096 -o mine-4096", "on your own text"),
        ("setpoint tokenizer train mine.toml --vocab-size 4096 --template chatml -o chat",
         "for conversations"),
    ],
)  # fmt: skip
def tokenizer_train(arguments: Arguments) -> int:
    """Train, write, and print the size."""
    size, output = arguments.integer("--vocab-size"), arguments.value("--output")
    if size is None or output is None:
        name = "--vocab-size" if size is None else "--output"
        raise SetpointError(f"{name} is missing: {arguments.command.examples[0][0]}")
    folder = Path(os.path.expanduser(output))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SetpointError(f"--output {output} exists already; give a new folder")
    job = open_source(arguments.positional[0], arguments).resolve()
    # The tokenizer that is yet to be made has the tokens of a template.
    problems = [each for each in verify(job, {"files"}).problems
                if each.path.startswith("data.sources.")
                and not each.path.endswith(".template")]  # fmt: skip
    if problems:
        raise ConfigError(problems)
    from setpoint.data.tokenizers.bpe import train_bpe

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
        raise SetpointError(f"--output {folder} cannot be written: {error.strerror}") from error
    lines = [
        f"{output}: {trained.vocab_size:,} tokens of {trained.bytes_per_token:.2f} bytes, from "
        f"{trained.documents:,} document{'s' * (trained.documents != 1)} with "
        f"{trained.bytes:,} bytes"
    ]
    if trained.vocab_size < size:
        lines.append(f"no pair of tokens occurs twice any more, so there are fewer than {size:,}")
    lines.append(f"use it: --tokenizer huggingface --tokenizer.path {output}")
    facts = {
        "output": output,
        "vocab_size": trained.vocab_size,
        "documents": trained.documents,
        "bytes": trained.bytes,
        "bytes_per_token": trained.bytes_per_token,
    }
    emit(arguments, facts, "\n".join(lines))
    return 0
