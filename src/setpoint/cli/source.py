"""Composition of a configuration from SOURCE and OVERRIDES, for all commands."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any, TextIO, cast

from setpoint.cli.options import Arguments, import_named, refuse_misspelt_options, text_flags
from setpoint.config import (
    PROGRAM,
    Composition,
    Config,
    Origin,
    Problem,
    SetpointError,
    chain_of,
    compose,
    fields_of,
    is_record,
    leaves,
    nearest,
)
from setpoint.config.files.file_document import FORMATS, MAX_BYTES, names_file
from setpoint.config.files.read import parse_bytes, read_file
from setpoint.config.layers.environment_variables import prefix_of
from setpoint.config.layers.presets import UnknownPreset, preset_named, presets
from setpoint.config.record.record import Table, leaf_table, recorded_table
from setpoint.config.types.compound import SectionType
from setpoint.config.values.origin import COMMAND_LINE, ENVIRONMENT, Recorded
from setpoint.config.values.reference import Reference
from setpoint.config.values.user_code import find_user_function
from setpoint.files import MANIFEST

if TYPE_CHECKING:
    from setpoint.config import FileDocument
    from setpoint.config.files.file_document import Format
    from setpoint.train.config import Job

RUN, CHECKPOINT, REVISION = "run", "checkpoint", "revision"
FOREIGN, OTHER = "foreign", "other"
"""The kinds of sources; the first three are, or become, a folder with a record."""
POINTERS = ("latest", "best")
FOR_ANY_JOB = ("infer", "check", "show", "why", "diff", "fingerprint")
"""The commands that take inference jobs as well as training jobs."""
TRAINING = ("train", "launch", "sweep")
"""The commands that read the training data."""
LAYERS = ("--with", "--file", "--world-size", "--config-from-stdin")
"""The options that put a layer on a source."""


def open_source(
    source: str | FileDocument | None, arguments: Arguments, *, overrides: bool = True
) -> Composition[Any]:
    """Merge all layers for a source; None means only the defaults.

    Arguments:
        overrides: whether the other layers, and the environment, apply to this source.
    """
    prepare(arguments)
    root = root_of(source, arguments)
    if overrides:
        refuse_misspelt_options(arguments, root)
    given = arguments if overrides else Arguments(arguments.command)
    files: list[str | FileDocument] = [*given.values("--file")]
    label, notes = str(source or "the defaults"), list[str]()
    start: str | Config | None = None

    def read_other(name: str) -> FileDocument | None:
        return open_foreign(name, given.foreign if name == source else ())

    if source is not None and not isinstance(source, str):
        label, files = source.name, [source, *files]
    elif source == "-":
        label, files = "standard input", [read_standard_input(arguments), *files]
    elif source is not None:
        start, notes = _open_start(source, root, arguments)
    if given.has("--config-from-stdin") and "-" not in arguments.positional:
        files.append(read_standard_input(arguments))
    try:
        composition: Composition[Any] = compose(
            root,
            start,
            modifiers=given.values("--with"),
            files=files,
            environ=os.environ if overrides else None,
            flags=given.overrides,
            open_foreign=read_other,
        )
    except UnknownPreset as error:
        if error.name != source:
            raise
        near = {os.path.basename(path): path for path in (*files_here(), *run_directories())}
        close = nearest(str(source), near, 1)
        meant = f" (did you mean {near[close[0]]}?)" if close else ""
        elsewhere = f", and no file or directory has that name{meant}"
        raise UnknownPreset(error.kind, error.name, error.known, elsewhere) from None
    is_file = isinstance(source, str) and names_file(source) and kind_of(source) == OTHER
    if composition.problems and is_file:
        from setpoint.interop.dialect import DIALECTS, recognize

        if dialect := recognize(str(source)):
            composition = open_source(f"{dialect}:{source}", arguments, overrides=overrides)
            meant = f"{source} is a file of {DIALECTS[dialect]}, read as {dialect}:{source}"
            _print_new_notes([meant], arguments)
            return composition
    if given.foreign and (not isinstance(source, str) or dialect_and_file(source) is None):
        raise SetpointError(
            f"arguments after -- are overrides in the syntax of another system, for a SOURCE in "
            f"its format, DIALECT:FILE; got {label}"
        )
    sections = (name for name, i in fields_of(root).items() if isinstance(i.type, SectionType))
    if any(isinstance(vars(composition.draft).get(name), Reference) for name in sections):
        composition.resolve()  # refuses it: the reference leads to no such section
    _set_ranks_and_device(composition, given)
    composition.notes[:0] = notes
    if arguments.has("--strict"):
        _refuse_reports(composition)
    else:
        _report_missing_data(composition, arguments.command.name in TRAINING)
    if root.__module__ == "setpoint.infer.config":
        from setpoint.infer.adopt import adopt

        # Values of the weights are below all layers, and are known only after these.
        composition.problems.extend(adopt(composition.draft))
    _print_new_notes(composition.notes, arguments)
    composition.label = label
    return composition


def _print_new_notes(notes: list[str], arguments: Arguments) -> None:
    """Print the notes that this call has not printed yet."""
    from setpoint.cli.output import print_notes

    print_notes([note for note in notes if note not in arguments.noted])
    arguments.noted.update(notes)


def dialect_and_file(source: str) -> tuple[str, str] | None:
    """The two sides of `DIALECT:FILE`, a file of another system; None for other sources."""
    if ":" not in source:
        return None
    from setpoint.interop.dialect import split_dialect  # most commands do not need it

    return split_dialect(source)


def open_foreign(name: str, typed: Sequence[str] = ()) -> FileDocument | None:
    """Read another system's file named by `DIALECT:FILE`, with overrides `typed` in its syntax.

    None for other names.
    """
    if (parts := dialect_and_file(name)) is None:
        return None
    from setpoint.interop.dialect import read_foreign

    return read_foreign(*parts, typed)


def _refuse_reports(composition: Composition[Any]) -> None:
    """Report the keys in other systems' files that were not converted exactly."""
    for document in composition.files:
        for report in getattr(document, "reports", ()):
            if report.is_exact:
                continue
            text = f"{report.kind}: {report.text}"
            composition.notes.remove(str(report))
            composition.problems.append(Problem(report.key, text, origin=report.place))


