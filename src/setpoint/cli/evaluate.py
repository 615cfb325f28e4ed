"""`setpoint evaluate`: evaluate a trained model on text."""

from __future__ import annotations

import os
import re
from typing import Any

from setpoint.cli.command import COMMON, JSON, SOURCE_HELP, Arguments, Command, Option
from setpoint.cli.outcome import Loading
from setpoint.cli.results import print_scores, tell_profiles
from setpoint.cli.start_ranks import NPROC, SEVERAL, start_ranks
from setpoint.cli.weights import (
    CHECKPOINT_OPTION,
    OUTPUT,
    SOURCE_OF_WEIGHTS,
    given,
    job_with_weights,
)
from setpoint.config import COMMAND_LINE, Origin, SetpointError
from setpoint.data.sources.config import Conversations, Text
from setpoint.infer.tasks import DataSet, Evaluation
from setpoint.parallel.rank import own_rank
from setpoint.track.progress import make_work_progress

SIDES = ("held_out", "train")
TEMPLATE = Option(
    "--template",
    "Chat template of --text; default: that of the run, else of the tokenizer.",
    "TEMPLATE",
)
COMMAND = Command(
    "evaluate",
    "SOURCE [OVERRIDES]",
    "Evaluate trained weights on text: the loss in nats per token, the perplexity exp(loss), and\n"
    "bits per byte, which can be compared between tokenizers. Without --side or --text the\n"
    f"validation split of the run's data is evaluated. {SOURCE_OF_WEIGHTS}\n"
    f"{SEVERAL}\n" + SOURCE_HELP,
    [
        Option("--side", "Split of the data: held_out (validation) or train.", "SIDE", True, SIDES),
        Option("--text", "Text or conversations: a file, or a glob in quotes.", "PATH", True),
        TEMPLATE,
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


def run(arguments: Arguments) -> int:
    """Print a row for each text."""
    tasks: dict[str, Any] = {"evaluation": _evaluation(arguments)}
    if arguments.has(OUTPUT.name):
        tasks["output"] = arguments.value(OUTPUT.name)
    job: Any = job_with_weights(arguments, tasks)
    status = start_ranks(arguments)
    if status is not None:
        return status
    with Loading():
        from setpoint.infer.run import infer
    with make_work_progress() as progress:
        try:
            results = infer(job, show=progress.work)
        except SetpointError as error:
            if not re.match(r"evaluation\.sets\.\d+\.sources\.0\.template: ", str(error)):
                raise
            raise SetpointError(f"{error}\nName it with {TEMPLATE.name} TEMPLATE.") from error
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
    from setpoint.data.sources.conversations import holds_conversations

    template, conversations = arguments.value(TEMPLATE.name), False
    sets: list[DataSet] = []
    for path in arguments.options.get("--text", []):
        stem = os.path.splitext(os.path.basename(path))[0]
        name = re.sub(r"[^A-Za-z0-9_.\-]", "-", stem) or "text"
        if name in (*sides, *(each.name for each in sets)):
            name = f"{name}-{len(sets) + 1}"
        source: Any = Text(paths=(path,))
        if holds_conversations(source):
            source = Conversations(paths=(path,))
            if template is not None:
                origin = Origin(COMMAND_LINE, TEMPLATE.name)
                source.set_field("template", template, origin)
            conversations = True
        source.set_field("paths", (path,), Origin(COMMAND_LINE, "--text"))
        sets.append(DataSet(name=name, sources=(source,)))
    if template is not None and not conversations:
        raise SetpointError(f"{TEMPLATE.name} has no effect: no --text holds conversations")
    found: dict[str, Any] = {}
    if sides or sets:
        found["sides"] = tuple(sides)
    if sets:
        found["sets"] = tuple(sets)
    count = arguments.integer("--sequences")
    if count is not None:
        found["sequences"] = count
    return given(arguments, Evaluation(), found)
