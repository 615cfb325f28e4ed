"""One inference job: what must hold before it, and its tasks in order."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from torch import nn

from setpoint.adapter.merge import merge_all
from setpoint.config import PROGRAM, ConfigError, Origin, SetpointError, chain_of, draft_of
from setpoint.data.tokenizers.tokenizer import Tokenizer
from setpoint.infer.adapter import write_peft
from setpoint.infer.adopt import complete, verify_job
from setpoint.infer.config import Inference
from setpoint.infer.export import export, require_empty, tokenizer_caution
from setpoint.infer.load import Loaded, load, naming_whole_ones, start_of, stored_weights
from setpoint.infer.passes import watching
from setpoint.infer.place import find_weights
from setpoint.infer.prompts import prompts_of
from setpoint.infer.results import Results, require_place, write_record, write_results
from setpoint.infer.score import score_texts
from setpoint.infer.tasks import Export
from setpoint.infer.text import OnText, continue_prompts
from setpoint.model.pretrained.run import tokenizer_of
from setpoint.parallel.determinism import determinism
from setpoint.parallel.process_group import joined
from setpoint.parallel.rank import launched, require_launch
from setpoint.parallel.world import World, world_of
from setpoint.resilience.signals import active
from setpoint.track.progress import Work, no_work
from setpoint.units.dtype import DType


def infer(job: Inference, *, on_text: OnText | None = None, show: Work = no_work) -> Results:
    """Do what an inference job says; of several ranks all call it.

    Arguments:
        job: a draft or a resolved job; what it leaves open comes from its weights, and the number
            of ranks from the launcher.
        on_text, show: what the main rank shows.

    Returns:
        the same on all ranks, but for profiles. The main rank has written the results.

    Raises:
        ConfigError: the job is wrong, or contradicts its weights. Nothing is written then.
        SetpointError: something that it names cannot be read or used.
        RunError: the weights are damaged, an operation has no deterministic form, a result cannot
            be written, or another rank has ended.
    """
    if (stop := active()) is not None:
        stop.watch()
    draft = draft_of(job)
    require_launch()
    if launched() > 1 and not chain_of(draft.parallel, "world_size"):
        draft.parallel.set_field("world_size", launched(), Origin(PROGRAM, "WORLD_SIZE"))
    job = complete(draft)
    if job.parallel.world_size != launched():
        raise _not_started(job.parallel.world_size)
    problems = verify_job(job).problems
    if problems:
        raise ConfigError(problems)
    with joined(job.parallel):
        return infer_on(world_of(job.parallel), job, on_text, show)


def _not_started(ranks: int) -> SetpointError:
    """The error of a job for another number of ranks than there are."""
    here = f"a launcher has started {launched()}" if launched() > 1 else "one process was started"
    return SetpointError(
        f"parallel.world_size = {ranks}, and {here}.\nValid: `setpoint infer ... --nproc {ranks}` "
        f"(evaluate, generate and export as well), or `torchrun --nproc-per-node {ranks} -m "
        f"setpoint infer ...`"
    )


def infer_on(
    world: World, job: Inference, on_text: OnText | None = None, show: Work = no_work
) -> Results:
    """Do what an inference job says, on ranks that have met; see `infer`.

    Arguments:
        job: complete and resolved.
    """
    if not world.is_main:
        on_text, show = None, no_work
    # All that may be refused is refused before anything is computed.
    output = None if job.output is None else Path(os.path.expanduser(job.output))

    def refuse() -> None:
        if output is not None:
            require_place(output, job)
        if job.export is not None:
            require_empty(job.export)

    world.on_main(refuse)
    # Before other ranks look for what the main one may have to fetch.
    find = partial(find_weights, job.weights.path, job.weights.checkpoint, weights=True)
    results = Results(world.on_main(find).directory)
    harness = None
    if job.harness is not None:
        from setpoint.infer.harness.run import open_harness

        harness = open_harness(job.harness)
    loaded = None
    if job.evaluation is not None or job.generation is not None or harness is not None:
        with determinism(job.deterministic):
            loaded = load(job, world)
            if output is not None and job.profiling is not None:
                # Traces come before the results, and would be a stranger's files without it.
                world.on_main(partial(write_record, output, job))
            with watching(job, loaded) as passes:
                if job.evaluation is not None:
                    results.scores = score_texts(loaded, job, show)
                if job.generation is not None:
                    directory = loaded.place.directory
                    results.texts = continue_prompts(
                        loaded,
                        job.generation,
                        prompts_of(job.generation, job.chat, loaded.facts, directory, job.ids),
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
        whole = None if has_parts else loaded
        results.exported, cautions = world.on_main(partial(_export, job, job.export, whole))
        results.cautions += cautions
    if output is not None:
        world.on_main(partial(write_results, output, job, results))
    return results


def _export(job: Inference, section: Export, loaded: Loaded | None) -> tuple[Path, list[str]]:
    """Write the weights by this process alone.

    Arguments:
        loaded: the whole model, if it is in memory.

    Returns:
        where they are, and what to know of them.
    """
    stored = stored_weights(job)
    if stored is not None:
        # A few tensors at a time, as they were saved.
        with naming_whole_ones(stored):
            tokenizer = tokenizer_of(stored, job.tokenizer)
            return _written(section, stored, tokenizer, stored)
    if loaded is None:
        loaded = load(job)
    if section.adapter:
        assert job.adapter is not None
        dtype, start = DType(section.dtype).torch(), start_of(loaded.place)
        path = write_peft(
            loaded.model, job.adapter, section.path,
            dtype=dtype, family=section.family, base=start, tokenizer=loaded.place.directory,
        )  # fmt: skip
        return path, []
    if job.adapter is not None:
        merge_all(loaded.model)
    return _written(section, loaded.model, loaded.tokenizer, loaded.place.directory)


def _written(
    section: Export, model: nn.Module | Path, tokenizer: Tokenizer, directory: Path
) -> tuple[Path, list[str]]:
    path = export(
        model,
        tokenizer,
        section.path,
        directory=directory,
        dtype=section.dtype,
        max_shard_size=section.max_shard_size,
        family=section.family,
    )
    caution = tokenizer_caution(path)
    return path, [caution] if caution else []