def _report_missing_data(composition: Composition[Any], is_training: bool) -> None:
    """Report a file of another system that does not specify the data.

    Training, which would read the default data, is refused; other commands print a note.
    """
    draft = composition.draft
    data = getattr(draft, "data", None)
    is_inference = "weights" in type(draft).__setpoint__.fields
    if data is None or is_inference or chain_of(data, "sources"):
        return
    for document in composition.files:
        if document.data and hasattr(document, "reports"):  # a refused file has no data
            text = (
                f"{document.name} has no data that can be read, and the default is Python's "
                f"standard library"
            )
            flags = "--data.sources text --data.sources.0.paths FILE"
            if is_training:
                composition.problems.append(Problem("data.sources", text, valid=(flags,)))
            else:
                composition.notes.append(f"data.sources: {text}; training needs {flags}")
            return


def resolver(arguments: Arguments) -> Callable[[list[str]], Any]:
    """Function that resolves the source with more overrides."""

    def resolve(more: list[str]) -> Any:
        again = Arguments(arguments.command)
        again.positional, again.options = arguments.positional, arguments.options
        again.noted, again.foreign = arguments.noted, arguments.foreign
        again.overrides = [*arguments.overrides, *more]
        return open_source(arguments.source, again).resolve()

    return resolve


def _open_start(
    source: str, root: type[Config], arguments: Arguments
) -> tuple[str | Config, list[str]]:
    """The start for `compose`: a record's draft with its notes, or the name of anything else."""
    kind, is_own = kind_of(source), arguments.command.program.is_own
    if kind in (OTHER, FOREIGN):
        if not is_own:
            _refuse_other_file(source, arguments.command.name)
        return source, []
    # Few calls read records, and importing the reader takes time.
    from setpoint.config import read_record

    if is_hugging_face_directory(source) and not is_own:
        raise SetpointError(
            f"{source} contains a model in Hugging Face format but no configuration; "
            f"`setpoint import {source} --output model.toml` writes one"
        )
    with open_record(source, kind, arguments) as folder:
        draft, header = read_record(root, folder)
    return draft, header["notes"]


