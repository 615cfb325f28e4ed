"""One inference job: what must hold before it, and its tasks in order."""

from __future__ import annotations

import os
from pathlib import Path

from torch import nn

from setpoint.adapter.merge import merge_all
from setpoint.config import ConfigError
from setpoint.data.tokenizers.tokenizer import Tokenizer
from setpoint.infer.adapter import write_peft
from setpoint.infer.adopt import complete, verify_job
from setpoint.infer.config import Inference
from setpoint.infer.export import export, require_empty, tokenizer_caution
from setpoint.infer.load import load, naming_whole_ones, start_of, stored_weights
from setpoint.infer.passes import watching
from setpoint.infer.prompts import prompts_of
from setpoint.infer.results import Results, require_place, write_record, write_results
from setpoint.infer.score import score_texts
from setpoint.infer.tasks import Export
from setpoint.infer.text import OnText, continue_prompts
from setpoint.model.pretrained.run import tokenizer_of
from setpoint.parallel.determinism import determinism
from setpoint.resilience.signals import active
from setpoint.track.progress import Work, no_work
from setpoint.units.dtype import DType


def infer(job: Inference, *, on_text: OnText | None = None, show: Work = no_work) -> Results:
    """Do what an inference job says.

    Arguments:
        job: a draft or a resolved job; what it leaves open comes from its weights.

    Raises:
        ConfigError: the job is wrong, or contradicts its weights. Nothing is written then.
        SetpointError: something that it names cannot be read or used.
        RunError: the weights are damaged, an operation has no deterministic form, or a result
            cannot be written.
    """
    if (stop := active()) is not None:
        stop.watch()
    job = complete(job)
    problems = verify_job(job).problems
    if problems:
        raise ConfigError(problems)
    # All that may be refused is refused before anything is computed.
    output = None if job.output is None else Path(os.path.expanduser(job.output))
    if output is not None:
        require_place(output, job)
    if job.export is not None:
        require_empty(job.export)
    harness = None
    if job.harness is not None:
        from setpoint.infer.harness.run import open_harness

        harness = open_harness(job.harness)
    forward = (job.generation, job.evaluation, job.harness)
    stored = None if any(each is not None for each in forward) else stored_weights(job)
    if stored is not None and job.export is not None:
        results = Results(stored)
        with naming_whole_ones(stored):
            tokenizer = tokenizer_of(stored, job.tokenizer)
            _export(results, job.export, stored, tokenizer, stored)
        if output is not None:
            write_results(output, job, results)
        return results
    with determinism(job.deterministic):
        loaded = load(job)
        results = Results(loaded.place.directory)
        if output is not None and job.profiling is not None:
            # Traces come before the results, and would be a stranger's files without it.
            write_record(output, job)
        with watching(job, loaded) as passes:
            if job.evaluation is not None:
                results.scores = score_texts(loaded, job, show)
            if job.generation is not None:
                results.texts = continue_prompts(
                    loaded,
                    job.generation,
                    prompts_of(job.generation, job.chat, loaded.facts, loaded.place.directory),
                    seed=job.seed,
                    micro_size=job.batch.micro_size,
                    on_text=on_text,
                    show=show,
                )
            if harness is not None:
                results.harness = harness(loaded, job)
        results.profiles = passes.profiles
        if job.export is not None and job.export.adapter:
            assert job.adapter is not None
            section, start = job.export, start_of(loaded.place)
            dtype = DType(section.dtype).torch()
            results.exported = write_peft(
                loaded.model, job.adapter, section.path,
                dtype=dtype, family=section.family, base=start, tokenizer=loaded.place.directory,
            )  # fmt: skip
        elif job.export is not None:
            if job.adapter is not None and not job.merges_adapter:
                merge_all(loaded.model)
            _export(results, job.export, loaded.model, loaded.tokenizer, loaded.place.directory)
    if output is not None:
        write_results(output, job, results)
    return results


def _export(
    results: Results,
    section: Export,
    model: nn.Module | Path,
    tokenizer: Tokenizer,
    directory: Path,
) -> None:
    results.exported = export(
        model,
        tokenizer,
        section.path,
        directory=directory,
        dtype=section.dtype,
        max_shard_size=section.max_shard_size,
        family=section.family,
    )
    if caution := tokenizer_caution(results.exported):
        results.cautions.append(caution)
