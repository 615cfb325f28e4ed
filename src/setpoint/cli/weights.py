"""From SOURCE to an inference job, for `generate`, `evaluate` and `export`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from setpoint.cli.options import COMMON, Arguments, Option
from setpoint.cli.output import print_cautions
from setpoint.cli.ranks import count_ranks, require_ranks, speaks
from setpoint.cli.show import render
from setpoint.cli.source import (
    CHECKPOINT,
    OTHER,
    RUN,
    checkpoint_and_run,
    is_hugging_face_directory,
    kind_of,
    open_record,
    open_source,
    prepare,
    run_path,
    runs_of_name,
    set_ranks_of_degrees,
    trained_run,
    variables_of,
)
from setpoint.config import (
    DERIVED,
    IDENTITY,
    PROGRAM,
    RUNTIME,
    Composition,
    Config,
    ConfigError,
    Editor,
    Origin,
    SetpointError,
    cautions_of,
    chain_of,
    compose,
    is_record,
    leaves,
)
from setpoint.config.draft.walk import Leaf
from setpoint.config.files.file_document import names_file
from setpoint.config.layers.presets import preset_named
from setpoint.config.record.record import recorded_differences
from setpoint.config.values.origin import COMMAND_LINE, DEFAULT, ENVIRONMENT, Recorded
from setpoint.config.words.names import within
from setpoint.infer.config import Inference, InferenceWeights
from setpoint.parallel.config import Parallel
from setpoint.track.run_directory import no_run
from setpoint.train.config import Job
from setpoint.train.run_name import follow_load

CHECKPOINT_OPTION = Option(
    "--checkpoint best|latest|N", "Default: best, if there is one; N: a step.", at_least=0
)
OUTPUT = Option("--output DIR", "Output directory for results and their record.")
OPTIONS = {"seed": "--sampling-seed", "output": "--output"}
"""The options that set fields of the job itself."""
TAKEN_OVER = ("model", "parallel")
"""Sections whose settings are taken over from the training job where they decide how it runs."""
OF_THE_MACHINE = ("parallel.device", "parallel.backend", "parallel.timeout")
"""Fields of `parallel` that are taken over; the others say how the training was divided."""
TYPED = (COMMAND_LINE, ENVIRONMENT)
TAKEN_OVER_BY = {"evaluate": ("data.loader", "data.prepare")}
"""Further fields, by command."""
INSTEAD = {"evaluate": {"evaluation.sequences": "--sequences", "evaluation.datasets": "--text"}}
"""Options that replace overrides of training, by command."""

TASKS = Inference.__setpoint__.fields.keys() - Job.__setpoint__.fields.keys()
"""Sections of an inference job that a training job lacks."""

SOURCE_OF_WEIGHTS = """
A preset or file stands for the run that `setpoint train` makes with the same arguments; a run
directory or a checkpoint is used as it is. SOURCE may also be the directory or hub id of a
Hugging Face model; OVERRIDES are then those of an inference job (see `setpoint infer --help`).
"""


def job_with_weights(arguments: Arguments, tasks: Mapping[str, Any]) -> Config:
    """The inference job that a short form stands for."""
    require_ranks(arguments)
    text = arguments.value("--checkpoint")
    selector = int(text) if text is not None and text.isdecimal() else text
    source = arguments.positional[0]
    if _is_hugging_face(source):
        return _of_hugging_face(source, selector, arguments, tasks)
    try:
        composition = open_source(source, arguments)
    except SetpointError as error:
        raise no_run(
            source, error, ", or the directory or hub id of a Hugging Face model"
        ) from None
    for problem in composition.problems:
        section, _, name = problem.path.replace("_", "-").rpartition(".")
        if section in TASKS:
            option, command = f"--{name}", arguments.command
            problem.hint = (
                f"A job for `setpoint infer` has this field. In {command.title}, SOURCE names the "
                f"weights; --help lists the options."
            )
            if any(known.name == option for known in command.options):
                problem.hint = f"Use {option}."
    layout = _take_layout(composition, arguments)
    job: Job = composition.resolve()
    kind = kind_of(source)
    if kind == CHECKPOINT:
        if selector is not None:
            raise SetpointError(f"{source} is already a checkpoint; remove --checkpoint {selector}")
        with open_record(source, kind, arguments) as record:
            _refuse_another_model(record, job, _sampling_seed(job, arguments))
        _refuse_what_is_over(job, arguments)
        path, _ = checkpoint_and_run(source)
    elif kind == RUN:
        path = run_path(source, arguments)
        _refuse_another_model(source, job, _sampling_seed(job, arguments))
        _refuse_what_is_over(job, arguments)
    else:
        path = trained_run(job, source)
    if not os.path.isdir(path):
        lines = [
            f"{path} does not exist: train it first, with",
            f"  {_training(job, arguments)}",
            runs_of_name(path),
        ]
        advice = _sampling_seed(job, arguments)
        raise SetpointError("\n".join(filter(None, lines)) + advice)
    if kind not in (CHECKPOINT, RUN):
        _refuse_what_is_over(job, arguments, only_instead=True)
        # A run that accepted a change with --accept keeps the name of its directory.
        if is_record(path):
            _refuse_another_model(path, follow_load(job, path))
    from setpoint.infer.adopt import adopt

    weights = InferenceWeights(path=path)
    if selector is not None:
        weights.set_field("checkpoint", selector, Origin(COMMAND_LINE, "--checkpoint"))
    draft = _job(weights, tasks)
    problems = adopt(draft)
    if problems:
        raise _explain(problems)
    _carry_over(job, draft, arguments, layout)
    return verified(Composition(draft, source, problems, []), arguments)


def _of_hugging_face(
    source: str, selector: str | int | None, arguments: Arguments, tasks: Mapping[str, Any]
) -> Config:
    from setpoint.infer.adopt import adopt

    if selector is not None:
        raise SetpointError(f"{source} is not a run, so --checkpoint {selector} has no effect")
    prepare(arguments)
    composition = compose(
        Inference,
        _job(InferenceWeights(path=source), tasks),
        modifiers=arguments.values("--with"),
        files=arguments.values("--file"),
        environ=os.environ,
        flags=arguments.overrides,
    )
    problems = adopt(composition.draft)
    if problems and not composition.problems:
        raise _explain(problems)
    return verified(composition, arguments)


def verified(composition: Composition[Any], arguments: Arguments) -> Any:
    """Resolve a job for its ranks, and look for its files before torch is imported."""
    from setpoint.infer.adopt import verify_job

    count_ranks(arguments, composition)
    job = composition.resolve()
    verification = verify_job(job, ("files",))
    if verification.problems:
        raise ConfigError(verification.problems)
    if speaks(arguments):
        cautions = (caution for caution in verification.cautions if caution not in cautions_of(job))
        # The short forms have no field `silence`.
        print_cautions(cautions, silence=arguments.command.name == "infer")
    return job


def _take_layout(composition: Composition[Job], arguments: Arguments) -> list[Leaf]:
    """Apply typed fields of `parallel` to inference, and remove them from a training job.

    The training job keeps the layout of its source; since a file does not set the number of ranks,
    that is the product of its degrees.
    """
    draft = composition.draft
    typed = [
        leaf
        for leaf in leaves(draft.parallel)
        if leaf.chain and leaf.origin.layer in TYPED and not isinstance(leaf.origin, Recorded)
    ]
    source = arguments.positional[0]
    if typed:
        layout = Parallel()
        if source != "-":  # standard input was read
            layout = open_source(source, arguments, overrides=False).draft.parallel
        draft.store("parallel", layout, Origin(PROGRAM, "SOURCE"))
    set_ranks_of_degrees(draft)
    return typed


def set_fields(arguments: Arguments, section: Config, values: Mapping[str, Any]) -> Any:
    """Fill a section with the values of options, which become their origins; None sets nothing."""
    for name, value in values.items():
        if value is None:
            continue
        option = f"--{name.replace('_', '-')}"
        known = arguments.has(option)
        origin = Origin(COMMAND_LINE, option) if known else Origin(PROGRAM, arguments.command.title)
        try:
            section.set_field(name, value, origin)
        except ConfigError as error:
            for problem in error.problems:
                # The section is not in its job yet; use its class.
                problem.path = problem.path[:1].lower() + problem.path[1:]
            raise ConfigError(error.problems) from None
    return section


def _job(weights: Config, tasks: Mapping[str, Any]) -> Any:
    draft = Inference()
    draft.set_field("weights", weights, Origin(COMMAND_LINE, "SOURCE"))
    for name, value in tasks.items():
        if value is not None:
            draft.set_field(name, value, Origin(COMMAND_LINE, OPTIONS.get(name, name)))
    return draft


def _explain(problems: list[Any]) -> SetpointError:
    """Rephrase an error about weights for a short form, which has no field for them."""
    if len(problems) == 1 and problems[0].path.startswith("weights."):
        return SetpointError(problems[0].message)
    return ConfigError(problems)


def _is_taken_over(key: str, arguments: Arguments) -> bool:
    sections = (*TAKEN_OVER, *TAKEN_OVER_BY.get(arguments.command.name, ()))
    return any(within(key, section) for section in sections)


def _carry_over(job: Job, draft: Config, arguments: Arguments, layout: Iterable[Leaf]) -> None:
    """Carry over run-time settings, and fields of the model that do not affect its weights."""
    editor = Editor(draft)
    for leaf in layout:
        editor.set(["parallel", *map(str, leaf.path)], leaf.value, leaf.origin)
    for leaf in leaves(job):
        today = leaf.chain and not isinstance(leaf.origin, Recorded)
        given = today and leaf.origin.layer not in (DEFAULT, DERIVED)
        is_layout = within(leaf.key, "parallel") and leaf.key not in OF_THE_MACHINE
        taken = leaf.role is RUNTIME and _is_taken_over(leaf.key, arguments) and not is_layout
        if given and taken:
            editor.set([str(part) for part in leaf.path], leaf.value, leaf.origin)
    if editor.problems:
        raise ConfigError(editor.problems)


def _is_hugging_face(source: str) -> bool:
    if preset_named(source):
        return False
    if os.path.isdir(source):
        return is_hugging_face_directory(source)
    from setpoint.hub.fetch import split_hub_id

    is_local = os.path.isdir(os.path.dirname(source)) or names_file(source)
    return not is_local and split_hub_id(source) is not None and kind_of(source) == OTHER


def _refuse_another_model(folder: str, job: Job, advice: str = "") -> None:
    """Refuse a run's weights under a configuration that differs in an identity field."""
    differences = [item for item in recorded_differences(folder, job) if item.role is IDENTITY]
    if not differences:
        return
    count = f"{len(differences)} value{'s differ' if len(differences) > 1 else ' differs'}"
    lines = [
        f"{folder} was not trained with this configuration: {count} from its record",
        "",
        *(f"  {line}" for line in render(differences, ["saved", "requested"])),
        "",
        "  Only runtime and budget fields may differ. To use these weights with the configuration",
        f"  they were trained with, give the run directory as SOURCE: {folder}",
    ]
    raise SetpointError("\n".join(lines) + advice)


