"""`setpoint checkpoint ...`: list, verify, prune, compare, convert and import checkpoints."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from setpoint.checkpoint.config import Checkpoint
from setpoint.checkpoint.folder import (
    PointerName,
    Retention,
    directory_name,
    protected_by_pointers,
    remove,
)
from setpoint.checkpoint.places import (
    CHECKPOINTS,
    CheckpointEntry,
    CheckpointPlace,
    FileComparison,
    checkpoint_to_load,
    find_place,
    reason_of,
)
from setpoint.cli.main import FAILED, Loading
from setpoint.cli.options import COMMON, IMPORT, JSON, Arguments, Command, Option
from setpoint.cli.output import emit, hidden, table
from setpoint.cli.show import render
from setpoint.cli.source import open_source, open_table, run_path
from setpoint.config import (
    CONFIG,
    ORIGINS,
    Invalid,
    RunError,
    SetpointError,
    for_error,
    is_record,
    plain,
    plural,
    read_record,
    resolve,
)
from setpoint.config.record.record import Difference, compare
from setpoint.files.lock import RunLock
from setpoint.hub.fetch import is_url, protocol_problem
from setpoint.ops.remote_run import RemotePlace
from setpoint.track.jsonl import EventLog, plain_numbers
from setpoint.track.run_directory import refuse_linked_folders
from setpoint.train.config import Job
from setpoint.units import Period
from setpoint.units.size import in_units

if TYPE_CHECKING:
    from setpoint.checkpoint.repartition import TensorDifference, TensorSide

RUN_HELP = """
RUN is a run directory, its folder checkpoints, one checkpoint, such as
runs/tiny-3fa94c21/checkpoints/best, or a preset or file, which means its run. The training data
is not needed."""
RUN_OR_URL_HELP = f"""{RUN_HELP}
A URL that checkpoint.remote uploads to works as well: s3://bucket/runs/tiny-3fa94c21."""


def open_place(text: str) -> CheckpointPlace | RemotePlace:
    """The checkpoints named by an argument."""
    if not is_url(text):
        return find_place(text)
    if problem := protocol_problem(text, "remote"):
        raise SetpointError(problem)
    place = RemotePlace(text)
    if not place.run.exists():
        raise SetpointError(
            f"{text} contains no checkpoints.\nValid: the URL of a run, of a folder of runs, or of "
            f"a checkpoint"
        )
    return place


@Command("checkpoint list RUN", JSON, about=RUN_OR_URL_HELP)
def checkpoint_list(arguments: Arguments) -> int:
    """List the checkpoints of a run.

    The list has step, time, size, number of ranks, tensors, the metric that selects the best
    checkpoint (lower is better; negated otherwise), the pointers latest and best, and damaged,
    set-aside and unfinished checkpoints. Only file sizes are compared; `setpoint checkpoint verify`
    compares every byte. For a URL with several runs it has one line per run.

    Examples:
        setpoint checkpoint list runs/tiny-3fa94c21  all checkpoints of a run
        setpoint checkpoint list runs/tiny-3fa94c21 --json  for a program
    """
    place = open_place(run_path(arguments.positional[0], arguments))
    entries, pointers = place.survey(), place.pointers()
    if not entries and isinstance(place, RemotePlace) and (runs := place.run.runs()):
        return _list_runs(place, runs, arguments)
    broken = [text for text in pointers.values() if isinstance(text, str)]
    rows = [_facts(entry, pointers) for entry in entries]
    headings = ("checkpoint", "written", "size", "ranks", "tensors", "metric", "")
    cells = [_cells(entry, row["named_by"]) for entry, row in zip(entries, rows, strict=True)]
    size = in_units(sum(entry.size for entry in entries))
    total = f"{len(entries)} in {place.root}, {size}"
    emit(
        arguments,
        {"folder": str(place.root), "checkpoints": rows, "problems": broken},
        f"{table(cells, headings)}\n{total}" if entries else f"no checkpoints in {place.root}",
        broken,
    )
    return 0


