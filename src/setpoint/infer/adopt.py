"""Completion of an inference job from its weights: model, tokenizer, data and precision."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from setpoint.checkpoint.folder import directory_name
from setpoint.checkpoint.places import find_checkpoint, is_point, run_of_point, verify_record
from setpoint.config import (
    CONFIG,
    MISSING,
    NEEDS,
    RUNTIME,
    Config,
    ConfigError,
    Editor,
    Need,
    Origin,
    Problem,
    SetpointError,
    chain_of,
    draft_of,
    is_record,
    is_set,
    leaves,
    load_record,
    plain,
    resolve,
    verify,
)
from setpoint.config.draft.walk import to_minimal
from setpoint.config.record.record import require_modules
from setpoint.config.resolving.checks import Verification
from setpoint.config.values.node import is_changed, value_or_missing
from setpoint.config.values.origin import RECORD
from setpoint.config.words.plain_data import same
from setpoint.data.config import HuggingFace, TokenIds, TokenizerConfig
from setpoint.data.sources.config import Conversations, HubDataset, Text, Tokens
from setpoint.data.vocabulary import TOKENIZER
from setpoint.infer.config import Inference
from setpoint.infer.tasks import EXPORTED, ExportTask, Generation
from setpoint.model.config import HuggingFaceConfig
from setpoint.model.huggingface.architecture import longest_in
from setpoint.model.pretrained.config_json import vocabulary_in
from setpoint.model.pretrained.locate import (
    DESCRIPTION,
    GENERATION,
    Place,
    is_on_hub,
    locate,
    read_keys,
)
from setpoint.track.run_directory import hint_of_start
from setpoint.train.config import Job

FIXED_BY_WEIGHTS = ("model", "adapter", "tokenizer")
"""Sections that the weights were trained with, which must not change."""

HEADS = ("ForCausalLM", "LMHeadModel", "WithLMHead", "ForConditionalGeneration")
"""Suffixes of transformers' classes that predict tokens."""

DEFAULTS_FROM_WEIGHTS = ("data", "batch", "precision", "weights", "deterministic")
"""Sections taken from the weights unless another value is given; of `weights`, the dtype."""


def complete(job: Inference) -> Inference:
    """A job completed with the settings of its weights.

    Raises:
        ConfigError: lists every problem, including contradictions to the weights.
    """
    draft = draft_of(job)
    return resolve(draft, problems=adopt(draft))


def verify_job(job: Inference, needs: Collection[Need] = NEEDS) -> Verification:
    """Run the checks with requirements, except those of files that are not read."""
    sides = job.evaluation is not None and job.evaluation.sides
    unread = [] if sides else ["data"]
    local = not is_on_hub(job.weights.path)
    place = find_weights(job.weights.path, job.weights.checkpoint) if local else None
    if place is not None and place.is_checkpoint:
        # Of these, the files in the checkpoint are read, if any.
        names = {"tokenizer": TOKENIZER, "model": DESCRIPTION}
        unread += [name for name, file in names.items() if (place.directory / file).is_file()]
    verification = verify(job, needs, unread=unread)
    for problem in verification.problems:
        if problem.path.startswith("data.") and place is not None and place.is_checkpoint:
            hint = (
                f"evaluation.sides = {list(sides or ())} reads the data that the run was trained "
                f"on; `setpoint evaluate RUN --text FILE` does not need that data."
            )
            start = hint_of_start(place.directory.parent.parent, problem)
            problem.hint = f"{problem.hint} {hint} {start}".strip()
    return verification


