"""Checks and arithmetic for a resolved job that need neither torch nor a device."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from functools import partial
from math import prod

from setpoint.config import (
    Config,
    MissingPathError,
    Need,
    Problem,
    chain_of,
    nearest,
    plural,
    verify,
)
from setpoint.config.draft.walk import steps
from setpoint.config.resolving.checks import Verification, whole_problem
from setpoint.config.values.origin import COMMAND_LINE, ENVIRONMENT, FILE, RECORD
from setpoint.model.config import HuggingFaceConfig, TransformerConfig
from setpoint.model.parameters import FORMULAS, count_parameters_of, training_flops
from setpoint.parallel.rank import own_rank
from setpoint.train.config import Job, batch_equation
from setpoint.train.rules.model_rules import known_vocabulary
from setpoint.train.run_name import run_directory_of

WRITTEN = (COMMAND_LINE, ENVIRONMENT, FILE)
COMPILER = "setpoint.train.rules.run_rules:compiler_problems"
MEMORY = "setpoint.plan.this_machine:memory_problems"
UNNAMED = "named after the seed, which is null and drawn at the start"


class Preflight:
    """Findings of a preflight.

    Arguments:
        compiles: whether a value asks for compilation on this machine.
        elsewhere: the job is for another machine; see `leave_out_paths`.
    """

    __slots__ = ("calls_for_torch", "cautions", "facts", "problems", "skipped")

    def __init__(
        self,
        config: Config,
        facts: dict[str, int | str],
        verification: Verification,
        *,
        compiles: bool = True,
        elsewhere: bool = False,
    ) -> None:
        self.facts = facts
        self.problems = verification.problems
        self.cautions = verification.cautions
        self.skipped = [str(check) for check in verification.skipped]
        if elsewhere:
            self.skipped += leave_out_paths(config, self.problems)
        # Explicitly set values require torch. A large model with device = auto does not, as most of
        # those are not for this machine.
        self.calls_for_torch = any(
            check.needs == ("torch",)
            and (compiles or (check.name != COMPILER and check.path != "compile"))
            for check in verification.skipped
            if check.name != MEMORY
        )

    def __repr__(self) -> str:
        counts = f"{len(self.cautions)} cautions, {len(self.skipped)} skipped"
        return f"Preflight({self.facts}, {counts})"

    def to_json(self) -> dict[str, object]:
        """The findings as JSON."""
        cautions = [caution.to_json() for caution in self.cautions]
        return {"facts": self.facts, "cautions": cautions, "skipped": self.skipped}


def preflight(
    job: Job, needs: Collection[Need] = ("files",), *, elsewhere: bool = False
) -> Preflight:
    """Check a resolved job.

    Arguments:
        elsewhere: the job is for another machine; see `leave_out_paths`.
    """
    batch = job.batch
    ranks = job.parallel.data_ranks
    facts: dict[str, int | str] = {
        "run directory": run_directory_of(job) if job.seed is not None else UNNAMED,
        "duration": str(job.duration),
        "batch": batch_equation(batch.global_size, batch.micro_size, batch.accumulation, ranks),
        "tokens per step": batch.global_size * batch.sequence_length,
    }
    if batch.ramp is not None:
        first, *middle, last = batch.stages
        shown = middle if len(middle) < 4 else middle[:1]
        sizes = [f"{stage.size} after {stage.step} steps" for stage in (*shown, last)]
        if shown != middle:
            sizes.insert(1, "...")
        facts["batch ramp"] = ", ".join([plural(first.size, "sequence"), *sizes])
    # Presets that compile are for machines with GPUs.
    compiles = any(origin.layer in WRITTEN for origin, _ in chain_of(job, "compile"))
    report = Preflight(job, facts, verify(job, needs), compiles=compiles, elsewhere=elsewhere)
    if "files" in needs and not elsewhere and own_rank() == 0:  # which makes the run directory
        problems = map(partial(whole_problem, (), job), _workspace_problems(job))
        report.problems.extend(problems)
    unknown = _measure(job, facts)
    if unknown is not None:
        report.skipped.append(f"model: {unknown}")
    if "files" in needs:
        report.skipped.extend(_on_hub(job))
    return report


def _workspace_problems(job: Job) -> Iterator[Problem]:
    """A workspace in which no run directory can be created."""
    if any(origin.layer == RECORD for origin, _ in chain_of(job, "workspace")):
        return  # the directory of the run exists, perhaps in another place
    folder = os.path.join(os.path.expanduser(job.workspace), job.experiment or "")
    while folder and not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder or os.curdir):
        yield Problem("workspace", f"{folder} is not a folder")
    elif not os.access(folder or os.curdir, os.W_OK | os.X_OK):
        yield Problem("workspace", f"the folder {folder or os.getcwd()} cannot be written to")


def leave_out_paths(config: Config, problems: list[Problem]) -> list[str]:
    """Remove missing paths that can only be those of another machine, and return them as text.

    A path whose directory exists here belongs to this machine, unless every machine has that
    directory: the root, a top-level directory, the current one or that for temporary files. A name
    similar to the first missing part of the path, next to it, or text that does not begin like a
    path (`/`, `./`, `../`, `~` or `$NAME`), is more likely a typing error.
    """
    skipped: list[str] = []
    for problem in [problem for problem in problems if problem.kind == MissingPathError.kind]:
        *_, (_, _, value) = steps(config, problem.path)
        path = str(value)
        if path.startswith(("/", "./", "../", "~", "$")) and _can_be_elsewhere(path):
            problems.remove(problem)
            reason = "this path does not exist on this machine"
            if path.startswith("$"):
                reason = "it has a variable, which Setpoint does not expand on any machine"
            skipped.append(f"{problem.path} = {problem.value}: {reason}")
    return skipped


def _can_be_elsewhere(path: str) -> bool:
    """True if a missing path may exist on another machine; the path may be a glob."""
    import glob
    import tempfile  # imports shutil and random, which no other check needs

    folder, name = os.path.split(os.path.normpath(os.path.expanduser(path)))
    while glob.has_magic(folder):
        folder, name = os.path.split(folder)
    has_folder = os.path.isdir(folder)
    while folder and not os.path.isdir(folder):  # up to the first part that is missing
        folder, name = os.path.split(folder)
    is_top = os.path.isabs(folder) and folder.rstrip("/").count("/") < 2
    if is_top or folder == tempfile.gettempdir():
        return True
    return not has_folder and not nearest(name, os.listdir(folder or os.curdir), 1, 0.7)


def _on_hub(job: Job) -> Iterator[str]:
    """Parts of a model on the hub, which is not read before the run starts."""
    model, more = job.model, ""
    section = job.adapter.quantize if job.adapter is not None else None
    if section is not None and not section.exclude:
        more = "; experts in it are quantized, too, unless adapter.quantize.exclude names them"
    names = {"pretrained": model.pretrained}
    if isinstance(model, HuggingFaceConfig):
        names["config"] = None if model.names_model_type else model.config
    for field, name in names.items():
        if name is not None:
            from setpoint.model.pretrained.locate import is_on_hub

            if is_on_hub(name):
                yield f"model.{field}: {name} on the hub, fetched at the start{more}"
                more = ""


def _measure(job: Job, facts: dict[str, int | str]) -> str | None:
    """Add the size of the model to the facts, or return the reason why it is unknown."""
    model = job.model
    if not isinstance(model, TransformerConfig):
        return "the number of parameters is known only once the model is built"
    vocabulary = known_vocabulary(job.tokenizer)
    if vocabulary is None:
        vocabulary = model.vocab_size
    if vocabulary is None:
        return "the number of parameters depends on the vocabulary of the tokenizer"
    if not model.parameters_known:
        return "the number of parameters depends on the imported norm (model.norm)"
    length = job.batch.sequence_length
    counts = count_parameters_of(model, vocabulary)
    facts["parameters"] = counts.parameters
    if job.optimizer.frozen or job.adapter is not None:
        # Most jobs do not need the list.
        from setpoint.train.build.job_parameters import adapted, adapter_report, trained

        adapter = adapted(job, vocabulary)
        if adapter is not None:
            report = adapter_report(job, adapter)
            facts["adapter"] = report.line()
            facts["parameters"] = report.adapter + report.trained + report.frozen
        facts["trained parameters"] = sum(prod(param.shape) for param in trained(job, vocabulary))
    if model.moe is not None:
        facts["active parameters"] = counts.active
    formula = job.tracking.flops
    flops = training_flops(model, formula, vocab_size=vocabulary, sequence_length=length)
    facts["FLOPs per token"] = round(flops)
    facts["FLOPs formula"] = f"{formula}: {FORMULAS[formula].text}"
    if job.tracking.peak_flops is not None:
        facts["peak FLOPs"] = f"{job.tracking.peak_flops:.6g} per second and rank, for mfu"
    return None