def _set_ranks_and_device(composition: Composition[Any], arguments: Arguments) -> None:
    """Set the fields for `--world-size` and `--gpu` in the draft."""
    size = arguments.integer("--world-size")
    if size is not None:
        parallel = composition.draft.parallel
        origins = [origin for origin, _ in chain_of(parallel, "world_size")]
        # Ignore the command line of the recorded run.
        if any(o.layer == COMMAND_LINE and not isinstance(o, Recorded) for o in origins):
            raise SetpointError(
                "--world-size and parallel.world_size set the same number, but both are given; "
                "remove one of them"
            )
        parallel.set_field("world_size", size, Origin(COMMAND_LINE, "--world-size"))
    # A named GPU is the one that `auto` would select where the job runs.
    if arguments.has("--gpu") and composition.draft.parallel.device == "auto":
        origin = Origin(COMMAND_LINE, f"--gpu {arguments.value('--gpu')}")
        composition.draft.parallel.set_field("device", "cuda", origin)


def _refuse_other_file(source: str, command: str) -> None:
    """Refuse a text or Python file as SOURCE, and suggest the right argument."""
    if names_file(source) or preset_named(source) or not os.path.isfile(source):
        return
    verb = command if command in ("check", "show", "sweep") else "train"
    reason = f"{source} is not a configuration: their files end in {', '.join(FORMATS)}. "
    if source.endswith(".py"):
        module = source.removesuffix(".py").replace(os.sep, ".")
        raise SetpointError(
            f"{reason}Give a function in it that returns one as module:function: setpoint "
            f"{verb} {module}:FUNCTION"
        )
    raise SetpointError(
        f"{reason}To train on a text file, set it as the data of a preset or file: setpoint {verb} "
        f"tiny {text_flags(source)}"
    )


def open_table(source: str, arguments: Arguments, *, overrides: bool) -> Table:
    """The values of a source: as written for a record, as currently resolved for others.

    Arguments:
        overrides: overrides that apply, along with the environment; a record is then resolved
            again.
    """
    prepare(arguments)
    kind, prefix = kind_of(source), prefix_of(arguments.command.program.root)
    is_changed = (
        any(arguments.has(name) for name in LAYERS)
        or bool(arguments.overrides)
        or any(name.startswith(prefix) for name in os.environ)
    )
    if kind in (OTHER, FOREIGN) or (overrides and is_changed):
        return leaf_table(open_source(source, arguments, overrides=overrides).resolve())
    with open_record(source, kind, arguments) as folder:
        table, notes = recorded_table(root_of(source, arguments), folder)
    from setpoint.cli.output import print_notes

    print_notes(notes)
    return table


def root_of(source: str | FileDocument | None, arguments: Arguments) -> type[Config]:
    """The class of the configuration: the program's, or that of an inference job."""
    program, command = arguments.command.program, arguments.command
    if program.is_own or source is None or not _is_inference(source):
        return program.root
    if command.name not in FOR_ANY_JOB:
        name = source if isinstance(source, str) else source.name
        raise SetpointError(
            f"{name} is an inference job: run it with `setpoint infer {name}`. "
            f"{command.title} accepts training jobs"
        )
    from setpoint.infer.config import Inference

    return Inference


