"""`setpoint evaluate`: evaluate a trained model on text."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from setpoint.cli.main import Loading
from setpoint.cli.options import COMMON, JSON, SOURCE_HELP, Arguments, Command, Option
from setpoint.cli.ranks import NPROC, SEVERAL, note, start_ranks
from setpoint.cli.results import print_scores, tell_profiles
from setpoint.cli.weights import (
    CHECKPOINT_OPTION,
    OUTPUT,
    SOURCE_OF_WEIGHTS,
    given,
    job_with_weights,
)
from setpoint.config import COMMAND_LINE, DEFAULT, ConfigError, Origin, SetpointError, leaves
from setpoint.data.sources.config import Conversations, Text, Tokens
from setpoint.infer.tasks import DataSet, Evaluation
from setpoint.parallel.rank import own_rank
from setpoint.track.progress import make_work_progress

SIDES = ("held_out", "train")
TEMPLATE = Option(
    "--template",
    "Chat template of --text; default: that of the run, else of the tokenizer.",
    "TEMPLATE",
)
TOKEN_DTYPE = Option(
    "--token-dtype", "dtype of token files without a header; default: that of the run.", "DTYPE"
)
SOURCE_OPTIONS = (
    (TEMPLATE, "template", Conversations, "conversations"),
    (TOKEN_DTYPE, "token_dtype", Tokens, "token files"),
)
"""Options that set a field of the sources of one kind."""
COMMAND = Command(
    "evaluate",
    "SOURCE [OVERRIDES]",
    "Evaluate trained weights on text: the loss in nats per token, the perplexity exp(loss), and\n"
    "bits per byte, which can be compared between tokenizers. Without --side or --text the\n"
    f"validation split of the run's data is evaluated. {SOURCE_OF_WEIGHTS}\n"
    f"{SEVERAL}\n" + SOURCE_HELP,
    [
        Option("--side", "Split of the data: held_out (validation) or train.", "SIDE", True, SIDES),
        Option("--text", "Text, conversations or tokens: a file or a quoted glob.", "PATH", True),
        TEMPLATE,
        TOKEN_DTYPE,
        Option("--sequences", "Number of sequences to evaluate in each text.", "N"),
        CHECKPOINT_OPTION,
        OUTPUT,
        NPROC,
        *COMMON,
        JSON,
    ],
    [
        ("setpoint evaluate tiny", "the validation split of the preset's run"),
        ("setpoint evaluate runs/tiny-3fa94c21 --text novel.txt", "on a text of your own"),
        ("setpoint evaluate runs/chat-51d0c2aa --text chats.jsonl", "on the answers in chats"),
        ("setpoint evaluate runs/tiny-3fa94c21 --nproc 4", "on 4 ranks, which divide the text"),
        ("setpoint evaluate Qwen/Qwen3-0.6B --text 'wiki/*.txt'", "a model of the hub"),
    ],
)


@COMMAND
def run(arguments: Arguments) -> int:
    """Print a row for each text."""
    tasks: dict[str, Any] = {"evaluation": _evaluation(arguments)}
    if arguments.has(OUTPUT.name):
        tasks["output"] = arguments.value(OUTPUT.name)
    with _naming_options():
        job: Any = job_with_weights(arguments, tasks)
    status = start_ranks(arguments)
    if status is not None:
        return status
    sides = () if job.evaluation is None else job.evaluation.sides
    of_data = (leaf for leaf in leaves(job) if leaf.key.startswith("data.sources"))
    if sides and own_rank() == 0 and all(leaf.origin.layer == DEFAULT for leaf in of_data):
        note(
            f"{' and '.join(sides)}: nothing says what data the weights were trained on, so that "
            f"the default of data.sources is read: Python's standard library. --text names others"
        )
    with Loading():
        from setpoint.infer.inference import infer
    with make_work_progress() as progress, _naming_options():
        results = infer(job, show=progress.work)
    if own_rank():
        return 0
    if arguments.has(JSON.name):
        import json

        print(json.dumps(results.to_json(job.output), indent=2))
    else:
        print_scores(results.scores)
        tell_profiles(results)
    return 0


def _evaluation(arguments: Arguments) -> Any:
    """The section `evaluation` as the options say it."""
    sides = arguments.options.get("--side", [])
    for side in sides:
        if side not in SIDES:
            raise SetpointError(f"--side is {' or '.join(SIDES)}, got {side!r}")
    sets: list[DataSet] = []
    for path in arguments.options.get("--text", []):
        stem = os.path.splitext(os.path.basename(path.rstrip("/")))[0]
        name = re.sub(r"[^A-Za-z0-9_.\-]", "-", stem) or "text"
        if name in (*sides, *(each.name for each in sets)):
            name = f"{name}-{len(sets) + 1}"
        source = _source(path)
        source.set_field("paths", (path,), Origin(COMMAND_LINE, "--text"))
        sets.append(DataSet(name=name, sources=(source,)))
    for option, field, kind, content in SOURCE_OPTIONS:
        value = arguments.value(option.name)
        if value is None:
            continue
        sources = [source for each in sets for source in each.sources if isinstance(source, kind)]
        if not sources:
            raise SetpointError(f"{option.name} has no effect: no --text holds {content}")
        for source in sources:
            given(arguments, source, {field: value})
    found: dict[str, Any] = {}
    if sides or sets:
        found["sides"] = tuple(sides)
    if sets:
        found["sets"] = tuple(sets)
    count = arguments.integer("--sequences")
    if count is not None:
        found["sequences"] = count
    return given(arguments, Evaluation(), found)


@contextmanager
def _naming_options() -> Iterator[None]:
    """Name the option beside an error of a field that it sets."""
    try:
        yield
    except SetpointError as error:
        paths = [str(error).partition(": ")[0]]
        if isinstance(error, ConfigError):
            paths = [problem.path for problem in error.problems]
        for option, field, *_ in SOURCE_OPTIONS:
            pattern = rf"evaluation\.sets\.\d+\.sources\.0\.{field}"
            if any(re.fullmatch(pattern, path) for path in paths):
                name = f"{option.name} {option.metavar}"
                raise SetpointError(f"{error}\nName it with {name}.") from error
        raise


def _source(path: str) -> Any:
    """The kind of data that files are: tokens, conversations or text."""
    from setpoint.data.sources.conversations import conversations_in
    from setpoint.data.sources.token_files import holds_tokens

    tokens = Tokens(paths=(path,))
    if holds_tokens(tokens):
        return tokens
    text = Text(paths=(path,))
    return conversations_in(text) or text
