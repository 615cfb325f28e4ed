"""Inference jobs: checks, tasks in order, and results with their record."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setpoint.config import (
    CONFIG,
    HEADER,
    PROGRAM,
    ConfigError,
    Origin,
    RunError,
    SetpointError,
    chain_of,
    draft_of,
    fingerprint,
    for_error,
    record_files,
)
from setpoint.files.atomic import write_json, write_text
from setpoint.infer.adopt import complete, find_weights, verify_job
from setpoint.infer.config import Inference
from setpoint.infer.continuation import OnText, continue_prompts, long_prompts
from setpoint.infer.exporting import export_job, require_empty
from setpoint.infer.loaded_model import LoadedModel, load
from setpoint.infer.passes import watching
from setpoint.infer.prompts import prompts_of
from setpoint.infer.score import score_texts
from setpoint.parallel.determinism import determinism
from setpoint.parallel.process_group import joined
from setpoint.parallel.rank import launched, require_launch
from setpoint.parallel.world import World, world_of
from setpoint.resilience.signals import active
from setpoint.shapes.protocols import Work, no_work
from setpoint.track.config import ENVIRONMENT
from setpoint.track.environment import environment
from setpoint.track.redact import declared_secrets

if TYPE_CHECKING:
    from setpoint.infer.config import Inference
    from setpoint.infer.continuation import GeneratedText
    from setpoint.infer.passes import Profiles
    from setpoint.shapes.scoring import Score


def infer(job: Inference, *, on_text: OnText | None = None, show: Work = no_work) -> Results:
    """Run an inference job; a collective of all ranks.

    Arguments:
        job: a draft or a resolved job; unset values come from its weights, the number of ranks from
            the launcher.
        on_text, show: output functions of the main rank.

    Returns:
        the results, equal on all ranks except for profiles. The main rank has also written them.

    Raises:
        ConfigError: the job is invalid, or contradicts its weights; nothing is written.
        SetpointError: a resource cannot be read or used.
        RunError: the weights are damaged, an operation has no deterministic form, a result cannot
            be written, or another rank has ended.
    """
    if (stop := active()) is not None:
        stop.watch()
    if not isinstance(job, Inference):  # a caller without a type checker
        raise SetpointError(
            f"infer accepts an inference job; got {for_error(job)}.\n"
            f"Valid: compose(Inference, FILE).draft; `generate`, `evaluate` and `export` take a run"
        )
    draft = draft_of(job)
    require_launch()
    if launched() > 1 and not chain_of(draft.parallel, "world_size"):
        draft.parallel.set_field("world_size", launched(), Origin(PROGRAM, "WORLD_SIZE"))
    job = complete(draft)
    require_started(job)
    problems = verify_job(job).problems
    if problems:
        raise ConfigError(problems)
    with joined(job.parallel):
        return infer_on(world_of(job.parallel), job, on_text, show)


def require_started(job: Inference) -> None:
    """Refuse a job whose number of ranks differs from the launcher's.

    Raises:
        SetpointError: with both numbers.
    """
    ranks, started = job.parallel.world_size, launched()
    if ranks == started:
        return
    state = f"a launcher started {started}" if started > 1 else "only one process was started"
    raise SetpointError(
        f"parallel.world_size = {ranks}, but {state}.\nValid: `setpoint infer ... --nproc {ranks}` "
        f"(evaluate, generate and export as well), or `torchrun --nproc-per-node {ranks} -m "
        f"setpoint infer ...`"
    )


def infer_on(
    world: World,
    job: Inference,
    on_text: OnText | None = None,
    show: Work = no_work,
    loaded: LoadedModel | None = None,
) -> Results:
    """Run an inference job on initialized ranks; see `infer`.

    Arguments:
        job: complete and resolved.
        loaded: the model of the job; None: load it.
    """
    if not world.is_main:
        on_text, show = None, no_work
    # Anything that may be refused is refused before any computation.
    output = None if job.output is None else Path(os.path.expanduser(job.output))

    def refuse() -> None:
        if output is not None:
            require_place(output, job)
        if job.export is not None:
            require_empty(job.export)

    world.on_main(refuse)
    # Before other ranks look for files that the main one may have to fetch.
    find = partial(find_weights, job.weights.path, job.weights.checkpoint, weights=True)
    place = world.on_main(find)
    results = Results(place.directory)
    harness = None
    if job.harness is not None:
        from setpoint.infer.harness import open_harness

        harness = open_harness(job.harness)
    if job.runs_model:
        with determinism(job.deterministic):
            loaded = loaded or load(job, world)
            if output is not None and job.profiling is not None:
                # Traces come before the results, and would look like foreign files without it.
                world.on_main(partial(write_record, output, job))
            with watching(job, loaded) as passes:
                if job.evaluation is not None:
                    results.scores = score_texts(loaded, job, show)
                if job.generation is not None:
                    directory = loaded.place.directory
                    prompts = prompts_of(job.generation, job.chat, loaded.facts, directory, job.ids)
                    results.cautions += long_prompts(loaded, prompts)
                    results.texts = continue_prompts(
                        loaded,
                        job.generation,
                        prompts,
                        seed=job.seed,
                        micro_size=job.batch.micro_size,
                        on_text=on_text,
                        show=show,
                    )
                if harness is not None:
                    results.harness = harness(loaded, job)
            results.profiles = passes.profiles
    if job.export is not None:
        has_parts = loaded is not None and job.divides_weights
        undivided = None if has_parts else loaded
        results.exported, cautions = world.on_main(partial(export_job, job, place, undivided))
        results.cautions += cautions
    if output is not None:
        world.on_main(partial(write_results, output, job, results))
    return results


RESULTS = "results.json"
TEXTS = "generations.jsonl"


@dataclass(slots=True)
class Results:
    """Results of an inference job.

    Arguments:
        weights: directory of the weights.
        harness: metrics of lm-evaluation-harness, by task and metric.
        exported: directory of exported weights.
        profiles: profiles of the forward passes; None: no profiling.
        cautions: cautions to consider before using the results.
    """

    weights: Path
    scores: dict[str, Score] = field(default_factory=dict)
    texts: list[GeneratedText] = field(default_factory=list)
    harness: dict[str, dict[str, Any]] = field(default_factory=dict)
    exported: Path | None = None
    profiles: Profiles | None = None
    cautions: list[str] = field(default_factory=list)

    def to_json(self, output: Path | None = None) -> dict[str, Any]:
        """The results without texts, which are written to a separate file."""
        content: dict[str, Any] = {"weights": str(self.weights)}
        if self.scores:
            content["evaluation"] = {
                name: {key: value for key, value in asdict(score).items() if value is not None}
                for name, score in self.scores.items()
            }
        if self.texts:
            content["generation"] = {"texts": len(self.texts), "file": TEXTS}
        if self.harness:
            content["harness"] = self.harness
        if self.exported is not None:
            content["export"] = str(self.exported)
        if self.profiles is not None:
            content["profiling"] = self.profiles.to_json(output)
        if self.cautions:
            content["cautions"] = self.cautions
        return content


def require_place(folder: Path, job: Inference) -> None:
    """Require an output directory that is empty or contains results of the same job.

    Raises:
        SetpointError: names the content of the directory.
    """
    if folder.exists() and not folder.is_dir():
        raise SetpointError(f"output: {folder} is a file; give a directory")
    if not folder.exists() or not any(folder.iterdir()):
        return
    try:
        header: Any = json.loads((folder / CONFIG).read_bytes())[HEADER]
        made_by = header["fingerprint"]
    except (OSError, ValueError, LookupError, TypeError):
        names = sorted(path.name for path in folder.iterdir())
        shown = ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
        raise SetpointError(
            f"output: {folder} contains {shown}, which are not results; give a new or empty "
            f"directory"
        ) from None
    if made_by != fingerprint(job):
        raise SetpointError(
            f"output: {folder} contains the record of another job ({str(made_by)[:8]}; this one "
            f"is {fingerprint(job)[:8]}); give another directory, or remove it"
        )


def write_record(folder: Path, job: Inference) -> None:
    """Write the record of a job to its directory, before there are any results.

    Raises:
        RunError: the record cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RESULTS).unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"output: {folder} cannot be written: {error.strerror}") from error
    for name, text in record_files(job).items():
        write_text(folder / name, text)


def write_results(folder: Path, job: Inference, results: Results) -> None:
    """Write results and record; `results.json` is written last, to mark completion.

    Raises:
        RunError: a file cannot be written.
    """
    write_record(folder, job)
    write_json(folder / ENVIRONMENT, environment(secrets=declared_secrets(job)))
    if results.texts:
        write_text(folder / TEXTS, "".join(_line(asdict(text)) for text in results.texts))
    write_json(folder / RESULTS, {"fingerprint": fingerprint(job), **results.to_json(folder)})


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"
