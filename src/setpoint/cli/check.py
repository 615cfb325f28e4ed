"""`setpoint check`: everything that can be verified without running."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from setpoint.cli.options import (
    COMMON,
    GPU,
    GPU_FILE,
    GPU_OPTIONS,
    JSON,
    POWER,
    PRICE,
    SOURCE_HELP,
    TIMELINE,
    WITH,
    WORLD_SIZE,
    Arguments,
    Command,
    Option,
)
from setpoint.cli.output import bold, emit, table
from setpoint.cli.source import CHECKPOINT, kind_of, open_source, run_directory_given
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
from setpoint.plan.preflight import Preflight, preflight
from setpoint.train.config import Job
from setpoint.train.run_name import find_run

if TYPE_CHECKING:
    from setpoint.cli.check_plan import Plan
    from setpoint.cli.plan import CostEstimate

PLAN, FAKE_STEP, RANK = "--plan", "--fake-step", "--rank"
EXCEEDS = "memory-exceeds-gpu"


@Command(
    "check",
    "SOURCE [OVERRIDES]",
    "Verify a configuration without running it: every name, type and range, every rule between\n"
    "fields, the batch arithmetic for any number of ranks, and the paths it names. All problems\n"
    "are reported at once; the exit status is 2 if there are any. A legal but unusual value gives\n"
    "a caution, a warning with a code that --silence.append CODE hides.\n"
    "\n"
    "Torch is imported where it is installed and a value calls for it, such as a device, compile\n"
    "or float8; not with --world-size or --gpu, for jobs of other machines. Checks that could not\n"
    "run are listed as not checked, with the --using that runs them as well.\n"
    "A value of a modifier that an override replaced is listed as overridden.\n" + SOURCE_HELP,
    [
        *COMMON,
        WORLD_SIZE,
        Option("--using", "Also run the checks that need torch, import or network.", "NEED", True,
               NEEDS),
        Option(PLAN, "Also show parameter groups, and the mesh, memory and traffic of a rank."),
        Option(FAKE_STEP, "Run one step of one rank on fake tensors; report its memory."),
        Option(RANK, "The rank of --plan and --fake-step; default: 0.", "N", type=int, at_least=0,
               requires=(PLAN, FAKE_STEP)),
        *GPU_OPTIONS,
        JSON,
    ],
    [
        ("setpoint check tiny", "the preset as it is"),
        ("setpoint check exp.toml --world-size 1024", "before the queue, on a laptop"),
        ("setpoint check tiny --plan", "parameter groups and memory"),
        ("setpoint check exp.toml --world-size 1024 --plan", "and mesh and traffic of a rank"),
        (
            "setpoint check exp.toml --world-size 64 --plan --gpu h100",
            "and time and cost of a step",
        ),
        ("setpoint check exp.toml --world-size 64 --fake-step", "memory and traffic of a rank"),
        ("setpoint check tiny --batch.global_size 100", "numbers that do not fit are explained"),
    ],
)  # fmt: skip
def check(arguments: Arguments) -> int:
    """Resolve, check, and print the facts of the run."""
    for option in (PRICE, POWER, TIMELINE):
        if arguments.has(option.name) and not arguments.has(PLAN):
            raise SetpointError(f"{option.name} has no effect without {PLAN}")
    composition = open_source(arguments.source, arguments)
    config = composition.resolve()
    report = _preflight(config, arguments)
    values = {
        "dropped": list(dropped_values(config)),
        "overridden": list(overridden(config)) if arguments.has(WITH.name) else [],
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
    else:
        for name in (PLAN, FAKE_STEP, *(option.name for option in GPU_OPTIONS)):
            if arguments.has(name):
                kind = type(config).__name__
                raise SetpointError(f"{name} has no effect: {kind} is not a training job")
    details = {"plan": plan, "expected": estimate, "dry_run": dry_run}

    def text() -> str:
        parts = [_summary(composition.label, fingerprint(config), report, values)]
        parts += [part.render() for part in (plan, estimate) if part is not None]
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


def _preflight(config: Config, arguments: Arguments) -> Preflight:
    """Run the checks; those that need torch where a value calls for it.

    Raises:
        ConfigError: if there are problems.
    """
    needs: set[Need] = {"files"}
    for text in arguments.values("--using"):
        needs |= {need for need in NEEDS if need in text.split(",")}
    if "torch" in needs or arguments.has(FAKE_STEP):
        needs.add("import")  # what is built of it imports what it names anyway
    report = _verify(config, needs)
    is_elsewhere = arguments.has(WORLD_SIZE.name) or arguments.has(GPU.name)
    if isinstance(config, Job) and config.parallel.world_size != 1:
        is_elsewhere = True
    if report.calls_for_torch and not report.problems and not is_elsewhere and _has_torch():
        report = _verify(config, {*needs, "torch"})
        for problem in report.problems:
            hint = "For a job of another machine, --world-size N leaves this one out."
            problem.hint = f"{problem.hint} {hint}".lstrip()
    if arguments.has(GPU.name):  # which is not this machine's
        report.problems = [each for each in report.problems if each.path != "parallel.device"]
    if report.problems:
        raise ConfigError(report.problems)
    return report


def _verify(config: Config, needs: set[Need]) -> Preflight:
    if isinstance(config, Job):
        return preflight(config, needs)
    if type(config).__name__ != "Inference":
        return Preflight({}, verify(config, needs))
    from setpoint.infer.adopt import verify_job
    from setpoint.infer.config import Inference

    assert isinstance(config, Inference)
    return Preflight({}, verify_job(config, needs))


def _has_torch() -> bool:
    # As `importlib.util.find_spec`, which is not free to import.
    return any(finder.find_spec("torch", None) is not None for finder in sys.meta_path)


def _add_run(job: Job, report: Preflight, arguments: Arguments) -> None:
    """Add the run directory to the facts; refuse what training would refuse to resume."""
    folder = run_directory_given(arguments.source)
    if folder is None and job.seed is not None:
        report.facts["run directory"] = find_run(job)
    if folder is not None:  # whose name need not be that of today's fingerprint
        report.facts["run directory"] = folder
        from setpoint.train.run_status import data_position

        if position := data_position(folder):
            report.facts["data position"] = position
    if arguments.source is not None and kind_of(arguments.source) == CHECKPOINT:
        return
    path = str(report.facts["run directory"])
    if os.path.isdir(path):
        from setpoint.config import CONFIG  # most jobs have no run
        from setpoint.train.contract import check_contract

        if os.path.isfile(os.path.join(path, CONFIG)):
            check_contract(path, job, given=folder is not None)


def _plan(
    job: Job, rank: int, arguments: Arguments, label: str
) -> tuple[Plan | None, CostEstimate | None]:
    """The plan of a rank, and the expected time of its step, as far as they are asked for."""
    plan = None
    if arguments.has(PLAN):
        from setpoint.cli.check_plan import make_plan

        plan = make_plan(job, rank)
    if not any(arguments.has(option.name) for option in GPU_OPTIONS):
        return plan, None
    from setpoint.cli.plan import estimate_cost, read_cost_options

    request = read_cost_options(arguments)
    if plan is None:
        return None, None
    if job.parallel.uses_deepspeed:
        raise SetpointError(f"{GPU.name}: the traffic of DeepSpeed is not known. Leave it out")
    estimate = estimate_cost(request, job, plan.workload, plan.topology, plan.memory)
    estimate.write(label)
    return plan, estimate


def _gpu_cautions(job: Job, arguments: Arguments, plan: Plan | None, rank: int) -> list[Caution]:
    """Cautions of a job for which a known GPU lacks memory or kernels."""
    machine, name = None, arguments.value(GPU.name)
    if name is None and "torch" not in sys.modules:
        return []
    from setpoint.cli.check_plan import gpu_of, hardware_cautions, job_memory, memory_caution

    cautions: list[Caution] = []
    if name is not None:
        from setpoint.plan.machines import machine_named

        machine, _ = machine_named(name, arguments.value(GPU_FILE.name))
        cautions += hardware_cautions(job, machine)
    gpu = gpu_of(machine, name or "", job)
    if gpu is None or job.parallel.uses_deepspeed:
        return cautions
    memory = job_memory(job, rank) if plan is None else plan.memory
    typed = list(arguments.overrides)

    def change(texts: list[str]) -> Job:
        arguments.overrides = [*typed, *texts]
        try:
            return open_source(arguments.source, arguments).resolve()
        finally:
            arguments.overrides = typed

    caution = None if memory is None else memory_caution(job, memory, gpu, change)
    return cautions if caution is None else [*cautions, caution]


def _summary(label: str, digest: str, report: Preflight, values: dict[str, list[str]]) -> str:
    rows = [("  fingerprint", digest[:8])]
    for name, fact in report.facts.items():
        rows.append((f"  {name}", f"{fact:,}" if isinstance(fact, int) else fact))
    exceeds = any(caution.code == EXCEEDS for caution in report.cautions)
    state = "ok, but a rank takes more memory than the GPU has" if exceeds else "ok"
    lines = [bold(f"{label}: {state}"), table(rows)]
    lines += [f"  {what}: {line}" for what, texts in values.items() for line in texts]
    lines += [f"  not checked: {_how_to_run(reason)}" for reason in report.skipped]
    for caution in report.cautions:
        lines += ["", f"caution: {caution.render().lstrip()}"]
    return "\n".join(lines)


def _how_to_run(reason: str) -> str:
    """Say of a check that was skipped how it is run."""
    what, needs, rest = reason.partition(" (needs ")
    words = rest.removesuffix(")").split(" and ")
    if not needs or not set(words) <= set(NEEDS):
        return reason
    if "torch" in words and not _has_torch():
        return f"{what} (needs torch, which is not installed)"
    return f"{what} (needs {' and '.join(words)}: --using {','.join(words)})"