def adopt(draft: Inference) -> list[Problem]:
    """Add the settings of the weights to a draft, below its layers.

    Arguments:
        draft: the job with all its layers; modified.
    """
    path, selector = value_or_missing(draft.weights, "path"), draft.weights.checkpoint
    if not isinstance(path, str) or not path:
        return []  # resolve reports it
    try:
        place = find_weights(path, selector)
        base = _of_run(place) if place.is_checkpoint else _of_hugging_face(path, place, draft)
    except ConfigError as error:
        return list(error.problems)
    except SetpointError as error:
        name, value = ("path", path) if selector is None else ("checkpoint", selector)
        chain = chain_of(draft.weights, name)
        origin = chain[-1][0].describe(("weights", name)) if chain else ""
        problem = Problem.of(error, f"weights.{name}")
        problem.value, problem.origin = repr(value), origin
        return [problem]
    problems: list[Problem] = []
    origin = Origin(RECORD, path)
    for name in (*FIXED_BY_WEIGHTS, *DEFAULTS_FROM_WEIGHTS):
        _default_field(draft, base, name, (), origin, name in FIXED_BY_WEIGHTS, problems)
    if place.is_checkpoint and draft.export is not None:
        _default_export(draft.export, place.directory)
    if place.is_checkpoint and draft.evaluation is not None:
        _default_sources(draft, origin)
    if draft.generation is not None:
        problems += _default_sampling(draft.generation, path, place)
    return problems


LIKE_THE_RUN = {
    Conversations: ("template", "loss_on", "untrained", "shifted_labels"),
    Tokens: ("token_dtype", "separator"),
}
"""Fields of evaluation sets that default to those of the run's data."""


def _default_sources(draft: Inference, origin: Origin) -> None:
    """Read evaluation sets like the run's data of the same type, unless fields are given."""
    assert draft.evaluation is not None
    renamed = [s.columns for s in draft.data.sources if isinstance(s, Conversations) and s.columns]
    if renamed:
        from setpoint.data.sources.conversations import conversations_in  # brings numpy

        for data_set in draft.evaluation.sets:
            sources = [
                (isinstance(source, Text) and conversations_in(source, renamed[0])) or source
                for source in data_set.sources
            ]
            if any(isinstance(source, Text) for source in data_set.sources):
                data_set.sources = tuple(sources)
    texts = [source for source in draft.data.sources if isinstance(source, Text | HubDataset)]
    named = [source.field for source in texts if is_set(source, "field")]
    for source in (source for data_set in draft.evaluation.sets for source in data_set.sources):
        if named and isinstance(source, Text) and not is_set(source, "field"):
            _default_text_field(source, named, origin)
    for kind, names in LIKE_THE_RUN.items():
        run = [source for source in draft.data.sources if isinstance(source, kind)]
        for source in (source for data_set in draft.evaluation.sets for source in data_set.sources):
            if run and isinstance(source, kind):
                is_stated = isinstance(source, Tokens) and all(
                    path.endswith(".npy") for path in source.paths
                )
                for name in names:
                    if not (is_stated and name == "token_dtype"):
                        _default_field(source, run[0], name, (), origin, False, [])


def _default_text_field(source: Text, named: Sequence[str], origin: Origin) -> None:
    """Read the text of rows that lack the usual field from one that the run's data names."""
    from setpoint.data.sources.conversations import first_row

    with suppress(SetpointError):  # reported when the files are read
        _, row = first_row(source)
        if row is not None and source.field not in row.values:
            fits = (name for name in named if name.partition(".")[0] in row.values)
            source.store("field", next(fits, source.field), origin)


def _default_export(section: ExportTask, directory: Path) -> None:
    """Export in the final dtype of the run, unless another one is given."""
    record = load_record(Job, str(directory))
    dtype = record.values.get("checkpoint", {}).get("last_dtype")
    if dtype in EXPORTED and not chain_of(section, "dtype") and section.dtype == EXPORTED[0]:
        section.store("dtype", dtype, Origin(RECORD, str(directory), record.find))


def _default_sampling(section: Generation, path: str, place: Place) -> list[Problem]:
    """Sample as in the generation_config.json of the weights, unless other values are given."""
    if not (place.directory / GENERATION).is_file():
        return []
    settings = read_keys(place.directory, GENERATION)
    sampled = ("temperature", "top_p", "min_p", "top_k") if settings.get("do_sample") else ()
    # In that format, 0 means none.
    given = {
        name: settings[name]
        for name in (*sampled, "repetition_penalty")
        if settings.get(name) is not None and not (name == "top_k" and settings[name] == 0)
    }
    origin, problems = Origin(RECORD, f"{path}/{GENERATION}"), []
    for name, value in given.items():
        greedy = section.temperature == 0 and name in sampled
        if chain_of(section, name) or greedy:
            continue
        try:
            section.set_field(name, value, origin)
        except ConfigError as error:
            for problem in error.problems:
                problem.path = f"generation.{name}"
                problems.append(problem)
    return problems


