"""`setpoint generate`: let a trained model write."""

from __future__ import annotations

import os
import shlex
import sys

from setpoint.cli.command import FILE, SOURCE_HELP, WITH, Arguments, Command, Option
from setpoint.cli.source import is_folder, open_source
from setpoint.config import SetpointError
from setpoint.train.naming import run_directory_of
from setpoint.train.threads import prepare_threads

COMMAND = Command(
    "generate",
    "SOURCE [OVERRIDES]",
    "Load the weights of a run and continue a prompt. A preset or file stands for the run that\n"
    "`setpoint train` with the same arguments makes." + "\n" + SOURCE_HELP,
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
    if which is not None and which not in ("best", "latest") and not which.isdigit():
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
    folder = source if is_folder(source) else run_directory_of(job)
    if not os.path.isdir(folder):
        raise SetpointError(
            f"{folder} does not exist: train it first, with\n  {_training(arguments)}"
        )
    from setpoint.infer.write import Sampling, write

    write(job, folder, prompt, which, Sampling(**settings), sys.stdout)
    return 0


def _prompt(text: str) -> str:
    if text == "-":
        try:
            return sys.stdin.read()
        except UnicodeDecodeError as error:
            raise SetpointError(f"--prompt -: standard input is not UTF-8: {error}") from None
    # Bytes of the command line that are no text arrive as halves of surrogate pairs.
    if any("\ud800" <= sign <= "\udfff" for sign in text):
        raise SetpointError("--prompt is not UTF-8")
    return text


def _training(arguments: Arguments) -> str:
    """The command that makes the run which was asked for."""
    words = ["setpoint", "train", *arguments.positional]
    for option in (WITH, FILE):
        for value in arguments.options.get(option.name, []):
            words += [option.name, value]
    return shlex.join([*words, *arguments.overrides])