def _list_runs(place: RemotePlace, names: list[str], arguments: Arguments) -> int:
    """Print a row for each run in a folder of runs."""
    rows: list[dict[str, Any]] = []
    for name in names:
        run = RemotePlace(f"{place.run.url}/{name}")
        sizes = [entry.size for entry in run.survey() if entry.kind == "checkpoint"]
        rows.append({"run": name, "checkpoints": len(sizes), "bytes": sum(sizes), **run.pointers()})
    cells = [
        [row["run"], str(row["checkpoints"]), in_units(row["bytes"]),
         *("" if row[name] is None else str(row[name]) for name in ("latest", "best"))]
        for row in rows
    ]  # fmt: skip
    text = table(cells, ("run", "checkpoints", "size", "latest", "best"))
    facts = {"folder": place.run.url, "runs": rows}
    emit(arguments, facts, f"{text}\n{plural(len(rows), 'run')} in {place.run.url}")
    return 0


def _cells(entry: CheckpointEntry, names: list[str]) -> list[str]:
    metric = None if entry.manifest is None else entry.manifest.metric
    written = ""
    if entry.written is not None:
        written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.written))
    if entry.kind == "unfinished":
        state = "incomplete: being written or removed, or left by a process that died"
    else:
        words = [*names, *([entry.kind] if entry.kind == "set aside" else [])]
        words += ["without frozen parameters"] if entry.leaves_out else []
        state = ", ".join([*words, *([f"damaged: {entry.damage}"] if entry.damage else [])])
    return [
        entry.path.name,
        written,
        in_units(entry.size),
        "" if entry.ranks is None else str(entry.ranks),
        ", ".join(entry.stems),
        "" if metric is None else f"{metric:.6g}",
        state,
    ]


def _facts(entry: CheckpointEntry, pointers: dict[PointerName, Any]) -> dict[str, Any]:
    metric = None if entry.manifest is None else entry.manifest.metric
    names = [name for name, step in pointers.items() if step == entry.step]
    return {
        "checkpoint": entry.path.name,
        "kind": entry.kind,
        "step": entry.step,
        "written": entry.written,
        "bytes": entry.size,
        "ranks": entry.ranks,
        "tensors": entry.stems,
        "leaves_out_frozen": entry.leaves_out,
        # JSON lacks NaN, which stands for a metric that never wins.
        "metric": metric if metric == metric else None,
        "named_by": names if entry.kind == "checkpoint" else [],
        "damage": entry.damage or None,
    }


@Command("checkpoint verify RUN", JSON, about=RUN_OR_URL_HELP)
def checkpoint_verify(arguments: Arguments) -> int:
    """Compare every file of a run's checkpoints with its checksum; exit status 1 if one differs.

    Missing, unreadable and changed files are reported; nothing is written. If a checkpoint on a
    disk omits frozen parameters, the weights that contain them are verified as well. Checkpoints
    that were set aside as damaged are skipped unless named.

    Examples:
        setpoint checkpoint verify runs/tiny-3fa94c21  all checkpoints of a run
        setpoint checkpoint verify runs/tiny-3fa94c21/checkpoints/latest  one of them
    """
    place = open_place(run_path(arguments.positional[0], arguments))
    entries = [entry for entry in place.survey() if entry.kind == "checkpoint"]
    if not entries:
        raise SetpointError(f"there are no checkpoints in {place.root}")
    as_text = not arguments.has("--json")
    pointers = place.pointers() if place.only is None else {}
    broken = [text for text in pointers.values() if isinstance(text, str)]
    rows: list[dict[str, Any]] = []
    for entry in entries:
        if (facts := _verify(place, entry)) is not None:
            rows.append(facts)
            if as_text:
                print("\n".join(_verified_lines(facts)), flush=True)
    ok = all(facts["ok"] for facts in rows) and not broken
    if broken or not as_text:
        facts = {"ok": ok, "folder": str(place.root), "checkpoints": rows, "problems": broken}
        emit(arguments, facts, "\n".join(broken))
    return 0 if ok else FAILED


def _verify(place: CheckpointPlace | RemotePlace, entry: CheckpointEntry) -> dict[str, Any] | None:
    """The result for one checkpoint; None if the run removed it meanwhile."""
    problem, incomplete = None, False
    files: list[FileComparison] = []
    try:
        files = list(place.compare(entry))
    except SetpointError as error:
        problem = reason_of(error)
    ok = problem is None and not any(file.problem for file in files)
    if ok and entry.leaves_out and isinstance(place, CheckpointPlace):
        with Loading():
            from setpoint.model.pretrained.load import verify_base
        try:
            verify_base(entry.path)
        except SetpointError as error:
            ok, incomplete, problem = False, True, str(error)
    if not ok and place.is_gone(entry):
        return None
    return {
        "checkpoint": entry.path.name,
        "step": entry.step,
        "ok": ok,
        "incomplete": incomplete,
        "problem": problem,
        "files": [
            {"name": file.name, "bytes": file.size, "problem": file.problem or None}
            for file in files
        ],
    }


