"""Setpoint in Python: check, train, read runs, and use trained models.

`import setpoint as sp` offers these functions as `sp.check`, `sp.load_run`, `sp.generate` and so
on; none of them imports torch before it is needed.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, cast

from setpoint.checkpoint.folder import list_checkpoints
from setpoint.config import (
    Composition,
    ConfigError,
    Need,
    SetpointError,
    compose,
    fingerprint,
    is_record,
    read_record,
)
from setpoint.config.files.file_document import names_file
from setpoint.config.values.origin import outside_origin
from setpoint.data.sources.config import SourceConfig, Text, Tokens
from setpoint.files.lock import is_locked
from setpoint.infer.config import Inference
from setpoint.infer.tasks import Chat
from setpoint.parallel.rank import launched
from setpoint.report.goodput import last_step, status_of
from setpoint.track.jsonl import readable_rows
from setpoint.track.run_directory import RunDirectory, is_run_directory, no_run, not_a_run
from setpoint.train.arguments import (
    as_text,
    directory_of,
    job_of,
    memory_source,
    row_line,
    words_and_values,
)
from setpoint.train.config import Job
from setpoint.train.run_name import find_run

if TYPE_CHECKING:
    from torch import nn

    from setpoint.data.tokenizer import Tokenizer
    from setpoint.infer.continuation import GeneratedText
    from setpoint.infer.inference import Results
    from setpoint.infer.loaded_model import LoadedModel
    from setpoint.plan.preflight import Preflight
    from setpoint.shapes.scoring import Score
    from setpoint.train.arguments import HasDirectory, Overrides, Source

Which = int | Literal["best", "latest"] | None
Texts = str | os.PathLike[str] | Iterable[Any]
Prompts = str | Mapping[str, Any] | Sequence[str | Mapping[str, Any] | Sequence[Mapping[str, Any]]]
"""A file or glob, or documents in memory."""
VALID_PROMPT = (
    'Valid: a str; a list of messages, such as [{"role": "user", "content": "Who are you?"}]'
)
FRAMES = ("pandas", "polars")


def check(
    source: Source,
    overrides: Overrides = (),
    *,
    world_size: int | None = None,
    needs: Collection[Need] = ("files",),
) -> Preflight:
    """Verify a training job without running it, like `setpoint check`.

    Arguments:
        source: a job, a composition of one, or the name of a preset, a file, a run directory or
            `module:function`.
        overrides: words as on the command line, or values by dotted path.
        world_size: the number of ranks; None: as in the job.
        needs: the kinds of rules to run in addition to those of the configuration alone: `"files"`,
            `"torch"`, `"import"` and `"network"`.

    Returns:
        the facts, the cautions, and the rules that were skipped.

    Raises:
        ConfigError: lists all problems.
    """
    from setpoint.plan.preflight import preflight

    job, _ = job_of(source, overrides, world_size=world_size, caller="check")
    report = preflight(job, needs, elsewhere=world_size is not None)
    if report.problems:
        raise ConfigError(report.problems)
    return report


def load_run(path: str | os.PathLike[str] | HasDirectory) -> RecordedRun:
    """Open the record of a run: configuration, metrics, events, checkpoints and trained model.

    Arguments:
        path: a run directory, or what `train` or `load_run` returned.

    Raises:
        SetpointError: there is no run.
    """
    given = directory_of(path) or path
    if not isinstance(given, str | os.PathLike):
        raise SetpointError(
            f"load_run: path = {as_text(path)}\nValid: a run directory or the result of train"
        )
    directory = Path(os.path.expanduser(given))
    if not is_run_directory(directory):
        raise not_a_run(directory)
    return RecordedRun(directory)


@dataclass(frozen=True)
class RecordedRun:
    """The record of a run on disk, whether the run is finished or still training.

    Rows and events are read anew each time, but the configuration only once.
    """

    directory: Path

    def __repr__(self) -> str:
        return f"RecordedRun({str(self.directory)!r}, {self.status} at step {self.step})"

    @cached_property
    def config(self) -> Job:
        """The resolved, frozen job."""
        draft, _ = read_record(Job, str(self.directory))
        return Composition(draft, str(self.directory), [], []).resolve()

    @property
    def fingerprint(self) -> str:
        """The hash of all identity fields."""
        return fingerprint(self.config)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl: one for each log and each evaluation."""
        return readable_rows(self._files.metrics)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The rows of events.jsonl: starts, resumes, saves and faults."""
        return readable_rows(self._files.events)

    @property
    def _files(self) -> RunDirectory:
        return RunDirectory(self.directory, None, False)

    def metrics(self, kind: str | None = None, *, frame: str = "pandas") -> Any:
        """The metrics as a data frame.

        Arguments:
            kind: rows of one kind: `"train"`, `"evaluation"`, `"system"`; None for all.
            frame: `"pandas"` or `"polars"`, which must be installed.

        Raises:
            SetpointError: the package is missing, or no row is of the kind.
        """
        if frame not in FRAMES:
            raise SetpointError(f"metrics: frame = {frame!r}.\nValid: {', '.join(FRAMES)}")
        rows = self.rows
        kinds = list(dict.fromkeys(str(row.get("kind")) for row in rows))
        if kind is not None and kind not in kinds:
            raise SetpointError(
                f"metrics: {self.directory} has no rows of the kind {kind!r}.\n"
                f"Valid: {', '.join(kinds) or 'none yet'}"
            )
        rows = [row for row in rows if kind in (None, row.get("kind"))]
        try:
            package = import_module(frame)
        except ImportError:
            raise SetpointError(
                f"metrics: {frame} is not installed.\nValid: pip install {frame}; or `rows`, a "
                f"list of dict"
            ) from None
        if frame == "pandas":
            return package.DataFrame(rows)
        return package.DataFrame(rows, infer_schema_length=None)

    @property
    def status(self) -> str:
        """`"finished"`, `"stopped"`, `"failed"`, `"running"` or `"killed"`."""
        return status_of(self.events, lambda: is_locked(self.directory / ".lock"))

    @property
    def step(self) -> int:
        """Number of completed optimizer steps."""
        return last_step(self.events, self.rows)

    @property
    def checkpoints(self) -> dict[int, Path]:
        """The checkpoints by step."""
        return list_checkpoints(self._files.checkpoints)

    def model(self, overrides: Overrides = (), *, checkpoint: Which = None) -> TrainedModel:
        """The trained model, ready for inference; see `load_model`."""
        return load_model(self.directory, overrides, checkpoint=checkpoint)


class TrainedModel:
    """A model with its tokenizer, in evaluation mode on the device of its job.

    Arguments:
        draft: an inference job without a task; each call adds its own.
    """

    def __init__(self, draft: Inference, loaded: LoadedModel) -> None:
        self._draft, self._loaded = draft, loaded

    def __repr__(self) -> str:
        return f"TrainedModel({self._draft.weights.path!r}, {self._loaded.device})"

    @property
    def module(self) -> nn.Module:
        """The `torch.nn.Module`."""
        return self._loaded.model

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that it was trained with."""
        return self._loaded.tokenizer

    def generate(
        self, prompts: Prompts, *, seed: int = 0, chat: Any = None, **options: Any
    ) -> list[GeneratedText]:
        """Generate text.

        Arguments:
            prompts: one or several: a str, or a conversation as a list of messages or a row of
                the training data, whose last answer is generated.
            chat: True for the chat template of the run, or a mapping with `template` and
                `system`: prompts are then user messages.
            options: fields of the section `generation`: `max_tokens`, `temperature`, `top_p`,
                `samples`, `stop` and so on.

        Returns:
            a text for each prompt and sample, in order.

        Raises:
            SetpointError: `prompts` has conversations although `prompts_file` is given.
        """
        tasks: dict[str, Any] = {"generation": options, "seed": seed}
        if not isinstance(chat, bool | Mapping | Chat | None):
            valid = f", {{'template': {chat!r}}}" if isinstance(chat, str) else ""
            raise SetpointError(f"generate: chat = {as_text(chat)}\nValid: True, False{valid}")
        if chat is True or isinstance(chat, Mapping | Chat):
            tasks["chat"] = {} if chat is True else chat
        given = _prompts(prompts)
        if all(isinstance(prompt, str) for prompt in given):
            options["prompts"] = given
            return self._run(tasks).texts
        if "prompts_file" in options:
            raise SetpointError(
                "generate: prompts contains conversations, so prompts_file must not be given"
            )
        rows = [{"prompt": prompt} if isinstance(prompt, str) else prompt for prompt in given]
        lines = [
            row_line(row, f"generate: prompts[{index}]", VALID_PROMPT)
            for index, row in enumerate(rows)
        ]
        with TemporaryDirectory() as folder:
            file = Path(folder, "prompts.jsonl")
            file.write_bytes(b"".join(lines))
            options["prompts_file"] = str(file)
            try:
                return self._run(tasks).texts
            except SetpointError as error:
                match = re.search(rf"{re.escape(str(file))}:(\d+): (.*)", str(error))
                if match is None:
                    raise
                reason = f"prompts[{int(match[1]) - 1}]: {match[2].rstrip('.')}"
                raise SetpointError(f"generate: {reason}\n{VALID_PROMPT}") from None

    def evaluate(
        self,
        texts: Texts | Mapping[str, Texts] | None = None,
        *,
        sides: Sequence[str] | None = None,
        sequences: int | None = None,
    ) -> dict[str, Score]:
        """Evaluate on texts: loss, perplexity and bits per byte.

        Arguments:
            texts: a file, a glob, documents in memory as `train(data=...)` takes them, or a mapping
                from names to these; None for the validation split of the run's data.
            sides: splits of the run's data, `"held_out"` and `"train"`.
            sequences: maximum number of sequences of each text; None for all.

        Returns:
            a score for each name; a single text is named `text`.

        Raises:
            SetpointError: `texts` is neither a path nor documents, or `sides` is no list.
        """
        if sides is None:
            sides = ("held_out",) if texts is None else ()
        if isinstance(sides, str) or not isinstance(sides, Sequence):
            raise SetpointError(
                f"evaluate: sides = {as_text(sides)}\nValid: a list of held_out, train or both"
            )
        is_named = isinstance(texts, Mapping)
        named = texts if is_named else {} if texts is None else {"text": texts}
        sets = [
            {
                "name": name,
                "sources": [source_of(given, f"texts[{name!r}]" if is_named else "texts")],
            }
            for name, given in named.items()
        ]
        section = {"sides": tuple(sides), "sets": sets, "sequences": sequences}
        return self._run({"evaluation": section}).scores

    def _run(self, tasks: Mapping[str, Any]) -> Results:
        from setpoint.infer.inference import infer_on
        from setpoint.parallel.world import World

        job = _complete(self._draft, tasks)
        return infer_on(World(self._loaded.device), job, loaded=self._loaded)


