"""From SOURCE and OVERRIDES to a configuration, the same way for every command."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from setpoint.cli.options import GPU, Arguments, import_named, refuse_misspelt_options
from setpoint.cli.sources.kind import (
    OTHER,
    RECORDED,
    RUN,
    is_hugging_face_directory,
    kind_of,
)
from setpoint.config import (
    COMMAND_LINE,
    ENVIRONMENT,
    SUFFIXES,
    Composition,
    Config,
    Origin,
    Recorded,
    SetpointError,
    chain_of,
    compose,
    find_user_function,
    leaves,
    nearest,
    preset_named,
    presets,
    read_file,
    written,
)

if TYPE_CHECKING:
    from setpoint.config import Document

FOR_ANY_JOB = ("infer", "check", "show", "why", "diff", "fingerprint")
"""The commands that take inference jobs as well as training jobs."""


def open_source(
    source: str | Document | None, arguments: Arguments, *, overrides: bool = True
) -> Composition[Any]:
    """Merge all layers for a source.

    Arguments:
        source: as typed, or a file that is read already; None stands for the defaults alone.

    Returns:
        the merged draft of the root class of the program, with the problems found so far.

    Raises:
        SetpointError: if the source or a layer cannot be read, or the number of ranks is given
            twice.
    """
    prepare(arguments)
    root = root_of(source, arguments)
    if overrides:
        refuse_misspelt_options(arguments, root.__setpoint__.fields, root)
    files: list[str | Document] = [*arguments.options.get("--file", [])] if overrides else []
    title = source
    if source is not None and not isinstance(source, str):
        source, title, files = None, source.name, [source, *files]
    start: str | Config | None = source
    notes: list[str] = []
    further = overrides and arguments.has("--config-from-stdin")
    if source == "-" or (further and "-" not in arguments.positional):
        from setpoint.cli.standard_input import read_standard_input

        document = read_standard_input(arguments)
        start, files = (None, [document, *files]) if source == "-" else (start, [*files, document])
    kind = OTHER if source is None or source == "-" else kind_of(source)
    if source is not None and kind == OTHER and not arguments.command.program.is_own:
        _refuse_other_file(source, arguments.command.name)
    if source is not None and kind in RECORDED:
        # Records are read by few calls, and what reads them is not free to import.
        from setpoint.cli.sources.record import open_record
        from setpoint.config import read_record

        if is_hugging_face_directory(source) and not arguments.command.program.is_own:
            raise SetpointError(
                f"{source} holds a model in the format of Hugging Face and no configuration; "
                f"`setpoint import {source} --output model.toml` writes one"
            )
        with open_record(source, kind, arguments) as folder:
            start, header = read_record(root, folder)
        notes.extend(header["notes"])
    size = arguments.integer("--world-size")
    try:
        composition: Composition[Any] = compose(
            root,
            start,
            modifiers=arguments.options.get("--with", []) if overrides else [],
            files=files,
            environ=os.environ if overrides else None,
            flags=arguments.overrides if overrides else [],
        )
    except SetpointError as error:
        if source is None or kind != OTHER:
            raise
        raise _or_directory(error, source) from None
    if size is not None and overrides:
        parallel = composition.draft.parallel
        origins = [origin for origin, _ in chain_of(parallel, "world_size")]
        # The command line of the run that a record is of does not count.
        if any(o.layer == COMMAND_LINE and not isinstance(o, Recorded) for o in origins):
            raise SetpointError(
                "--world-size and parallel.world_size are the same number and both are given; "
                "leave one of them out"
            )
        parallel.set_field("world_size", size, Origin(COMMAND_LINE, "--world-size"))
    # A GPU that is named is the one that `auto` would find where the job runs.
    if overrides and arguments.has(GPU.name) and composition.draft.parallel.device == "auto":
        origin = Origin(COMMAND_LINE, f"{GPU.name} {arguments.value(GPU.name)}")
        composition.draft.parallel.set_field("device", "cuda", origin)
    composition.notes[:0] = notes
    if root.__module__ == "setpoint.infer.config":
        from setpoint.infer.adopt import adopt

        # What the weights come with lies under all layers, and is known only after them.
        composition.problems.extend(adopt(composition.draft))
    if composition.notes:
        from setpoint.cli.output import print_notes

        print_notes(composition.notes)
    composition.label = "standard input" if source == "-" else str(title or "the defaults")
    return composition


def _or_directory(error: SetpointError, source: str) -> SetpointError:
    """The error, and of a source that is no preset that it is no file or directory either."""
    said, unknown = str(error), f"there is no preset {source!r}"
    if not source or not said.startswith(f"{unknown}."):
        return error
    from setpoint.cli.sources.offer import offer

    near = {os.path.basename(each): each for each in offer("")}
    close = nearest(source, near, 1)
    meant = f" (did you mean {near[close[0]]}?)" if close else ""
    more = f", and no file or directory of that name here{meant}"
    return SetpointError(unknown + more + said.removeprefix(unknown))


def _refuse_other_file(source: str, command: str) -> None:
    """Refuse a text or a Python file in the place of SOURCE, with what it is given as."""
    if source.endswith(SUFFIXES) or preset_named(source) or not os.path.isfile(source):
        return
    verb = command if command in ("check", "show", "sweep") else "train"
    said = f"{source} is no configuration: their files end in {', '.join(SUFFIXES)}. "
    if source.endswith(".py"):
        module = source.removesuffix(".py").replace(os.sep, ".")
        raise SetpointError(
            f"{said}A function in it that returns one is given as module:function: setpoint {verb} "
            f"{module}:FUNCTION"
        )
    values = {"data.sources": [{"type": "text", "paths": [source]}]}
    flags = written(values, Origin(COMMAND_LINE))
    raise SetpointError(
        f"{said}A text to train on is data of a preset or a file: setpoint {verb} tiny {flags}"
    )


def root_of(source: str | Document | None, arguments: Arguments) -> type[Config]:
    """The class of the configuration: the program's, or that of an inference job.

    Raises:
        SetpointError: if it is an inference job, and the command is for training jobs only.
    """
    program, command = arguments.command.program, arguments.command
    if program.is_own or source is None or not _is_inference(source):
        return program.root
    if command.name not in FOR_ANY_JOB:
        name = source if isinstance(source, str) else source.name
        raise SetpointError(
            f"{name} is an inference job, which says itself what to do: `setpoint infer {name}`. "
            f"{command.title} takes training jobs"
        )
    from setpoint.infer.config import Inference

    return Inference


def _is_inference(source: str | Document, depth: int = 0) -> bool:
    """Whether a source is an inference job: a file with weights, its results, or a function."""
    if not isinstance(source, str):
        return "weights" in source.data
    function = presets.get(name) if (name := preset_named(source)) else None
    if function is None and os.path.isdir(source):
        return os.path.isfile(os.path.join(source, "results.json"))
    if function is None and os.path.isfile(source):
        return source.endswith(SUFFIXES) and _has_weights(source, depth)
    if function is None and ":" in source and kind_of(source) == OTHER:
        function = find_user_function(source.partition("(")[0])
    returned = getattr(function, "__annotations__", {}).get("return")
    return getattr(returned, "__name__", str(returned)).rpartition(".")[2] == "Inference"


def _has_weights(path: str, depth: int) -> bool:
    """Whether a file, or one that it extends, has the section `weights`."""
    try:
        with open(path, "rb") as file:
            start = file.read(1_000_000)
    except OSError:
        return False  # what reads it says so
    if b"weights" not in start and (b"extends" not in start or depth > 8):
        return False
    data = read_file(path).data
    parents = data.get("extends", [])
    names = [parents] if isinstance(parents, str) else parents
    beside = os.path.dirname(path)
    return "weights" in data or any(
        _is_inference(os.path.join(beside, name) if name.endswith(SUFFIXES) else name, depth + 1)
        for name in (names if isinstance(names, list) else [])
        if isinstance(name, str)
    )


def run_directory_given(source: str | None) -> str | None:
    """The run directory that a source is, and that training it goes on in.

    Returns:
        the directory; None for other sources, and for a point of a sweep, which is trained anew.
    """
    if source is None or kind_of(source) != RUN:
        return None
    from setpoint.sweep.point_record import is_point

    return None if is_point(source) else source


def variables_of(config: Config) -> str:
    """The environment variables that gave values, as they stand before a command to copy.

    Returns:
        `NAME=value ` for each; what a record has of another environment does not count.
    """
    import shlex

    origins = [leaf.origin for leaf in leaves(config) if leaf.chain]
    given = [o for o in origins if o.layer == ENVIRONMENT and not isinstance(o, Recorded)]
    # The number of ranks is the launcher's to say, which is started again, too.
    own = os.environ.keys() - ({"WORLD_SIZE"} if "RANK" in os.environ else set())
    names = dict.fromkeys(o.label for o in given if o.label in own)
    return "".join(f"{name}={shlex.quote(os.environ[name])} " for name in names)


def prepare(arguments: Arguments) -> None:
    """Make known what a source may name: presets and modifiers, and the modules of `--import`.

    Raises:
        SetpointError: if a module cannot be imported.
    """
    import_named(arguments.command.program, arguments.options.get("--import", []))