def _is_inference(source: str | FileDocument, depth: int = 0) -> bool:
    """True if a source is an inference job: a file with weights, its results, or a function."""
    if not isinstance(source, str):
        return "weights" in source.data
    function = presets.get(name) if (name := preset_named(source)) else None
    if function is None and os.path.isdir(source):
        return os.path.isfile(os.path.join(source, "results.json"))
    if function is None and os.path.isfile(source):
        return names_file(source) and _has_weights(source, depth)
    if function is None and (parts := dialect_and_file(source)) is not None:
        document = open_foreign(source) if os.path.exists(parts[1]) else None
        return document is not None and "weights" in document.data
    if function is None and ":" in source and kind_of(source) == OTHER:
        function = find_user_function(source.partition("(")[0])
    returned = getattr(function, "__annotations__", {}).get("return")
    return getattr(returned, "__name__", str(returned)).rpartition(".")[2] == "Inference"


def _has_weights(path: str, depth: int) -> bool:
    """True if a file, or one that it extends, has the section `weights`."""
    try:
        with open(path, "rb") as file:
            start = file.read(1_000_000)
    except OSError:
        return False  # the reader of the file reports it
    if b"weights" not in start and (b"extends" not in start or depth > 8):
        return False
    data = read_file(path).data
    parents = data.get("extends", [])
    names = [parents] if isinstance(parents, str) else parents
    folder = os.path.dirname(path)
    return "weights" in data or any(
        _is_inference(os.path.join(folder, name) if names_file(name) else name, depth + 1)
        for name in (names if isinstance(names, list) else [])
        if isinstance(name, str)
    )


def kind_of(source: str) -> str:
    """The kind of a source: `RUN` (any folder), `CHECKPOINT`, `REVISION`, `FOREIGN` or `OTHER`.

    A preset's name means the preset, but `./tiny` means the folder with that name. An existing path
    is a file or folder. For `A:B`, see `is_revision`.
    """
    if preset_named(source):
        return OTHER
    if dialect_and_file(source):
        return FOREIGN
    if os.path.isdir(source):
        is_checkpoint = os.path.isfile(os.path.join(source, MANIFEST))
        return CHECKPOINT if is_checkpoint else RUN
    folder, name = os.path.split(source)
    named = name in POINTERS or (name.startswith("step-") and not names_file(name))
    if named and os.path.isdir(folder):
        return CHECKPOINT
    if os.path.exists(source):
        return OTHER
    return REVISION if is_revision(source) else OTHER


def is_hugging_face_directory(source: str) -> bool:
    """True for a folder with a config.json that is neither a run nor a checkpoint."""
    path = os.path.join(source, "config.json")
    if not os.path.isfile(path) or {"origins.json", MANIFEST, "checkpoints"} & {
        *os.listdir(source)
    }:
        return False
    with open(path, "rb") as file:
        return b'"setpoint"' not in file.read(200)  # the header of an incomplete record


def split_revision(source: str) -> tuple[str, str] | None:
    """The two sides of `REV:WHAT`, or None; also for `HEAD^{/fix: this}` and `main@{10:30}`."""
    depth = 0
    for index, character in enumerate(source):
        depth += (character == "{") - (character == "}")
        if character == ":" and not depth:
            return (source[:index], source[index + 1 :]) if 0 < index < len(source) - 1 else None
        if character == "(" and not depth:  # the parameters of a preset
            return None
    return None


def is_revision(source: str) -> bool:
    """True if `A:B` names an object in a git revision, and is not the name of a file.

    It is one if it cannot be `module:function`: B is a path, A is not a module name, or there is no
    module A. If a branch has the name of a module, `heads/A:B` means the branch.
    """
    parts = split_revision(source)
    if parts is None:
        return False
    left, right = parts
    path = right.partition("(")[0]
    if names_file(path) or "/" in path or os.sep in path or ":" in path:
        return True
    return not all(word.isidentifier() for word in left.split(".")) or not _is_module(left)


def _is_module(name: str) -> bool:
    """True if there is a module with this name; imports nothing."""
    from importlib.machinery import PathFinder

    top = name.partition(".")[0]
    if top in sys.modules or top in sys.builtin_module_names:
        return True
    try:
        spec = PathFinder.find_spec(top, [os.getcwd(), *sys.path])
    except OSError:  # the working folder is gone
        return True
    # Any folder could be a "namespace package", which has no functions.
    return spec is not None and (spec.origin is not None or "." in name)


