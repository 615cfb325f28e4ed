"""Run by test_distributed.py in a process of its own: ranks infer what one process does.

The words are the number of ranks; all cases of that number run in one start of them.
"""

import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist

from setpoint.config.composition import compose
from setpoint.infer.adopt import complete
from setpoint.infer.config import Inference
from setpoint.infer.harness import Answers
from setpoint.infer.inference import Results, infer_on
from setpoint.infer.loaded_model import load
from setpoint.parallel.world import World, world_of
from setpoint.train.run import train

from ..model.huggingface_families import family_job
from ..support.ranks import fork
from ..train.small import small_job
from .small import folder_of

ALONE = World(torch.device("cpu"))
TRAINED = (
    "duration=3 steps", "model.dropout=0", "model.layers=2", "model.heads=4",
    "model.qk_norm=true", "model.moe={experts=4,top_k=2,first_dense=1}",
    "checkpoint.every=3 steps", "evaluation.every=never",
)  # fmt: skip
# Seven sequences and five texts, which divide by no number of ranks, in batches of two.
TASKS = (
    "evaluation.sequences=7", 'generation.prompts=["!", "abc", "!!##", "%%", "x"]',
    "generation.max_tokens=9", "generation.temperature=0.8", "batch.micro_size=2",
)  # fmt: skip
LAYOUTS = {
    2: (
        (),
        ("parallel.tensor=2", "parallel.expert=2", "generation.temperature=0"),
        ("parallel.pipeline=2",),
    ),
    4: (
        ("parallel.tensor=2", "parallel.pipeline=2", "generation.cache=false"),
        ("parallel.tensor=2", "parallel.shard=2", "parallel.expert=4"),
        ("parallel.tensor=2", "parallel.expert=2", "parallel.expert_tensor=1"),
        ("parallel.pipeline=2", "parallel.shard=2", "parallel.expert=2"),
        ("parallel.replicate=2", "parallel.tensor=2", "parallel.expert=4"),
        ("parallel.replicate=2", "parallel.shard=2", "parallel.sharding.offload=true"),
        ("parallel.shard=4", "parallel.load_weights=broadcast"),
        ("parallel.tensor=4", "parallel.loss_parallel=false", "generation.samples=2"),
        ("parallel.tensor=2", "generation.repetition_penalty=1.3", "generation.stop=['!']"),
        ("parallel.ring=2", "parallel.ulysses=2", "generation=null"),
    ),
}
# Of a run with an adapter, which one process merges; and of a model that transformers computes.
ADAPTED = (("parallel.tensor=2", "parallel.pipeline=2"), ("parallel.shard=4",))
FOREIGN = (("parallel.shard=4",), ("parallel.replicate=4",))
# Of a family that only transformers knows, with an adapter that is merged before it is divided.
FAMILY = (
    ("parallel.replicate=2", "parallel.tensor=2", "parallel.expert=4"),
    ("parallel.tensor=2", "parallel.pipeline=2"),
    ("parallel.tensor=2", "parallel.shard=2", "parallel.expert=2", "parallel.expert_tensor=2"),
    ("parallel.tensor=2", "parallel.expert=2", "weights.merge_adapter=false"),
)
AS_THEIRS = ("model=huggingface", "tokenizer=bytes", "batch.sequence_length=16")
PAIRS = [("ab", "cd"), ("!!", "##"), ("x", "yz!")]


class Case(NamedTuple):
    """What one process has found."""

    run: Path
    flags: tuple[str, ...]
    found: Results


def job_of(case: Path, *flags: str) -> Inference:
    return complete(compose(Inference, flags=[f"weights.path={case}", *TASKS, *flags]).draft)


