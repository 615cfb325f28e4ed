"""`setpoint data push`: put prepared data into a data set of the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from setpoint.cli.data_prepare import OUTPUT, WORKERS, prepare_job
from setpoint.cli.options import COMMON, JSON, SOURCE_HELP, Arguments, Command, Option
from setpoint.config import Invalid, Secret, SetpointError
from setpoint.hub.upload import require_id

COMMAND = Command(
    "data push",
    "SOURCE REPOSITORY [OVERRIDES]",
    "Prepare all data of a configuration, as data prepare does, and push it to the data set\n"
    "REPOSITORY (owner/name) of the Hugging Face hub, with a card that says how to train on it.\n"
    "The data set is made where there is none, and private. All files come in one commit, or\n"
    "none where anything fails; the same command then uploads only what is missing. Training\n"
    'reads it as type = "tokens" with paths = ["hf://datasets/owner/name/train"].\n' + SOURCE_HELP,
    [
        Option("--revision", "Branch to push to, made where there is none; default main.", "NAME"),
        Option("--public", "Make the data set public; needed to push to a public one."),
        Option("--token", "Its token: env:NAME or file:PATH; default: HF_TOKEN or `hf auth login`.",
               "REFERENCE"),
        Option("--shards", "Number of shards of each side; default: as prepared, of 128 MiB.", "N"),
        Option(OUTPUT, "Cache folder, data.prepare.folder; -o for short.", "DIR"),
        Option(WORKERS, "Number of processes, data.prepare.workers; default: one a core.", "N"),
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


@COMMAND
def run(arguments: Arguments) -> int:
    """Push everything, and say where it is."""
    token = arguments.value("--token")
    try:
        secret = None if token is None else Secret(token)
    except Invalid as error:
        raise SetpointError(f"--token {error}") from None
    shards = arguments.integer("--shards")
    revealed = None if secret is None else str(secret.reveal())
    repository = arguments.positional[1]
    require_id(repository)  # before hours of preparation
    prepared = prepare_job(arguments)
    from setpoint.data.prepared.push import Target, push

    target = Target(
        repository,
        arguments.value("--revision") or "main",
        arguments.has("--public"),
        revealed,
    )
    folders = {
        name: Path(each.folder)
        for name, each in zip(prepared.names, prepared.found, strict=True)
    }  # fmt: skip
    done = push(folders, prepared.job.tokenizer, prepared.tokenizer, target, shards)
    if arguments.has(JSON.name):
        import json

        print(json.dumps(done._asdict(), indent=2))
        return 0
    print(f"{done.url}: {done.files:,} files, {done.bytes:,} bytes, commit {done.commit[:12]}")
    return 0
