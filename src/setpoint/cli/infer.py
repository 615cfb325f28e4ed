"""`setpoint infer`: run an inference job."""

from __future__ import annotations

import os

from setpoint.cli.main import Loading
from setpoint.cli.options import COMMON, INFERENCE, JSON, Arguments, Command, Program
from setpoint.cli.output import print_cautions
from setpoint.cli.ranks import NPROC, SEVERAL, count_ranks, require_ranks, speaks, start_ranks
from setpoint.cli.results import print_scores, tell_cautions, tell_profiles
from setpoint.cli.source import RUN, kind_of, open_source
from setpoint.config import ConfigError, SetpointError, cautions_of, is_set
from setpoint.parallel.rank import own_rank
from setpoint.track.progress import make_work_progress

COMMAND = Command(
    "infer",
    "SOURCE [OVERRIDES]",
    "Run an inference job on trained weights: evaluate texts, continue prompts, run tasks of\n"
    "lm-evaluation-harness, export. Model, tokenizer, data, sequence length and precision are\n"
    "those recorded with the weights.\n"
    f"{SEVERAL}\n"
    "\n"
    "SOURCE is a TOML, YAML or JSON file with the section `weights`, a preset or module:function\n"
    "that returns an Inference, or a directory of results, whose job is run again. OVERRIDES set\n"
    "fields: --generation.top_k 40, or generation.top_k=40. `check`, `show`, `why`, `diff` and\n"
    "`fingerprint` take the same SOURCE. `generate`, `evaluate` and `export` are short forms.",
    [NPROC, *COMMON, JSON],
    [
        ("setpoint infer eval.toml", "a job from a file"),
        ("setpoint infer eval.toml --weights.checkpoint latest", "with the latest checkpoint"),
        ("setpoint infer eval.toml --nproc 8 --parallel.tensor 2", "4 copies, on 2 ranks each"),
    ],
    program=Program("setpoint", INFERENCE),
)


@COMMAND
def run(arguments: Arguments) -> int:
    """Do the tasks, and print what they came to."""
    require_ranks(arguments)
    source = arguments.positional[0]
    if kind_of(source) == RUN and os.path.isdir(os.path.join(source, "checkpoints")):
        raise SetpointError(
            f"{source} is a run of training, and no inference job: `setpoint evaluate {source}` "
            f"and `setpoint generate {source}` take its weights"
        )
    composition = open_source(source, arguments)
    refused = any(problem.path == "weights.path" for problem in composition.problems)
    if not is_set(composition.draft.weights, "path") and not refused:
        raise SetpointError(
            f"{source} names no weights, so it is no inference job: give it the section weights "
            f"with a path. Of a training job, `setpoint evaluate {source}` and `setpoint generate "
            f"{source}` take the weights of its run"
        )
    from setpoint.infer.adopt import verify_job

    count_ranks(arguments, composition)
    job = composition.resolve()
    found = verify_job(job, ("files",))
    if found.problems:
        raise ConfigError(found.problems)
    if speaks(arguments):
        print_cautions(caution for caution in found.cautions if caution not in cautions_of(job))
    status = start_ranks(arguments)
    if status is not None:
        return status
    with Loading():
        from setpoint.infer.inference import infer
    with make_work_progress() as progress:
        results = infer(job, show=progress.work)
    if own_rank():
        return 0
    if arguments.has(JSON.name):
        import json
        from dataclasses import asdict

        texts = [asdict(text) for text in results.texts]
        print(json.dumps({**results.to_json(job.output), "texts": texts}, indent=2))
        return 0
    if results.scores:
        print_scores(results.scores)
    for text in results.texts:
        by = f" {text.stopped_by!r}" if text.stopped_by is not None else ""
        print(f"--- {text.finish}{by}, {text.tokens} tokens\n{text.prompt}{text.text}")
    for task, metrics in results.harness.items():
        for name, value in metrics.items():
            print(f"{task}  {name}  {value}")
    tell_profiles(results)
    tell_cautions(results)
    if results.exported is not None:
        print(f"exported to {results.exported}")
    if job.output is not None:
        print(f"results in {job.output}")
    return 0
