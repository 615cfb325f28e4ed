"""`setpoint generate`: let a trained model write."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from setpoint.cli.command import FILE, IMPORT, SOURCE_HELP, WITH, Arguments, Command, Option
from setpoint.cli.source import open_source
from setpoint.cli.sources.kind import CHECKPOINT, RUN, kind_of
from setpoint.cli.sources.record import checkpoint_and_run, open_record
from setpoint.cli.value import value_text
from setpoint.config import IDENTITY, SetpointError
from setpoint.config.difference import ABSENT
from setpoint.train.config import Job
from setpoint.train.naming import run_directory_of
from setpoint.train.threads import prepare_threads

COMMAND = Command(
    "generate",
    "SOURCE [OVERRIDES]",
    "Load the weights of a run and continue a prompt. A preset or file stands for the run that\n"
    "`setpoint train` with the same arguments makes; a checkpoint's directory chooses it."
    + "\n"
    + SOURCE_HELP,
    [
        Option("--prompt", "Text to continue; '-' reads standard input.", "TEXT"),
        Option("--max-tokens", "How many tokens to add; 256 unless given.", "N"),
        Option("--temperature", "0 takes the likeliest token; 0.8 unless given.", "T"),
        Option("--top-k", "Draw among the k likeliest tokens only.", "K"),
        Option("--sampling-seed", "Makes the text repeatable; 0 unless given.", "N"),
        Option(
            "--checkpoint",
            "best (if there is one, the default), latest, or a step.",
            "WHICH",
            choices=("best", "latest"),
        ),
        WITH,
        FILE,
    ],
    [
        ("setpoint generate tiny --prompt 'def '", "the run of the preset"),
        ("setpoint generate runs/tiny-3fa94c21 --temperature 0", "a run, greedily"),
    ],
)


def run(arguments: Arguments) -> int:
    """Print the prompt and its continuation as it is made.

    Arguments:
        arguments: of the call.

    Returns:
        the exit status.
    """
    prepare_threads()
    which = arguments.value("--checkpoint")
    if which is not None and which not in ("best", "latest") and not _is_step(which):
        raise SetpointError(f"--checkpoint is best, latest or a step, got {which!r}")
    prompt = _prompt(arguments.value("--prompt") or "\n")
    temperature = arguments.number("--temperature", 0.0)
    settings = {
        "max_tokens": arguments.integer("--max-tokens") or 256,
        "temperature": 0.8 if temperature is None else temperature,
        "top_k": arguments.integer("--top-k"),
        "seed": arguments.integer("--sampling-seed", 0) or 0,
    }
    source = arguments.positional[0]
    job = open_source(source, arguments).resolve()
    chosen: str | Path | None = which
    kind = kind_of(source)
    if kind == CHECKPOINT:
        if which is not None:
            raise SetpointError(f"{source} is a checkpoint already; leave --checkpoint {which} out")
        with open_record(source, kind, arguments) as (record, _):
            _refuse_another_model(record, job)
        directory, folder = checkpoint_and_run(source)
        chosen = Path(directory)
    elif kind == RUN:
        folder = source
        _refuse_another_model(folder, job)
    else:
        folder = run_directory_of(job)
    if not os.path.isdir(folder):
        raise SetpointError(
            f"{folder} does not exist: train it first, with\n  {_training(arguments)}"
        )
    from setpoint.infer.write import Sampling, write

    write(job, folder, prompt, chosen, Sampling(**settings), sys.stdout)
    return 0


def _is_step(text: str) -> bool:
    # More than 18 digits may be more than a step can be; some digits of Unicode are no decimals.
    return text.isascii() and text.isdecimal() and len(text) <= 18


def _refuse_another_model(folder: str, job: Job) -> None:
    """The weights of a run mean something only with what the run has learnt them with."""
    from setpoint.config.record import recorded_differences

    found = [each for each in recorded_differences(folder, job) if each.role is IDENTITY]
    if not found:
        return
    count = f"{len(found)} value{'s differ' if len(found) > 1 else ' differs'}"
    lines = [f"{folder} was not trained with this configuration: {count} from its record", ""]
    for item in found:
        lines.append(f"  {item.path}")
        for name, value, origin in (
            ("recorded", item.left, item.left_origin),
            ("today", item.right, item.right_origin),
        ):
            text = "(absent)" if value is ABSENT else value_text(value)
            lines.append(f"    {name:<8}  {text}" + (f" ({origin})" if origin else ""))
    lines += ["", "  Only settings that are no part of what is learned may differ."]
    raise SetpointError("\n".join(lines))


def _prompt(text: str) -> str:
    name = "--prompt"
    try:
        if text == "-":
            name = "--prompt -: standard input"
            text = sys.stdin.read()
        # Bytes that are no text can arrive as halves of surrogate pairs, which nothing encodes.
        text.encode()
    except UnicodeError as error:
        raise SetpointError(f"{name} is not UTF-8: {error}") from None
    return text


def _training(arguments: Arguments) -> str:
    """The command that makes the run which was asked for."""
    words = ["setpoint", "train", *arguments.positional]
    for option in (WITH, FILE, IMPORT):
        for value in arguments.options.get(option.name, []):
            words += [option.name, value]
    return shlex.join([*words, *arguments.overrides])