def alone(flags: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(flag for flag in flags if not flag.startswith("parallel."))


def results_are_those_of_one_process(case: Case) -> None:
    world = f"parallel.world_size={dist.get_world_size()}"
    job = job_of(case.run, *case.flags, world)
    found = infer_on(world_of(job.parallel), job)
    assert found.texts == case.found.texts
    for name, score in case.found.scores.items():
        mine = found.scores[name]
        assert mine.loss == pytest.approx(score.loss, rel=1e-6)
        assert (mine.tokens, mine.bytes) == (score.tokens, score.bytes)


def answers_of_the_harness_are_divided(run: Path, *flags: str) -> None:
    one = Answers(load(job_of(run)), 1, 0)
    job = job_of(run, *flags)
    several = Answers(load(job, world_of(job.parallel)), 1, 0)
    for mine, theirs in zip(several.loglikelihood(PAIRS), one.loglikelihood(PAIRS), strict=True):
        assert mine.log_probability == pytest.approx(theirs.log_probability, rel=1e-5)
        assert mine.is_greedy == theirs.is_greedy
    asked = [("ab", {"max_gen_toks": 4}), ("#", {"max_gen_toks": 4}), ("!", {"max_gen_toks": 6})]
    assert several.generate_until(asked) == one.generate_until(asked)


def results_are_written_once(case: Case, folder: Path) -> None:
    """By the main rank, in the order of the input, and an export beside them."""
    out, hf = folder / "out", folder / "hf"
    world = f"parallel.world_size={dist.get_world_size()}"
    job = job_of(case.run, *case.flags, world, f"output={out}", f"export.path={hf}")
    found = infer_on(world_of(job.parallel), job)
    assert found.texts == case.found.texts
    assert found.scores["held_out"].loss == pytest.approx(case.found.scores["held_out"].loss, 1e-6)
    dist.barrier()
    expected = folder_of(folder / "expected")
    assert folder_of(out)["generations.jsonl"] == expected["out/generations.jsonl"]
    exported = folder_of(hf)
    assert {f"hf/{name}": content for name, content in exported.items()} == {
        name: content for name, content in expected.items() if name.startswith("hf/")
    }


def one_rank(cases: list[Case], folder: Path, rank: int, store: str) -> None:
    torch.set_num_threads(1)
    size = int(sys.argv[1])
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    for case in cases[1:]:
        results_are_those_of_one_process(case)
    run = cases[0].run
    divided = ("parallel.shard=2", f"parallel.world_size={size}")
    answers_of_the_harness_are_divided(run, *divided)
    results_are_written_once(cases[0], folder)
    dist.destroy_process_group()


def adapted_run(folder: Path, base: Path) -> Path:
    """A run that has trained an adapter on another one."""
    flags = ("name=adapted", f"model.pretrained={base}", "adapter=lora", "optimizer.lr=0.1")
    return train(small_job(folder, *TRAINED, *flags)).directory


def family_cases(folder: Path) -> list[Case]:
    """A run of GPT-OSS with an adapter, and what it exports."""
    adapter = "adapter={type: lora, rank: 2, b_std: 0.3}"
    job = family_job(folder / "family", "gpt_oss", adapter, "duration=2 steps", "data.held_out=0.2")
    run, hf = train(job).directory, folder / "family-hf"
    found = infer_on(ALONE, job_of(run, f"export.path={hf}"))
    bytes_ = ("tokenizer=bytes", "batch.sequence_length=32")
    exported = infer_on(ALONE, job_of(hf, *bytes_))
    assert exported.texts == found.texts
    return [
        *(Case(run, flags, found) for flags in FAMILY),
        *(Case(hf, (*bytes_, *flags), exported) for flags in FAMILY[:2]),
    ]


def main() -> int:
    size = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = train(small_job(folder, *TRAINED)).directory
        found: dict[tuple[str, ...], Results] = {}
        for flags in map(alone, LAYOUTS[size]):
            found[flags] = found.get(flags) or infer_on(ALONE, job_of(run, *flags))
        expected = folder / "expected"
        places = (f"output={expected / 'out'}", f"export.path={expected / 'hf'}")
        infer_on(ALONE, job_of(run, *alone(LAYOUTS[size][0]), *places))
        cases = [Case(run, flags, found[alone(flags)]) for flags in LAYOUTS[size]]
        if size == 4:
            adapted = adapted_run(folder, run)
            merged = infer_on(ALONE, job_of(adapted))
            cases += [Case(adapted, flags, merged) for flags in ADAPTED]
            theirs = infer_on(ALONE, job_of(expected / "hf", *AS_THEIRS))
            cases += [Case(expected / "hf", (*AS_THEIRS, *flags), theirs) for flags in FOREIGN]
            cases += family_cases(folder)
        return fork(partial(one_rank, cases, folder), size)


if __name__ == "__main__":
    sys.exit(main())