def _of_run(place: Place) -> Inference:
    """Values from the record of a run or checkpoint."""
    record = load_record(Job, str(place.directory))
    base = Inference()
    editor = Editor(base, replace_mappings=True)
    values: dict[str, Any] = {
        name: record.values[name]
        for name in (*FIXED_BY_WEIGHTS, *DEFAULTS_FROM_WEIGHTS)
        if name in record.values
    }
    # The starting point of the run itself is irrelevant, and may no longer exist.
    values["model"] = {k: v for k, v in values["model"].items() if k != "pretrained"}
    # The number of loader processes depends on this machine, as `parallel` does.
    values["data"] = {k: v for k, v in values["data"].items() if k != "loader"}
    values["batch"] = {"sequence_length": record.values["batch"]["sequence_length"]}
    # Keep only the dtypes of weights and matrix products.
    formats = values.pop("precision", {})
    values["precision"] = {"compute": formats["compute"]} if "compute" in formats else {}
    values["weights"] = {"dtype": formats["params"]} if "params" in formats else {}
    editor.merge(values, Origin(RECORD, str(place.directory), record.find))
    if editor.problems:
        require_modules(record, str(place.directory))
        raise ConfigError(editor.problems)
    return base


def _of_hugging_face(path: str, place: Place, draft: Inference) -> Inference:
    """Values from the files of a Hugging Face model."""
    model = _model_of(path, place, draft)
    base = Inference()
    editor = Editor(base, replace_mappings=True)
    values = {"type": type(model).__setpoint__.tag, **to_minimal(model)}
    config = Origin(RECORD, f"{path}/{CONFIG}")
    editor.merge({"model": values}, config)
    if editor.problems:
        raise ConfigError(editor.problems)
    if isinstance(draft.tokenizer, TokenIds) and not is_set(draft.tokenizer, "count"):
        count = vocabulary_in(read_keys(place.directory))
        if count is not None:
            draft.tokenizer.store("count", count, config)
    if chain_of(draft, "tokenizer") or is_changed(draft.tokenizer):
        return base
    if not (place.directory / TOKENIZER).is_file():
        problem = Problem(
            "tokenizer",
            f"{path} has no {TOKENIZER}, so a tokenizer must be given",
            valid=(
                "--tokenizer bytes",
                "--tokenizer huggingface --tokenizer.path DIRECTORY",
                "--tokenizer ids, for token files and prompts of ids",
            ),
        )
        raise ConfigError([problem])
    values = {"type": "huggingface", "path": path}
    editor.merge({"tokenizer": values}, Origin(RECORD, f"{path}/{TOKENIZER}"))
    return base


def _model_of(path: str, place: Place, draft: Inference) -> Config:
    """Model section for a directory: Setpoint's own if that supports it, else transformers'."""
    from setpoint.model.pretrained.config_json import read_config

    if not isinstance(draft.model, HuggingFaceConfig):
        try:
            return read_config(place.directory)[0]
        except SetpointError:
            fields = HuggingFaceConfig.__setpoint__.fields
            given = [str(leaf.path[0]) for leaf in leaves(draft.model) if leaf.chain]
            is_chosen = chain_of(draft, "model") or not fields.keys() >= {*given}
            if is_chosen or not _is_language_model(read_keys(place.directory)):
                raise
        editor = Editor(draft)
        editor.set(("model",), "huggingface", Origin(RECORD, f"{path}/{CONFIG}"))
        if editor.problems:
            raise ConfigError(editor.problems)
    longest = longest_in(read_keys(place.directory).get)
    known: dict[str, Any] = {} if longest is None else {"max_sequence_length": longest}
    return HuggingFaceConfig(config=path, **known)


def _is_language_model(keys: Mapping[str, Any]) -> bool:
    names = keys.get("architectures") or HEADS[:1]
    return bool(keys.get("model_type")) and any(str(name).endswith(HEADS) for name in names)