def _verified_lines(facts: dict[str, Any]) -> Iterator[str]:
    name, files = facts["checkpoint"], facts["files"]
    if facts["ok"]:
        size = in_units(sum(file["bytes"] for file in files))
        yield f"{name}: ok, {plural(len(files), 'file')}, {size}"
        return
    problems = [facts["problem"], *(file["problem"] for file in files)]
    yield f"{name}: {'incomplete' if facts['incomplete'] else 'damaged'}"
    yield from (f"  {problem}" for problem in problems if problem)


Decision = tuple[CheckpointEntry, list[str]]
"""A checkpoint and the reasons to keep it; without any it is removed."""


@Command(
    "checkpoint prune RUN",
    Option("--keep all|N", "Newest checkpoints to keep; default: checkpoint.keep."),
    Option("--keep-every PERIOD", "Interval such as '1000 steps', or none; default: as recorded."),
    Option("--yes", "Remove the checkpoints."),
    JSON,
    about=RUN_OR_URL_HELP,
)
def checkpoint_prune(arguments: Arguments) -> int:
    """Print which checkpoints of a run retention would remove, or remove them with --yes.

    The rules come from the record (checkpoint.keep, keep_every and at) or from the options.
    Checkpoints named by latest or best are kept, as are damaged and set-aside ones. A run that is
    being trained is refused, except at a URL, where checkpoint.remote.keep applies.

    Examples:
        setpoint checkpoint prune runs/tiny-3fa94c21  what would be removed
        setpoint checkpoint prune runs/tiny-3fa94c21 --keep 1 --yes  keep the newest and the best
        setpoint checkpoint prune runs/a --keep 3 --keep-every '1000 steps'  other rules
    """
    place = open_place(run_path(arguments.positional[0], arguments))
    removes = arguments.has("--yes")
    if place.only is not None:
        raise SetpointError(
            f"{arguments.positional[0]} is one checkpoint; give its run or {place.root}"
        )
    if isinstance(place, RemotePlace):
        decisions = _prune_remote(place, arguments, removes)
    else:
        decisions = _prune_local(place.root, arguments, removes)
    removed = [entry for entry, reasons in decisions if not reasons]
    action = "removed" if removes else "would be removed"
    rows = [
        [e.path.name, in_units(e.size), f"stays: {', '.join(reasons)}" if reasons else action]
        for e, reasons in decisions
    ]
    size = in_units(sum(entry.size for entry in removed))
    hint = "; --yes removes them" if removed and not removes else ""
    total = f"{action}: {len(removed)} of {len(decisions)} checkpoints, {size}{hint}"
    facts = {
        "folder": str(place.root),
        "removed": removes,
        "checkpoints": [
            {
                "checkpoint": entry.path.name,
                "step": entry.step,
                "bytes": entry.size,
                "stays": bool(reasons),
                "reasons": reasons,
            }
            for entry, reasons in decisions
        ],
    }
    emit(arguments, facts, f"{table(rows)}\n{total}" if rows else f"no checkpoints in {place.root}")
    return 0


def _prune_local(root: Path, arguments: Arguments, removes: bool) -> list[Decision]:
    run = root.parent if root.name == CHECKPOINTS and is_record(str(root.parent)) else None
    section = None if run is None else resolve(read_record(Job, str(run))[0]).checkpoint
    rule = _rule(arguments, section, section and section.keep)
    with ExitStack() as stack:
        if removes and run is not None:
            refuse_linked_folders(run)
            stack.callback(RunLock(run / ".lock").release)
        protected = protected_by_pointers(root)
        if protected is None:
            raise RunError(f"latest or best in {root} cannot be read, so nothing was removed")
        surveyed = CheckpointPlace(root).survey()
        entries = {entry.step: entry for entry in surveyed if entry.kind == "checkpoint"}
        # A damaged checkpoint may be the only one of its step.
        protected |= {
            step: "cannot be read" if entry.manifest is None else "damaged"
            for step, entry in entries.items()
            if entry.damage
        }

        def distance(step: int, unit: str) -> float | None:
            manifest = entries[step].manifest
            return None if manifest is None else manifest.position.get(unit)

        reasons = rule.reasons(entries, protected, distance)
        removed = [entries[step] for step, why in reasons.items() if not why]
        if removes and removed and run is not None:
            log = EventLog(run / "events.jsonl")
            log.write("prune", checkpoints=[entry.path.name for entry in removed])
            log.close()
        for entry in removed if removes else ():
            try:
                remove(entry.path, directory_name(entry.step))
            except OSError as error:
                raise RunError(f"{entry.path} cannot be removed: {error.strerror}") from error
    return [(entries[step], why) for step, why in reasons.items()]