def _sampling_seed(job: Job, arguments: Arguments) -> str:
    """Advice about `generate --seed`, which is the seed of training."""
    is_given = chain_of(job, "seed") and chain_of(job, "seed")[-1][0].layer == COMMAND_LINE
    if arguments.command.name != "generate" or not is_given:
        return ""
    return "\n--seed is that of the training; to sample another text: --sampling-seed N"


def _refuse_what_is_over(job: Job, arguments: Arguments, only_instead: bool = False) -> None:
    """Refuse training overrides that have no effect on trained weights, such as `evaluation`.

    With a preset or a file, the command line may be that of the training run, so only names similar
    to an option of the command are refused.
    """
    command, source = arguments.command.name, arguments.positional[0]
    lines: list[str] = []
    for leaf in leaves(job):
        today = leaf.chain and not isinstance(leaf.origin, Recorded)
        if not today or leaf.role is not RUNTIME or _is_taken_over(leaf.key, arguments):
            continue
        path = [str(part) for part in leaf.path]
        option = INSTEAD.get(command, {}).get(".".join(path[:2]))
        # Variables may be set for other commands, so only names similar to an option are refused.
        typed = leaf.origin.layer == COMMAND_LINE and not only_instead
        if not typed and not (option and leaf.origin.layer in (COMMAND_LINE, ENVIRONMENT)):
            continue
        given = f"  {leaf.key} ({leaf.origin.describe(leaf.path)})"
        lines.append(f"{given}: use {option}" if option else given)
    if lines:
        count = f"{len(lines)} value{'s have' if len(lines) > 1 else ' has'}"
        lines = [f"{count} no effect: the training of {source} is over", "", *lines, ""]
        *more, last = (*TAKEN_OVER, *TAKEN_OVER_BY.get(command, ()))
        lines += [
            f"  setpoint {command} uses only runtime fields of {', '.join(more)} and {last}. "
            "For everything else it",
            f"  has options (setpoint {command} --help), or write a job for setpoint infer.",
        ]
        raise SetpointError("\n".join(lines))


def _training(job: Job, arguments: Arguments) -> str:
    """The command that trains the missing run."""
    words = ["setpoint", "train", arguments.positional[0]]
    for option in COMMON:
        for value in arguments.values(option.name):
            words += [option.name, value]
    # Overrides of `parallel` apply to inference.
    for word in arguments.overrides:
        if not within(word.lstrip("-").partition("=")[0].replace("-", "_"), "parallel"):
            words.append(word)
    return variables_of(job) + shlex.join(words)
