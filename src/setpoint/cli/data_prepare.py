"""`setpoint data prepare`: tokenize the data of a job into shards."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from setpoint.cli.options import COMMON, JSON, SOURCE_HELP, Arguments, Command, Option
from setpoint.cli.source import open_source
from setpoint.config import ConfigError, verify
from setpoint.track.progress import make_work_progress

if TYPE_CHECKING:
    from setpoint.data.prepared.use import Prepared
    from setpoint.data.tokenizers.tokenizer import Tokenizer
    from setpoint.train.config import Job

OUTPUT, WORKERS = "--output", "--workers"
FIELDS = {OUTPUT: "folder", WORKERS: "workers"}
"""Options that are short for fields of data.prepare."""
COMMAND = Command(
    "data prepare",
    "SOURCE [OVERRIDES]",
    "Tokenize all data of a configuration into shards in the cache, with all cores: training and\n"
    "validation data, and the data sets of the evaluation. Training maps them into memory and\n"
    "starts at once; no token and no order differs from training on the sources themselves. What\n"
    "is prepared already is verified and left; a preparation that was stopped goes on where it\n"
    "was, and where another process does the same, this one waits for it.\n" + SOURCE_HELP,
    [
        Option(OUTPUT, "Cache folder, data.prepare.folder; -o for short.", "DIR"),
        Option(WORKERS, "Number of processes, data.prepare.workers; default: one a core.", "N"),
        *COMMON,
        JSON,
    ],
    [
        ("setpoint data prepare mine.toml", "then: setpoint train mine.toml"),
        ("setpoint data prepare mine.toml -o tokens --workers 16",
         "then train with --data.prepare.folder"),
    ],
)  # fmt: skip


class PreparedJob(NamedTuple):
    """The data of a job in the cache: what is trained on, what is validated on, and each set.

    Arguments:
        names: of each of `found`, in its order.
    """

    job: Job
    tokenizer: Tokenizer
    names: list[str]
    found: list[Prepared]


def prepare_job(arguments: Arguments) -> PreparedJob:
    """Resolve a job, and prepare all of its data.

    Raises:
        SetpointError: the configuration is wrong where the data is concerned, or the data cannot
            be read.
        RunError: prepared data cannot be written.
    """
    for option, field in FIELDS.items():
        value = arguments.value(option)
        if value is not None:
            arguments.overrides.append(f"--data.prepare.{field}={value}")
    job: Job = open_source(arguments.positional[0], arguments).resolve()
    problems = [each for each in verify(job, {"files"}).problems if "sources" in each.path
                or each.path.startswith(("data.", "tokenizer."))]  # fmt: skip
    if problems:
        raise ConfigError(problems)
    from setpoint.data.prepared.push import TRAIN, VALIDATION
    from setpoint.data.prepared.use import prepare_all

    datasets = job.evaluation.datasets if job.evaluation is not None else ()
    texts = [
        (each.name, each.sources, f"evaluation.datasets.{index}.sources")
        for index, each in enumerate(datasets)
    ]
    tokenizer = job.tokenizer.build()
    with make_work_progress() as progress:
        found = prepare_all(job.data, tokenizer, texts, show=progress.work)
    names = [TRAIN, *[VALIDATION] * bool(job.data.validation)]
    names += [f"evaluation/{each.name}" for each in datasets]
    return PreparedJob(job, tokenizer, names, found)


@COMMAND
def run(arguments: Arguments) -> int:
    """Prepare everything, and say where it lies."""
    found = prepare_job(arguments).found
    if arguments.has(JSON.name):
        import json

        print(json.dumps([each.to_json() for each in found], indent=2))
        return 0
    for each in found:
        print(
            f"{each.folder}: {each.documents:,} document{'s' * (each.documents != 1)}, "
            f"{each.tokens:,} tokens of {', '.join(each.sources)}"
        )
    return 0