def _prune_remote(place: RemotePlace, arguments: Arguments, removes: bool) -> list[Decision]:
    """Prune uploaded checkpoints; unfinished ones are left alone."""
    section = None
    with TemporaryDirectory() as folder:
        for name in (ORIGINS, CONFIG):
            place.run.download_record(name, Path(folder) / name)
        if is_record(folder):
            section = resolve(read_record(Job, folder)[0]).checkpoint
    remote = None if section is None else section.remote
    rule = _rule(arguments, section, section and (section.keep if remote is None else remote.keep))
    reasons, unfinished = place.run.reasons(rule)
    decisions = [
        (entry, reasons.get(entry.step, ["cannot be read"]))
        for entry in place.survey()
        if entry.kind == "checkpoint"
    ]
    if removes and not all(why for _, why in decisions):
        place.run.prune(rule, unfinished)
    return decisions


def _rule(arguments: Arguments, section: Checkpoint | None, keep: int | None) -> Retention:
    """The retention rules of the record, or of the options if given."""
    number, interval = arguments.value("--keep"), arguments.value("--keep-every")
    if section is None and number is None:
        raise SetpointError(
            "there is no record of a run next to these checkpoints: set the number of newest "
            "checkpoints to keep with --keep N"
        )
    if number is not None:
        keep = None if number == "all" else int(number)
    every = section.keep_every if section is not None else None
    if interval is not None:
        every = None if interval == "none" else _period(interval)
    return Retention(keep, every, None if section is None else section.at)


def _period(text: str) -> Period:
    try:
        every = Period(text)
    except Invalid as error:
        valid = ", ".join(error.valid[:4])
        raise SetpointError(f"--keep-every {error.message}.\nValid: none, {valid}") from None
    if every.unit == "last_step":
        raise SetpointError(
            f"--keep-every {text} is not an interval; 'none' keeps no additional checkpoints"
        )
    return every


MAX_ROWS = 20
"""Differences of each kind that are printed without --all."""
LAYOUTS = ("whole", "divided", "huggingface")
"""Layouts of converted checkpoints."""


@Command(
    "checkpoint diff A B",
    Option("--all", f"Print all differences; default: at most {MAX_ROWS} of each kind."),
    JSON,
    IMPORT,
    about=RUN_HELP.replace("RUN is", "A and B are each"),
)
def checkpoint_diff(arguments: Arguments) -> int:
    """Compare the tensors, state and configuration of two checkpoints.

    Tensors that differ in any bit come first, sorted by relative difference, with 2-norms, and
    tensors with different shapes or dtypes or in only one checkpoint; then the rest of the state
    and the recorded configurations. Every byte is verified, and one tensor is read at a time. A run
    means its newest checkpoint. The exit status is 0 if nothing differs, otherwise 1.

    Examples:
        setpoint checkpoint diff runs/a/checkpoints/best runs/a  the best and the last
        setpoint checkpoint diff runs/a runs/b --json  the ends of two runs, for a program
    """
    paths = [checkpoint_to_load(run_path(path, arguments)) for path in arguments.positional]
    with Loading():
        from setpoint.checkpoint.loading import joined, load_directory
        from setpoint.checkpoint.repartition import state_differences, tensor_differences
        from setpoint.infer.loaded_model import add_adapter
        from setpoint.model.pretrained.load import frozen_of

    left, right = (load_directory(path) for path in paths)
    sides = [
        {
            **joined(side.tensors),
            **{f"model/{name}": tensor for name, tensor in frozen_of(path, add_adapter).items()},
        }
        for side, path in zip((left, right), paths, strict=True)
    ]
    tensors = sorted(tensor_differences(*sides), key=lambda difference: difference.order)
    state = state_differences(left.state, right.state)
    notes: list[str] = []
    rows: list[Difference] | None = None
    try:
        rows = compare([open_table(str(path), arguments, overrides=False) for path in paths])
    except SetpointError as error:
        notes.append(f"the configurations were not compared: {error}")
    facts = {
        "checkpoints": [str(path) for path in paths],
        "tensors": plain_numbers([_tensor_facts(difference) for difference in tensors]),
        "state": plain_numbers([{"path": p, "a": a, "b": b} for p, (a, b) in state.items()]),
        "configuration": rows and [plain(row.to_json()) for row in rows],
        "notes": notes,
    }
    most = None if arguments.has("--all") else MAX_ROWS
    lines = [f"A {paths[0]}", f"B {paths[1]}"]
    lines.append(f"tensors: {len(tensors)} of {len({*sides[0], *sides[1]})} differ")
    headings = ("tensor", "shape", "dtype", "|A|", "|A - B|", "relative", "largest")
    lines += _first(headings, [_tensor_cells(difference) for difference in tensors], most)
    lines.append(f"state: {_differ(len(state))}")
    cells = [[path, for_error(a, 40), for_error(b, 40)] for path, (a, b) in state.items()]
    lines += _first(("value", "A", "B"), cells, most)
    if rows is None:
        lines.append("configuration: not compared")
    else:
        lines.append(f"configuration: {_differ(len(rows))}")
        lines += [*render(rows[:most], ["A", "B"]), *hidden(rows, most)]
    emit(arguments, facts, "\n".join(lines), notes)
    return FAILED if tensors or state or rows else 0