@contextmanager
def open_record(source: str, kind: str, arguments: Arguments) -> Iterator[str]:
    """The folder with the record of a source; temporary for a revision."""
    program = arguments.command.program
    if kind == REVISION:
        if program.is_own:
            raise SetpointError(
                f"{source}: git revisions can be read for Setpoint's own jobs only; for "
                f"{program.name}, check out the revision in another directory and compare records"
            )
        from setpoint.cli.revision import record_at_revision

        parts = split_revision(source)
        assert parts is not None, "it is of this kind"
        with record_at_revision(*parts, arguments.values("--import")) as folder:
            yield folder
    elif kind == CHECKPOINT:
        from pathlib import Path

        from setpoint.checkpoint.places import verify_record

        directory, _ = checkpoint_and_run(source)
        verify_record(Path(directory))
        yield directory
    elif is_record(source):
        yield source
    else:
        raise _no_record(source)


def checkpoint_and_run(source: str) -> tuple[str, str]:
    """The directories of a checkpoint and of its run, which may have no record."""
    from pathlib import Path

    from setpoint.checkpoint.places import find_checkpoint

    directory = find_checkpoint(Path(source))
    if directory is None:
        raise SetpointError(f"there is no checkpoint {source}")
    # Not `resolve`: show the path as typed.
    return str(directory), os.path.normpath(os.path.join(directory, "..", ".."))


def _no_record(source: str) -> SetpointError:
    from pathlib import Path

    from setpoint.checkpoint.folder import list_checkpoints
    from setpoint.model.pretrained.locate import ADAPTER_CONFIG, adapter_alone
    from setpoint.track.run_directory import not_a_run

    names = [directory.name for directory in list_checkpoints(Path(source)).values()]
    if names:
        text = f"{source} contains checkpoints; give one of them: {', '.join(names)}, latest"
        return SetpointError(text)
    if Path(source, ADAPTER_CONFIG).is_file():
        return adapter_alone(source)
    sources = "a preset, a file, a run directory, a checkpoint, module:function, or a git revision"
    return not_a_run(source, f"{sources} as in HEAD~1:tiny")


@functools.lru_cache(maxsize=1)
def _read(stream: TextIO, most: int) -> bytes:
    """Standard input, kept for a command that opens its source several times, such as a sweep."""
    return stream.buffer.read(most)


def read_standard_input(arguments: Arguments) -> FileDocument:
    """Read a configuration file from standard input; by default JSON if it begins with `{`."""
    given = arguments.value("--stdin-format")
    title = arguments.command.title
    if sys.stdin is None or sys.stdin.closed:  # as in a service, or after `<&-`
        raise SetpointError("standard input is closed, so no configuration can be read from it")
    if sys.stdin.isatty():
        raise SetpointError(
            "no configuration on standard input (it is a terminal); send a file there, for "
            f"example: {title} - < exp.toml"
        )
    try:
        # Up to the largest limit; the limit of the format is checked once it is known.
        data = _read(sys.stdin, max(MAX_BYTES.values()) + 1)
    except OSError as error:
        raise SetpointError(f"standard input cannot be read: {error.strerror}") from None
    if not data.strip():
        raise SetpointError("standard input is empty; of several processes only one can read it")
    begin = data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    format = cast("Format", given) if given else ("json" if begin == b"{" else "toml")
    try:
        return parse_bytes(data, format, "stdin")
    except SetpointError as error:
        # Keep the original error, which knows its position.
        if given is not None or format != "toml" or not _is_yaml(data):
            raise
        raise SetpointError(
            f"{error}. It was read as TOML; is it YAML? Then pass --stdin-format yaml"
        ) from None


