"""What the commands `setpoint data ...` share: the data of a job, as its training would have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from setpoint.cli.main import Loading
from setpoint.cli.source import open_source
from setpoint.config import ConfigError, SetpointError, verify
from setpoint.track.progress import make_work_progress

if TYPE_CHECKING:
    from setpoint.cli.options import Arguments
    from setpoint.data.prepared.use import Sides
    from setpoint.data.tokenizers.tokenizer import Tokenizer
    from setpoint.train.config import Job

SECTIONS = ("data", "tokenizer", "batch")


class JobData(NamedTuple):
    """The data of a job."""

    job: Job
    tokenizer: Tokenizer
    corpora: Sides


def open_data(arguments: Arguments) -> JobData:
    """Resolve a job, and read and tokenize its data.

    Raises:
        SetpointError: the configuration is wrong where the data is concerned, or the data cannot
            be read.
    """
    job: Job = open_source(arguments.positional[0], arguments).resolve()
    problems = [
        each for each in verify(job, {"files"}).problems if each.path.partition(".")[0] in SECTIONS
    ]
    if problems:
        raise ConfigError(problems)
    try:
        with Loading():
            import setpoint.train.build.job_data  # noqa: F401 - imports torch, which takes seconds
    except ModuleNotFoundError as error:
        raise SetpointError(
            f"making batches needs the package {error.name!r}: install PyTorch first, then "
            f"'setpoint[train]'"
        ) from None
    tokenizer = job.tokenizer.build()
    with make_work_progress() as progress:
        corpora = job.data.build(tokenizer=tokenizer, mixed=job.data.is_mixture, show=progress.work)
    return JobData(job, tokenizer, corpora)


def require_source(job: Job, name: str | None) -> None:
    """Refuse the name of a source that is not there.

    Raises:
        SetpointError: there is none of this name.
    """
    names = [source.name for source in job.data.sources]
    if name is not None and name not in names:
        raise SetpointError(f"--source {name}: the sources are {', '.join(names)}")