def _differ(count: int) -> str:
    return "1 value differs" if count == 1 else f"{count} values differ"


def _first(headings: Sequence[str], rows: list[list[str]], most: int | None) -> list[str]:
    return [table(rows[:most], headings), *hidden(rows, most)] if rows else []


def _tensor_cells(difference: TensorDifference) -> list[str]:
    a, b = difference.left, difference.right
    if a is None or b is None:
        side = a or b
        assert side is not None
        place = f"only in {'A' if a else 'B'}"
        return [difference.name, _shape(side), side.dtype, place, "", "", ""]
    shape = _shape(a) if a.shape == b.shape else f"{_shape(a)}, {_shape(b)}"
    dtype = a.dtype if a.dtype == b.dtype else f"{a.dtype}, {b.dtype}"
    numbers = (difference.norm, difference.difference, difference.relative, difference.largest)
    return [difference.name, shape, dtype, *("" if n is None else f"{n:.4g}" for n in numbers)]


def _shape(side: TensorSide) -> str:
    return "x".join(map(str, side.shape)) or "scalar"


def _tensor_facts(difference: TensorDifference) -> dict[str, Any]:
    facts = difference._asdict()
    for side in ("left", "right"):
        facts[side] = facts[side] and facts[side]._asdict()
    return facts


@Command(
    "checkpoint convert CHECKPOINT DIRECTORY",
    Option(f"--to {'|'.join(LAYOUTS)}", "Layout to write.", required=True),
    Option("--ranks N", "divided: number of files, one per rank.", at_least=2,
           requires="--to=divided"),
    Option("--frozen", "Include the frozen parameters that CHECKPOINT leaves out.",
           requires="--to=whole|--to=divided"),
    Option("--dtype fp32|bf16|fp16", "huggingface: dtype of the weights; default: unchanged.",
           requires="--to=huggingface"),
    Option("--max-shard-size N", "huggingface: maximum size of a weights file in bytes.",
           requires="--to=huggingface"),
    JSON,
)  # fmt: skip
def checkpoint_convert(arguments: Arguments) -> int:
    """Write a checkpoint in another layout into the new directory DIRECTORY.

    whole: each tensor in one file, as written by one process; divided: rows of each tensor in N
    files, as written by N ranks. Both contain the entire checkpoint, are compared with it bit by
    bit, and can be loaded with checkpoint.load. huggingface: the weights as written by `setpoint
    export`. Only a few tensors are in memory at a time, and DIRECTORY is written completely or not
    at all.

    CHECKPOINT is a checkpoint, such as runs/tiny-3fa94c21/checkpoints/best, or a run, which means
    its latest checkpoint. The training data is not needed.

    Examples:
        setpoint checkpoint convert runs/tiny-3fa94c21 copy --to whole  in one piece
        setpoint checkpoint convert copy tiny-hf --to huggingface  for transformers
    """
    layout = arguments.value("--to")
    source = checkpoint_to_load(arguments.positional[0])
    if is_url(arguments.positional[1]):
        raise SetpointError(
            f"{arguments.positional[1]} is a URL.\nValid: a new or empty directory on a disk"
        )
    target = Path(os.path.expanduser(arguments.positional[1]))
    ranks = arguments.integer("--ranks")
    if layout == "divided" and ranks is None:
        raise SetpointError("--to divided needs --ranks N")
    with Loading():
        from setpoint.checkpoint.repartition import convert, require_free
        from setpoint.infer.exporting import export
        from setpoint.infer.loaded_model import add_adapter
        from setpoint.model.pretrained.load import frozen_of
        from setpoint.model.pretrained.locate import job_of, tokenizer_of
        from setpoint.model.pretrained.save_pretrained import SHARD
    if layout == "huggingface":
        require_free(target)
        tokenizer = tokenizer_of(source, job_of(source).tokenizer)
        size = arguments.integer("--max-shard-size") or SHARD
        export(source, tokenizer, target, dtype=arguments.value("--dtype"), max_shard_size=size)
    else:
        frozen = frozen_of(source, add_adapter) if arguments.has("--frozen") else None
        if arguments.has("--frozen") and not frozen:
            raise SetpointError(
                f"--frozen has no effect: {source} contains all of its parameters. Remove it"
            )
        convert(source, target, ranks, frozen)
    facts = {"checkpoint": str(source), "directory": str(target)}
    emit(arguments, facts, f"{source} is written to {target}")
    return 0