def _default_field(
    section: Config,
    recorded_section: Config,
    name: str,
    path: tuple[str, ...],
    origin: Origin,
    learned: bool,
    problems: list[Problem],
) -> None:
    """Use a field of one section as the default of the same field in another."""
    info = type(section).__setpoint__.fields[name]
    place = (*path, name)
    recorded_value, value_given = (
        value_or_missing(recorded_section, name),
        value_or_missing(section, name),
    )
    if recorded_value is MISSING or (
        not chain_of(recorded_section, name) and not is_changed(recorded_value)
    ):
        return
    if not chain_of(section, name) and not is_changed(value_given):
        value = draft_of(recorded_value) if isinstance(recorded_value, Config) else recorded_value
        recorded = chain_of(recorded_section, name)
        section.store(name, value, recorded[-1][0] if recorded else origin)
    elif isinstance(recorded_value, Config) and _class(value_given) is _class(recorded_value):
        for inner in type(recorded_value).__setpoint__.fields:
            _default_field(value_given, recorded_value, inner, place, origin, learned, problems)
    elif learned and info.role is not RUNTIME:
        problems += _contradictions(section, name, place, value_given, recorded_value)


def _contradictions(
    section: Config, name: str, path: tuple[str, ...], given_value: Any, recorded_value: Any
) -> list[Problem]:
    """Problems of values that differ from those with which the weights were trained."""
    info = type(section).__setpoint__.fields[name]
    given, recorded = (
        value if isinstance(value, Config) else plain(info.type.dump(value))
        for value in (given_value, recorded_value)
    )
    if (
        not isinstance(given_value, Config)
        and not isinstance(recorded_value, Config)
        and same(given, recorded)
    ):
        return []
    chain = chain_of(section, name)
    origin = chain[-1][0].describe(path) if chain else ""
    return [
        Problem(
            ".".join(path),
            f"contradicts the weights, which were trained with {_shown(recorded_value, recorded)}",
            value=_shown(given_value, given),
            origin=origin,
            hint="Remove it, or choose the weights of another run.",
        )
    ]


def _class(value: object) -> object:
    """Class of a section; an imported component with arguments has a generated class."""
    return type(value).__setpoint__.cls if isinstance(value, Config) else None


def _shown(value: object, plain: object) -> str:
    if isinstance(value, Config):
        return str(type(value).__setpoint__.tag or type(value).__name__)
    return "null" if plain is None else str(plain)


def find_weights(path: str, selector: int | str | None = None, *, weights: bool = False) -> Place:
    """Locate weights without reading them.

    Arguments:
        path: a run directory, a checkpoint, a directory of a Hugging Face model, or a hub id.
        selector: checkpoint of a run: `best`, `latest` or a step; None: the best, or the latest if
            there is no best one.

    Raises:
        SetpointError: there are no weights, or `selector` does not apply to them.
    """
    if selector is None:
        place = locate(path, weights=weights)
        if place.is_checkpoint:
            verify_record(place.directory)
        return place
    run = Path(os.path.expanduser(path))
    run = run_of_point(run) if is_point(run) else run
    if not is_record(str(run)) or not (run / "checkpoints").is_dir() or find_checkpoint(run):
        raise SetpointError(
            f"{path} is not a run, so weights.checkpoint = {selector} has no effect; leave it out"
        )
    name = selector if isinstance(selector, str) else directory_name(selector)
    checkpoint = find_checkpoint(run / "checkpoints" / name)
    if checkpoint is None:
        raise SetpointError(f"there is no checkpoint {name} in {run / 'checkpoints'}")
    verify_record(checkpoint)
    return Place(path, checkpoint, True)


def kept_tokenizer(section: TokenizerConfig, place: Place) -> TokenizerConfig:
    """Tokenizer section, with the files saved in a checkpoint."""
    kept = place.is_checkpoint and (place.directory / TOKENIZER).is_file()
    if not kept or not isinstance(section, HuggingFace):
        return section
    return HuggingFace(path=str(place.directory), separator=section.separator)