def _is_yaml(data: bytes) -> bool:
    """True if the first non-empty line looks like YAML: `key:` or `- item`."""
    lines = (line.strip() for line in data.decode("utf-8", "replace").splitlines())
    first = next((line for line in lines if line and line[0] not in "#%"), "")
    return re.match(r"---|- |[\w.-]+:( |$)", first) is not None


def run_directory_given(source: str | None) -> str | None:
    """The run directory that a source refers to, and that training it resumes; None for others."""
    if source is None or kind_of(source) != RUN:
        return None
    from setpoint.checkpoint.places import is_point

    return None if is_point(source) else source


def run_path(word: str, arguments: Arguments) -> str:
    """The path of a run on a command line: as given, or of the run of a preset, file or point."""
    from setpoint.checkpoint.places import is_point, run_of_point

    if is_point(word):
        return str(run_of_point(word))
    if (os.path.exists(word) and not names_file(word)) or kind_of(word) != OTHER:
        return word
    prepare(arguments)
    if not (os.path.isfile(word) or preset_named(word)):
        return word
    composition = open_source(word, arguments)
    set_ranks_of_degrees(composition.draft)
    path = trained_run(composition.resolve(), word)
    if not os.path.isdir(path):
        raise SetpointError(
            f"{word}: its run {path} does not exist. Train it first: setpoint train {word}\n"
            f"{runs_of_name(path) or 'Give a run with overrides by its directory.'}"
        )
    return path


def runs_of_name(path: str) -> str:
    """Sentence about the newest other runs with the same name; empty if there are none."""
    from setpoint.train.run_name import namesakes

    runs = sorted(filter(is_record, namesakes(path)), key=os.path.getmtime, reverse=True)
    return f"Trained with other values: {', '.join(runs[:3])}" if runs else ""


def set_ranks_of_degrees(job: Job) -> None:
    """Set the number of ranks to the product of the degrees if it was not given.

    A command that only inspects a run is not started on as many ranks as its training.
    """
    ranks = prod(job.parallel.degrees.values())
    if ranks > 1 and not chain_of(job.parallel, "world_size"):
        job.parallel.set_field("world_size", ranks, Origin(PROGRAM, "the degrees"))


def trained_run(job: Job, source: str) -> str:
    """The run directory of a preset or file, which need not exist.

    Raises:
        SetpointError: the job has no seed.
    """
    if job.seed is None:
        folder = os.path.join(job.workspace, *filter(None, [job.experiment]))
        raise SetpointError(
            f"seed = null: {source} does not identify a run, because each start draws another "
            f"seed; give the run directory, listed by `setpoint compare {folder}`"
        )
    from setpoint.train.run_name import find_run

    return find_run(job)


def variables_of(config: Config) -> str:
    """The environment variables that set values, as `NAME=value ` before a command to copy."""
    import shlex

    origins = [leaf.origin for leaf in leaves(config) if leaf.chain]
    given = [o for o in origins if o.layer == ENVIRONMENT and not isinstance(o, Recorded)]
    # The number of ranks comes from the launcher, which is started again, too.
    inherited = os.environ.keys() - ({"WORLD_SIZE"} if "RANK" in os.environ else set())
    names = dict.fromkeys(o.label for o in given if o.label in inherited)
    return "".join(f"{name}={shlex.quote(os.environ[name])} " for name in names)


def prepare(arguments: Arguments) -> None:
    """Register the presets and modifiers that a source may name, and import `--import` modules."""
    import_named(arguments.command.program, arguments.values("--import"))


def files_here() -> Iterator[str]:
    """Configuration files in the working folder."""
    try:
        names = sorted(os.listdir("."))
    except OSError:  # the working folder is gone
        return
    yield from (name for name in names if names_file(name) and os.path.isfile(name))


def run_directories(marker: str = "config.json") -> Iterator[str]:
    """Folders below `runs` that contain a file: of runs, or of sweeps with `sweep.json`."""
    for folder, folders, names in os.walk("runs"):
        if marker in names:
            yield folder
        if marker in names or "config.json" in names:
            folders.clear()