def _prompts(prompts: Prompts) -> tuple[Any, ...]:
    """Texts, and rows of conversations.

    Raises:
        SetpointError: a prompt is neither text nor a conversation.
    """
    if isinstance(prompts, str | bytes | Mapping) or not isinstance(prompts, Iterable):
        prompts = cast("Prompts", [prompts])
    items: list[Any] = [*prompts]
    if items and all(isinstance(item, Mapping) and "role" in item for item in items):
        items = [items]
    for index, item in enumerate(items):
        if isinstance(item, list | tuple):
            items[index] = {"messages": list(cast("Sequence[object]", item))}
        elif not isinstance(item, str | Mapping):
            raise SetpointError(f"generate: prompts[{index}] = {as_text(item)}\n{VALID_PROMPT}")
    return tuple(items)


def load_model(
    source: Source, overrides: Overrides = (), *, checkpoint: Which = None
) -> TrainedModel:
    """Load trained weights for inference, in this process.

    Arguments:
        source: a run directory, a checkpoint, the directory or hub id of a Hugging Face model, what
            `train` or `load_run` returned, or a job, a preset or a file, which stand for their run.
        overrides: of the inference job: `{"parallel.device": "cpu", "weights.dtype": "bf16"}`.
        checkpoint: of a run, `"best"`, `"latest"` or a step; None for the best if there is one,
            else the latest.

    Raises:
        SetpointError: there are no such weights, or the overrides are wrong.
        RunError: the weights are damaged.
    """
    return _loaded(source, overrides, checkpoint, "load_model")


