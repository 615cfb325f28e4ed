"""`setpoint tokenizer train`: train a BPE tokenizer on what a job trains on."""

from __future__ import annotations

import os
from pathlib import Path

from setpoint.cli.options import COMMON, JSON, SOURCE_HELP, Arguments, Command, Option
from setpoint.cli.source import open_source
from setpoint.config import ConfigError, SetpointError, did_you_mean, verify
from setpoint.data.sources.named_templates import NAMED
from setpoint.files.atomic import publishing
from setpoint.track.progress import make_work_progress

VOCAB_SIZE, OUTPUT = "--vocab-size", "--output"
COMMAND = Command(
    "tokenizer train",
    "SOURCE [OVERRIDES]",
    "Train a tokenizer, byte-level BPE, on the training side of data.sources, and write it to a\n"
    "new folder in Hugging Face's format. The same data gives the same tokenizer. A job uses it\n"
    "with --tokenizer huggingface --tokenizer.path DIR.\n" + SOURCE_HELP,
    [
        Option(VOCAB_SIZE, "Number of tokens, 256 bytes and control tokens included.", "N"),
        Option(OUTPUT, "Output directory; -o for short.", "DIR"),
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


@COMMAND
def run(arguments: Arguments) -> int:
    """Train, write, and say what came of it."""
    size, output = arguments.integer(VOCAB_SIZE), arguments.value(OUTPUT)
    for name, given in ((VOCAB_SIZE, size), (OUTPUT, output)):
        if not given:
            raise SetpointError(f"{name} is missing: {COMMAND.examples[0][0]}")
    assert size is not None and output is not None
    template = arguments.value("--template")
    if template is not None and template not in NAMED:
        meant = did_you_mean(template, NAMED, " ")
        raise SetpointError(
            f"there is no chat template {template!r}.{meant} Templates: {', '.join(NAMED)}"
        )
    folder = Path(os.path.expanduser(output))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SetpointError(f"{OUTPUT} {output}: is there already; name a new folder")
    job = open_source(arguments.positional[0], arguments).resolve()
    found = verify(job, {"files"}).problems
    # Of a template the tokenizer that is yet to be made has the tokens.
    problems = [each for each in found if each.path.startswith("data.sources.")
                and not each.path.endswith(".template")]  # fmt: skip
    if problems:
        raise ConfigError(problems)
    from setpoint.data.tokenizers.bpe import train_bpe

    special = arguments.options.get("--special", [])
    with make_work_progress() as progress:
        trained = train_bpe(job.data, size, special=special, template=template, show=progress.work)
    _write(trained.files, folder)
    facts = {
        "output": output,
        "vocab_size": trained.vocab_size,
        "documents": trained.documents,
        "bytes": trained.bytes,
        "bytes_per_token": trained.bytes_per_token,
    }
    if arguments.has(JSON.name):
        import json

        print(json.dumps(facts, indent=2))
        return 0
    print(
        f"{output}: {trained.vocab_size:,} tokens of {trained.bytes_per_token:.2f} bytes, from "
        f"{trained.documents:,} document{'s' * (trained.documents != 1)} with "
        f"{trained.bytes:,} bytes"
    )
    if trained.vocab_size < size:
        print(f"no pair of tokens occurs twice any more, so there are fewer than {size:,}")
    print(f"use it: --tokenizer huggingface --tokenizer.path {output}")
    return 0


def _write(files: dict[str, str], folder: Path) -> None:
    """Write a new folder, whole or not at all."""
    try:
        with publishing(folder) as staged:
            for name, text in files.items():
                (staged / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SetpointError(f"{OUTPUT} {folder}: cannot be written: {error.strerror}") from error
