"""`setpoint check`: verification without running."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from setpoint.cli.main import has_torch
from setpoint.cli.options import COMMON, GPU_OPTIONS, JSON, WORLD_SIZE, Arguments, Command, Option
from setpoint.cli.output import bold, emit, table
from setpoint.cli.source import CHECKPOINT, kind_of, open_source, resolver, run_directory_given
from setpoint.config import (
    NEEDS,
    Caution,
    Config,
    ConfigError,
    Need,
    SetpointError,
    fingerprint,
    verify,
)
from setpoint.config.draft.walk import dropped_values, overridden, shared
from setpoint.plan.preflight import Preflight, leave_out_paths, preflight
from setpoint.train.config import Job
from setpoint.train.run_name import find_run

if TYPE_CHECKING:
    from setpoint.cli.check_plan import PlanReport
    from setpoint.plan.cost import CostEstimate

PLAN, FAKE_STEP, RANK = "--plan", "--fake-step", "--rank"
EXCEEDS = "memory-exceeds-gpu"


@Command(
    "check SOURCE [OVERRIDES]",
    *COMMON,
    WORLD_SIZE,
    Option("--using torch|import|network", "Also run the checks that need one of these.", True),
    Option(PLAN, "Also print parameter groups; mesh, memory and traffic of a rank."),
    Option(FAKE_STEP, "Run one step of one rank on fake tensors; report its memory."),
    Option(
        "--rank N", "Rank to plan or run; default: 0.", at_least=0, requires="--plan|--fake-step"
    ),
    *GPU_OPTIONS,
    JSON,
)
def check(arguments: Arguments) -> int:
    """Verify a configuration without running it.

    Names, types, ranges, rules between fields, the batch arithmetic for any number of ranks, and
    paths are checked. All problems are reported at once, and the exit status is 2 if there are any.
    A valid but unusual value gives a caution: a warning with a code, which --silence.append CODE
    hides.

    PyTorch is imported only if a value requires it, such as a device, compile or float8.
    --world-size and --gpu describe other machines: PyTorch is then never imported, and a missing
    path is listed as not checked if it may exist there. Checks that could not run are listed with
    the --using option that runs them, and values of modifiers that an override replaced as
    overridden.

    Examples:
        setpoint check tiny  a preset as it is
        setpoint check exp.toml --world-size 1024  a large job, on a laptop
        setpoint check tiny --plan  parameter groups and memory
        setpoint check exp.toml --world-size 1024 --plan  mesh and traffic of a rank as well
        setpoint check exp.toml --world-size 64 --plan --gpu h100  time and cost of a step as well
        setpoint check exp.toml --world-size 64 --fake-step  measured memory and traffic of a rank
        setpoint check tiny --world-size 7  a batch that does not add up
    """
    composition = open_source(arguments.source, arguments)
    if not isinstance(composition.draft, Job):
        for name in (PLAN, FAKE_STEP, *(option.name for option in GPU_OPTIONS)):
            if arguments.has(name):
                kind = type(composition.draft).__name__
                raise SetpointError(f"{name} has no effect: {kind} is not a training job")
    try:
        config = composition.resolve()
    except ConfigError as error:
        # An inference job reads its model from weights, which may be on another machine.
        problems = list(error.problems)
        elsewhere = _is_elsewhere(arguments)
        skipped = leave_out_paths(composition.draft, problems) if elsewhere else []
        if problems:
            raise
        skipped.append("everything that depends on the weights: model, tokenizer, prompts and data")
        lines = [bold(f"{composition.label}: ok"), *(f"  not checked: {each}" for each in skipped)]
        emit(arguments, lambda: {"ok": True, "skipped": skipped}, lambda: "\n".join(lines))
        return 0
    report = _preflight(config, arguments)
    values = {
        "dropped": list(dropped_values(config)),
        "overridden": list(overridden(config)) if arguments.has("--with") else [],
        "shared": list(shared(config)),
    }
    plan = estimate = dry_run = None
    if isinstance(config, Job):
        _add_run(config, report, arguments)
        rank = arguments.integer(RANK) or 0
        plan, estimate = _plan(config, rank, arguments, composition.label)
        report.cautions += _gpu_cautions(config, arguments, plan, rank)
        if arguments.has(FAKE_STEP):
            from setpoint.plan.dry_run import dry_run as run_dry

            dry_run = run_dry(config, rank)
    details = {"plan": plan, "expected": estimate, "dry_run": dry_run}

    def text() -> str:
        parts = [_summary(composition.label, fingerprint(config), report, values)]
        parts += [plan.render()] if plan is not None else []
        if estimate is not None:
            from setpoint.cli.plan import render_estimate

            parts.append(render_estimate(estimate))
        if dry_run is not None:
            from setpoint.cli.check_plan import render_dry_run

            parts.append(render_dry_run(dry_run))
        return "\n\n".join(parts)

    emit(
        arguments,
        lambda: {
            "ok": True,
            "fingerprint": fingerprint(config),
            **report.to_json(),
            **values,
            **{name: part.to_json() for name, part in details.items() if part is not None},
        },
        text,
    )
    return 0


def _is_elsewhere(arguments: Arguments) -> bool:
    """True if options describe another machine."""
    return arguments.has("--world-size") or arguments.has("--gpu")


def _preflight(config: Config, arguments: Arguments) -> Preflight:
    """Run the checks, including those that need torch if a value requires it."""
    needs: set[Need] = {"files"}
    for text in arguments.values("--using"):
        needs |= {need for need in NEEDS if need in text.split(",")}
    if "torch" in needs or arguments.has(FAKE_STEP):
        needs.add("import")  # building it imports the named objects anyway
    is_elsewhere = _is_elsewhere(arguments)
    report = _verify(config, needs, is_elsewhere)
    has_ranks = isinstance(config, Job) and config.parallel.world_size != 1
    is_here = not (is_elsewhere or has_ranks)
    if report.calls_for_torch and not report.problems and is_here and has_torch():
        report = _verify(config, {*needs, "torch"}, is_elsewhere)
        for problem in report.problems:
            hint = "For a job on another machine, --world-size N skips the checks of this one."
            problem.hint = f"{problem.hint} {hint}".lstrip()
    if arguments.has("--gpu"):  # that GPU may not be in this machine
        report.problems = [each for each in report.problems if each.path != "parallel.device"]
    if report.problems:
        raise ConfigError(report.problems)
    return report


def _verify(config: Config, needs: set[Need], is_elsewhere: bool) -> Preflight:
    if isinstance(config, Job):
        return preflight(config, needs, elsewhere=is_elsewhere)
    if type(config).__name__ != "Inference":
        return Preflight(config, {}, verify(config, needs), elsewhere=is_elsewhere)
    from setpoint.infer.adopt import verify_job
    from setpoint.infer.config import Inference

    assert isinstance(config, Inference)
    return Preflight(config, {}, verify_job(config, needs), elsewhere=is_elsewhere)


def _add_run(job: Job, report: Preflight, arguments: Arguments) -> None:
    """Add the run directory to the facts, and refuse what training would refuse to resume."""
    folder = run_directory_given(arguments.source)
    if folder is None and job.seed is not None:
        report.facts["run directory"] = find_run(job)
    if folder is not None:  # its name may differ from the current fingerprint
        report.facts["run directory"] = folder
        from setpoint.train.run_status import data_position

        if position := data_position(folder):
            report.facts["data position"] = position
    if arguments.source is not None and kind_of(arguments.source) == CHECKPOINT:
        return
    path = str(report.facts["run directory"])
    if os.path.isdir(path):
        from setpoint.config import CONFIG  # most jobs have no run
        from setpoint.train.contract import ShorterDuration, check_contract

        if os.path.isfile(os.path.join(path, CONFIG)):
            try:
                check_contract(path, job, given=folder is not None)
            except ShorterDuration:
                if folder is not None:
                    raise
                report.facts["training"] = "refused: the run is longer; --name NAME creates another"


def _plan(
    job: Job, rank: int, arguments: Arguments, label: str
) -> tuple[PlanReport | None, CostEstimate | None]:
    """The plan of a rank and the expected time of its step, if requested."""
    plan = None
    if arguments.has(PLAN):
        from setpoint.cli.check_plan import make_plan

        plan = make_plan(job, rank)
    if not any(arguments.has(option.name) for option in GPU_OPTIONS):
        return plan, None
    from setpoint.cli.plan import read_cost_options
    from setpoint.plan.cost import estimate_cost

    request = read_cost_options(arguments)
    if plan is None:
        return None, None
    if job.parallel.uses_deepspeed:
        raise SetpointError("--gpu: DeepSpeed's traffic is unknown; remove --gpu")
    estimate = estimate_cost(request, job, plan.workload, plan.topology, plan.memory)
    estimate.write(label)
    return plan, estimate


def _gpu_cautions(
    job: Job, arguments: Arguments, plan: PlanReport | None, rank: int
) -> list[Caution]:
    """Cautions for a job that needs memory or kernels which a known GPU lacks."""
    spec, name = None, arguments.value("--gpu")
    if name is None and "torch" not in sys.modules:
        return []
    from setpoint.plan.fit import gpu_of, hardware_cautions, job_memory, memory_caution

    cautions: list[Caution] = []
    if name is not None:
        from setpoint.plan.gpus import gpu_named

        spec, _ = gpu_named(name, arguments.value("--gpu-file"))
        cautions += hardware_cautions(job, spec)
    gpu = gpu_of(spec, name or "", job)
    if gpu is None or job.parallel.uses_deepspeed:
        return cautions
    memory = job_memory(job, rank) if plan is None else plan.memory
    caution = memory and memory_caution(job, memory, gpu, resolver(arguments))
    return [*cautions, caution] if caution else cautions


def _summary(label: str, digest: str, report: Preflight, values: dict[str, list[str]]) -> str:
    rows = [("  fingerprint", digest[:8])]
    for name, fact in report.facts.items():
        rows.append((f"  {name}", f"{fact:,}" if isinstance(fact, int) else fact))
    exceeds = any(caution.code == EXCEEDS for caution in report.cautions)
    state = "ok, but a rank needs more memory than the GPU has" if exceeds else "ok"
    lines = [bold(f"{label}: {state}"), table(rows)]
    lines += [f"  {what}: {line}" for what, texts in values.items() for line in texts]
    lines += [f"  not checked: {_how_to_run(reason)}" for reason in report.skipped]
    for caution in report.cautions:
        lines += ["", f"caution: {caution.render().lstrip()}"]
    return "\n".join(lines)


def _how_to_run(reason: str) -> str:
    """A skipped check, with the option that runs it."""
    what, needs, requirements = reason.partition(" (needs ")
    words = requirements.removesuffix(")").split(" and ")
    if not needs or not set(words) <= set(NEEDS):
        return reason
    if "torch" in words and not has_torch():
        return f"{what} (needs torch, which is not installed)"
    return f"{what} (needs {' and '.join(words)}: --using {','.join(words)})"