def _loaded(source: Source, overrides: Overrides, checkpoint: Which, caller: str) -> TrainedModel:
    """The model for a function; see `load_model`.

    Arguments:
        caller: the name of the function, for messages.
    """
    if launched() > 1:
        raise SetpointError(
            f"{caller}: a launcher started several ranks, but this loads the model into one "
            f"process.\nValid: setpoint.infer(job), which all ranks must call"
        )
    from setpoint.infer.loaded_model import load

    draft = _opened(source, checkpoint, overrides, caller)
    # A job has a task; that of a call takes its place.
    return TrainedModel(draft, load(_complete(draft, {"generation": {"prompts": ("",)}})))


def generate(
    source: Source,
    prompts: Prompts,
    *,
    overrides: Overrides = (),
    checkpoint: Which = None,
    **options: Any,
) -> list[GeneratedText]:
    """Continue prompts with trained weights; see `load_model` and `TrainedModel.generate`."""
    return _loaded(source, overrides, checkpoint, "generate").generate(prompts, **options)


def evaluate(
    source: Source,
    texts: Texts | Mapping[str, Texts] | None = None,
    *,
    overrides: Overrides = (),
    checkpoint: Which = None,
    **options: Any,
) -> dict[str, Score]:
    """Evaluate trained weights on texts; see `load_model` and `TrainedModel.evaluate`."""
    return _loaded(source, overrides, checkpoint, "evaluate").evaluate(texts, **options)


