"""`setpoint check`: everything that can be verified without running."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from setpoint.cli.options import (
    COMMON,
    GPU,
    GPU_OPTIONS,
    JSON,
    MACHINES,
    SOURCE_HELP,
    WITH,
    WORLD_SIZE,
    Arguments,
    Command,
    Option,
)
from setpoint.cli.output import bold, table
from setpoint.cli.source import CHECKPOINT, kind_of, open_source, run_directory_given
from setpoint.config import (
    NEEDS,
    Caution,
    Config,
    ConfigError,
    Need,
    SetpointError,
    Verification,
    did_you_mean,
    dropped_values,
    fingerprint,
    overridden,
    shared,
    verify,
)
from setpoint.plan.preflight import Preflight, preflight
from setpoint.train.config import Job
from setpoint.train.run_name import find_run

if TYPE_CHECKING:
    from setpoint.cli.check_plan import Plan
    from setpoint.cli.expected import Expected
    from setpoint.plan.dry_run import DryRun

USING = Option(
    "--using",
    "Also run the checks that need torch, import or network.",
    "NEED",
    True,
    choices=NEEDS,
)
EXCEEDS = "memory-exceeds-gpu"
PLAN = Option(
    "--plan",
    "Also show parameter groups, and the mesh, memory and traffic of a rank.",
)
DRY_RUN = Option(
    "--dry-run",
    "Run one step of one rank on fake tensors; report its memory.",
)
RANK = Option("--rank", "The rank of --plan and --dry-run; default: 0.", "N")
COMMAND = Command(
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
    [*COMMON, WORLD_SIZE, USING, PLAN, DRY_RUN, RANK, *GPU_OPTIONS, JSON],
    [
        ("setpoint check tiny", "the preset as it is"),
        ("setpoint check exp.toml --world-size 1024", "before the queue, on a laptop"),
        ("setpoint check tiny --plan", "parameter groups and memory"),
        ("setpoint check exp.toml --world-size 1024 --plan", "and mesh and traffic of a rank"),
        (
            "setpoint check exp.toml --world-size 64 --plan --gpu h100",
            "and time and cost of a step",
        ),
        ("setpoint check exp.toml --world-size 64 --dry-run", "memory and traffic of a rank"),
        ("setpoint check tiny --batch.global_size 100", "numbers that do not fit are explained"),
    ],
)


@COMMAND
def run(arguments: Arguments) -> int:
    """Resolve, check, and print what the run would be."""
    composition = open_source(arguments.source, arguments)
    config = composition.resolve()
    able = _able(arguments)
    report = _look(config, able)
    if report.calls_for_torch and not report.problems and _is_for_this_machine(config, arguments):
        report = _look(config, {*able, "torch"})
        for problem in report.problems:
            hint = "For a job of another machine, --world-size N leaves this one out."
            problem.hint = f"{problem.hint} {hint}".lstrip()
    if arguments.has(GPU.name):  # which is not this machine's
        report.problems = [each for each in report.problems if each.path != "parallel.device"]
    if report.problems:
        raise ConfigError(report.problems)
    if isinstance(config, Job):
        folder = run_directory_given(arguments.source)
        if folder is None and config.seed is not None:
            report.facts["run directory"] = find_run(config)
        if folder is not None:  # whose name need not be that of today's fingerprint
            report.facts["run directory"] = folder
            from setpoint.train.run_status import data_position

            if place := data_position(folder):
                report.facts["data position"] = place
        if arguments.source is None or kind_of(arguments.source) != CHECKPOINT:
            _compare_with_record(config, str(report.facts["run directory"]), folder is not None)
    values = {
        "dropped": list(dropped_values(config)),
        "overridden": _overridden(config) if arguments.has(WITH.name) else [],
        "shared": list(shared(config)),
    }
    rank = _rank(arguments)
    plan = _plan(config, rank) if arguments.has(PLAN.name) else None
    expected = _expected(config, arguments, plan, composition.label)
    if isinstance(config, Job):
        report.cautions += _of_gpu(config, arguments, plan, rank)
    dry = _dry_run(config, rank) if arguments.has(DRY_RUN.name) else None
    if arguments.has("--json"):
        import json

        identity = {"ok": True, "fingerprint": fingerprint(config)}
        facts = {**identity, **report.to_json(), **values}
        found = {"plan": plan, "expected": expected, "dry_run": dry}
        more = {name: each.to_json() for name, each in found.items() if each is not None}
        print(json.dumps(facts | more, indent=2))
        return 0
    print(_summary(composition.label, fingerprint(config), report, values))
    if plan is not None:
        print(f"\n{plan.render()}")
    if expected is not None:
        print(f"\n{expected.render()}")
    if dry is not None:
        from setpoint.cli.check_plan import render_dry_run

        print(f"\n{render_dry_run(dry)}")
    return 0


def _compare_with_record(job: Job, folder: str, given: bool) -> None:
    """Refuse what training would refuse to resume, where the job has a run already."""
    if os.path.isdir(folder):
        from setpoint.config import CONFIG  # most jobs have no run
        from setpoint.train.contract import check_contract

        if os.path.isfile(os.path.join(folder, CONFIG)):
            check_contract(folder, job, given=given)


def _look(config: Config, able: set[Need]) -> Preflight:
    if isinstance(config, Job):
        return preflight(config, able)
    return Preflight({}, _verify(config, able))


def _is_for_this_machine(config: Config, arguments: Arguments) -> bool:
    """Whether torch, where it is installed, can tell what the job lacks."""
    if arguments.has(WORLD_SIZE.name) or arguments.has(GPU.name) or not _has_torch():
        return False
    return not isinstance(config, Job) or config.parallel.world_size == 1


def _has_torch() -> bool:
    # As `importlib.util.find_spec`, which is not free to import.
    return any(finder.find_spec("torch", None) is not None for finder in sys.meta_path)


def _verify(config: Config, able: set[Need]) -> Verification:
    if type(config).__name__ != "Inference":
        return verify(config, able)
    from setpoint.infer.adopt import verify_job
    from setpoint.infer.config import Inference

    assert isinstance(config, Inference)
    return verify_job(config, able)


def _rank(arguments: Arguments) -> int:
    rank = arguments.integer(RANK.name, at_least=0)
    if rank is not None and not (arguments.has(PLAN.name) or arguments.has(DRY_RUN.name)):
        raise SetpointError("--rank has no effect without --plan or --dry-run. Leave it out")
    return rank or 0


def _plan(config: Config, rank: int) -> Plan:
    from setpoint.cli.check_plan import make_plan

    return make_plan(_trained(config, PLAN), rank)


def _expected(
    config: Config, arguments: Arguments, plan: Plan | None, label: str
) -> Expected | None:
    """The expected time of a step, drawn into a file where that was asked for."""
    if not any(arguments.has(option.name) for option in GPU_OPTIONS):
        return None
    from setpoint.cli.expected import asked_of, expect

    asked = asked_of(arguments)
    if plan is None:
        for option in GPU_OPTIONS:
            if option not in (GPU, MACHINES) and arguments.has(option.name):
                raise SetpointError(f"{option.name} has no effect without {PLAN.name}. Add that")
        return None
    job = _trained(config, PLAN)
    if job.parallel.uses_deepspeed:
        raise SetpointError(f"{GPU.name}: what DeepSpeed sends is not known here. Leave it out")
    expected = expect(asked, job, plan.workload, plan.topology, plan.memory)
    expected.write(label)
    return expected


def _of_gpu(job: Job, arguments: Arguments, plan: Plan | None, rank: int) -> list[Caution]:
    """Cautions of a job that a known GPU has no memory or no kernels for."""
    machine, name = None, arguments.value(GPU.name)
    if name is None and "torch" not in sys.modules:
        return []
    from setpoint.cli.fitting import gpu_of, hardware_cautions, memory_caution, memory_of

    cautions: list[Caution] = []
    if name is not None:
        from setpoint.plan.machines import machine_named

        machine, _ = machine_named(name, arguments.value(MACHINES.name))
        cautions += hardware_cautions(job, machine)
    gpu = gpu_of(machine, name or "", job)
    if gpu is None or job.parallel.uses_deepspeed:
        return cautions
    memory = memory_of(job, rank) if plan is None else plan.memory
    typed = list(arguments.overrides)

    def change(texts: list[str]) -> Job:
        arguments.overrides = [*typed, *texts]
        try:
            return open_source(arguments.source, arguments).resolve()
        finally:
            arguments.overrides = typed

    caution = None if memory is None else memory_caution(job, memory, gpu, change)
    return cautions if caution is None else [*cautions, caution]


def _dry_run(config: Config, rank: int) -> DryRun:
    job = _trained(config, DRY_RUN)
    from setpoint.plan.dry_run import dry_run

    return dry_run(job, rank)


def _trained(config: Config, option: Option) -> Job:
    if isinstance(config, Job):
        return config
    raise SetpointError(
        f"{option.name} has no effect: a {type(config).__name__} trains nothing. Leave it out"
    )


def _overridden(config: Config) -> list[str]:
    return list(overridden(config))


def _summary(label: str, digest: str, report: Preflight, values: dict[str, list[str]]) -> str:
    rows = [("  fingerprint", digest[:8])]
    for name, fact in report.facts.items():
        rows.append((f"  {name}", f"{fact:,}" if isinstance(fact, int) else fact))
    exceeds = any(caution.code == EXCEEDS for caution in report.cautions)
    state = "ok, but a rank takes more memory than the GPU has" if exceeds else "ok"
    lines = [bold(f"{label}: {state}"), table(rows)]
    lines += [f"  {what}: {line}" for what, found in values.items() for line in found]
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


def _able(arguments: Arguments) -> set[Need]:
    """What the checks may use: files, and what was asked for."""
    able: set[Need] = {"files"}
    for text in arguments.options.get(USING.name, []):
        for word in text.split(","):
            if word not in NEEDS:
                meant = did_you_mean(word, NEEDS, " ")
                raise SetpointError(f"--using is one of {', '.join(NEEDS)}; got {word!r}.{meant}")
            able.add(word)
    if "torch" in able or arguments.has(DRY_RUN.name):
        able.add("import")  # what is built of it imports what it names anyway
    return able