@Command(
    "checkpoint import CHECKPOINT DIRECTORY [OVERRIDES]",
    Option(
        "--model MODEL", "Model of the weights: directory, run, or id on the hub.", excludes="--job"
    ),
    Option("--job SOURCE", "Write a checkpoint of this job, with optimizer state and step."),
    Option("--dtype fp32|bf16|fp16", "dtype of the weights; default: unchanged.", excludes="--job"),
    *COMMON,
    JSON,
)
def import_checkpoint(arguments: Arguments) -> int:
    """Write a checkpoint of another system into the new directory DIRECTORY.

    CHECKPOINT is a file or directory of nanoGPT (ckpt.pt), litgpt (lit_model.pth), torchtune,
    torchtitan or Megatron-LM (distributed checkpoints), or a GGUF file. It is recognized by its
    content; SYSTEM:PATH names the system: nanogpt, litgpt, torchtune, torchtitan, megatron, gguf.
    Pickles that would run code are refused.

    DIRECTORY receives the weights in Hugging Face format, for model.pretrained, evaluate, generate
    and transformers. With --job it becomes a checkpoint of that job, for checkpoint.load: weights,
    AdamW state and step. The model is described by the checkpoint, by a config.json next to it, by
    --model, or by the job.

    Examples:
        setpoint checkpoint import out/ckpt.pt gpt  then: setpoint generate gpt
        setpoint checkpoint import llama.gguf llama --dtype bf16  quantized weights made dense
        setpoint checkpoint import step-1000 start --job torchtitan:job.toml  to continue it
    """
    source, directory = arguments.positional[:2]
    target = Path(os.path.expanduser(directory))
    job_source = arguments.value("--job")
    job: Job | None = None
    words = [*arguments.overrides, *(o.name for o in COMMON if arguments.has(o.name))]
    if job_source is not None:
        job = open_source(job_source, arguments).resolve()
    elif words:
        raise SetpointError(f"{words[0]} has no effect without --job SOURCE, whose values it sets")
    with Loading():
        from setpoint.interop.checkpoints.import_weights import (
            import_checkpoint,
            import_weights,
            open_foreign,
        )
    foreign = open_foreign(source, arguments.value("--model"), optimizer=job is not None)
    contents = foreign.contents
    step: int | None = None
    if job is None:
        import_weights(foreign, target, arguments.value("--dtype"))
        text = f"weights of {plural(len(contents.tensors), 'tensor')}"
    else:
        step = import_checkpoint(foreign, job, target)
        text = f"step {step}, weights of {plural(len(contents.tensors), 'tensor')}"
        text += ", optimizer state" if contents.states else ", no optimizer state"
    facts = {
        "checkpoint": str(contents.path),
        "system": foreign.system.title,
        "directory": str(target),
        "step": step,
        "tensors": len(contents.tensors),
        "notes": contents.notes,
    }
    text = f"{contents.path} ({foreign.system.title}) is written to {target}: {text}"
    emit(arguments, facts, text, contents.notes)
    return 0