def export(
    source: Source,
    path: str | os.PathLike[str],
    *,
    overrides: Overrides = (),
    checkpoint: Which = None,
    **options: Any,
) -> Path:
    """Write trained weights as a Hugging Face model into a new directory.

    Arguments:
        options: fields of the section `export`: `dtype`, `family`, `adapter`, `max_shard_size`.

    Returns:
        the directory.

    Raises:
        SetpointError: `path` is not a path to a new or empty directory; see also `load_model`.
    """
    if not isinstance(path, str | os.PathLike):
        raise SetpointError(f"export: path = {as_text(path)}\nValid: a str or a pathlib.Path")
    from setpoint.infer.inference import infer as run

    draft = _opened(source, checkpoint, overrides, "export")
    results = run(_complete(draft, {"export": {"path": Path(path), **options}}))
    for caution in results.cautions:
        warnings.warn(caution, stacklevel=2)
    assert results.exported is not None, "an export job exports"
    return results.exported


def source_of(texts: Texts, argument: str = "texts") -> SourceConfig:
    """The data source that reads a file or a glob by its kind, or documents in memory.

    Arguments:
        argument: the argument of `evaluate`, for messages.
    """
    if not isinstance(texts, str | os.PathLike):
        return memory_source(texts, f"evaluate: {argument}")
    from setpoint.data.sources.conversations import conversations_in
    from setpoint.data.sources.tokens import names_token_files

    path = os.fspath(texts)
    tokens, text = Tokens(paths=(path,)), Text(paths=(path,))
    source = tokens if names_token_files(tokens) else conversations_in(text) or text
    source.set_field("paths", (path,), outside_origin("setpoint."))
    return source


def _weights_of(source: Source, caller: str) -> str:
    """The path or hub id of weights."""
    if (directory := directory_of(source)) is not None:
        return str(directory)
    if isinstance(source, str | os.PathLike):
        path = os.fspath(source)
        if os.path.isdir(os.path.expanduser(path)) or _is_hub_id(path):
            return path
    try:
        job, _ = job_of(source, caller=caller)
    except SetpointError as error:
        others = ", or the directory or hub id of a Hugging Face model"
        raise no_run(str(source), error, others) from None
    path = find_run(job)
    if not is_record(path):
        raise SetpointError(f"{caller}: {path} does not exist: train the job first")
    return path


def _is_hub_id(path: str) -> bool:
    from setpoint.hub.fetch import split_hub_id

    return not names_file(path) and not os.path.exists(path) and split_hub_id(path) is not None


def _opened(source: Source, checkpoint: Which, overrides: Overrides, caller: str) -> Inference:
    """The draft of an inference job with weights and overrides, and without a task."""
    if type(overrides) is int or overrides in ("best", "latest"):
        raise SetpointError(
            f"{caller}: overrides = {overrides!r} is a checkpoint\nValid: checkpoint={overrides!r}"
        )
    weights: dict[str, object] = {"weights.path": _weights_of(source, caller)}
    if checkpoint is not None:
        weights["weights.checkpoint"] = checkpoint
    return _composed(_composed(None, weights, caller), overrides, caller)


def _composed(draft: Inference | None, overrides: Overrides, caller: str) -> Inference:
    """Apply overrides to an inference job."""
    words, values = words_and_values(overrides, caller)
    composition = compose(Inference, draft, flags=words, program=values)
    if composition.problems:
        raise ConfigError(composition.problems)
    return composition.draft


def _complete(draft: Inference, tasks: Mapping[str, Any]) -> Inference:
    """A complete, verified job."""
    from setpoint.infer.adopt import complete, verify_job

    job = complete(_composed(draft, tasks, ""))
    if problems := verify_job(job).problems:
        raise ConfigError(problems)
    return job
