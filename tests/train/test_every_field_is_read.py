"""No dead knobs, the other way round: a run reads every field of every variant it is given.

What a run never reads would have no effect, and setting it would have to be an error.
"""

import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from setpoint.checkpoint.config import Export
from setpoint.config import Config
from setpoint.config.draft.config import fields_of
from setpoint.config.draft.walk import leaves, sections
from setpoint.config.schema.class_info import section_classes
from setpoint.config.schema.field import MARK
from setpoint.config.values.origin import DERIVED
from setpoint.config.words.names import dotted
from setpoint.parallel.config import DeepEP, TorchFT
from setpoint.parallel.engines import DeepSpeed
from setpoint.resilience.config import GpuHealthCheck
from setpoint.track.config import Csv, ServiceConfig, Webhook
from setpoint.train.config import Job
from setpoint.train.finish import print_summary
from setpoint.train.run import train
from setpoint.units import Duration

from ..data.tokenizers_here import byte_level
from ..memory.spared import spared_device
from ..precision.gpu_stand_in import gpu_stand_in
from .effects.data_fields import prepare_sources
from .small import TABLE, small_job

BASE = ("duration=3 steps", "model.dropout=0.1")
TEXT = 'data.sources=[{type=text, paths=["{tmp}/text/*.txt"]}]'
STDLIB = 'data.sources=[{type=stdlib, include=["json/*", "csv.py", "ast.py"]}]'
TOKENIZER = "tokenizer={type=huggingface, path={tmp}/tokenizer}"
# Together they hold every variant of every union, several in one job; a test below sees to it.
CHATS = (
    'data.sources=[{type=conversations, paths=["{tmp}/c.jsonl"], template=plain, untrained=drop}]'
)
JOBS: dict[str, tuple[str, ...]] = {
    "text, chunks, schedule-free": (
        TEXT, TOKENIZER, "resilience.non_finite=skip", "resilience.spike={window=2}",
        "resilience.stragglers.every=1 steps", "loss=chunked_cross_entropy",
        "optimizer=schedule_free_adamw", "schedule=constant",
    ),
    "tokens, data sets": (
        "data.sources=[{type=tokens, paths=[{tmp}/a.npy], weight=1.0}, {type=huggingface, "
        "path={tmp}/saved, weight=2.0, filter={shards=2, longest=30, too_long=truncate}}]",
        "data.phases=[{start=1, weights={tokens=3.0}}]",
    ),
    "stdlib, sgd, layers again": (
        STDLIB, "data.curriculum={by=length, descending=true}", "resilience.non_finite=rollback",
        "checkpoint.at_start=true", "checkpoint.mode=async", "schedule=none",
        "optimizer={type=sgd, nesterov=true}", "memory.activation_checkpointing=full",
        "memory.activation_offload.limit=0", "memory.empty_cache=2 steps",
    ),
    "conversations, linear, lion, mup, parts again": (
        CHATS, "batch.sequence_length=64", "schedule=linear", "optimizer=lion",
        "precision.optimizer_state=bf16", "model.mup.base_dim=8",
        "model.rope_scaling={type=linear, factor=4}", "memory.activation_checkpointing=parts",
    ),
    "polynomial, muon, latent, operators again": (
        "schedule=polynomial", "optimizer={type=muon, adamw_lr=0.001, adamw_patterns=[down]}",
        "precision.optimizer_state=bf16",
        "model.mla={kv_rank=6, rope_head_dim=4, nope_head_dim=4, value_head_dim=4}",
        "model.norm=layer_norm", "model.rope_scaling={type=yarn, factor=4, original_length=32}",
        "memory.activation_checkpointing=operators",
    ),
    "rex, any precision, sliding": (
        "data.sources=[{type=questions, documents=200}]", "batch.sequence_length=32",
        "batch.ramp={start=2, increment=2, over=1}",
        "schedule=rex", "optimizer=anyprecision_adamw", "precision.optimizer_state=bf16",
        'model.attention_pattern=["sliding"]', "model.layers=2",
        "model.rope_pattern=[true, false]", "model.attention_temperature.interval=4",
        "model.sliding_window=4", "model.norm={type=import, target=torch.nn.RMSNorm}",
        "model.rope_scaling={type=llama3, factor=4, original_length=32}",
    ),
    "wsd, adafactor, experts": (
        "schedule=wsd", "optimizer=adafactor", "model.moe.experts=4",
        "model.moe.capacity_factor=1.5",
        "adapter={type=lora, rank=2, ranks=[{pattern=query, rank=1}], quantize={type=int8}}",
    ),
    "inverse root, groups, balanced experts, ids": (
        "tokenizer=ids", "model.vocab_size=300",
        "data.sources=[{type=tokens, paths=[{tmp}/a.npy]}]", "schedule=inverse_sqrt",
        "optimizer.groups=[{pattern=embedding, weight_decay_multiplier=2, options={eps=1}}]",
        "optimizer.frozen_spans=[{pattern=query, stop=1}]",
        "model.moe={experts=4, groups=2, top_groups=1, packed=false}",
        "model.moe.router=sigmoid_top_k",
    ),
    "phases, evaluations, short weights": (
        "schedule=piecewise",
        "schedule.phases=[{length: 1, target: 1}, {target: 0, curve: polynomial}]",
        "evaluation.datasets=[{name=web, sources=[{type=random, documents=9}]}]",
        "evaluation.early_stopping={patience=2}", "evaluation.every=1 steps",
        "precision={params=bf16, compute=bf16, master=fp32, reduce=fp32}",
        "adapter={type=dora, rank=2, quantize={type=fp8, group_size=4}}",
    ),
    "plateau, profiled": (
        # The second evaluation is not a gain, so that the rate falls.
        "schedule={type=plateau, patience=0, threshold=0.99}", "evaluation.every=1 steps",
        "profiling={wait=0, warmup=0, active=1}", "resilience.gc.every=2 steps",
        "resilience.heartbeat.every=30", "tracking.trackers.append={type=prometheus, port=0}",
        "tracking.system.every=60", 'tracking.alerts=[{type=command, command=["true"]}]',
        "checkpoint.remote.url=memory://fields",
        "adapter={type=qlora, rank=2, quantize={type=nf4, group_size=8, noise={final_alpha=0.5}}}",
    ),
    "of transformers": (
        "model=huggingface", "model.config=gpt2",
        "model.overrides={n_layer: 1, n_embd: 32, n_head: 2}",
        "adapter={type=lora, rank=2, quantize={type=mxfp4}}",
    ),
    "compiled": (
        "compile.backend=eager", "adapter={type=relora, rank=2, merge={every=2 steps}}",
    ),
    "nvfp4": (
        "adapter={type=lora, rank=2, quantize={type=nvfp4, group_size=8}}",
    ),
    "fp16": (
        "precision={compute=fp16, loss_scale={}}",
        "parallel.device=cuda",
    ),
    "float8": ("precision={params=bf16, compute=bf16, float8={emulate=true}}",),
    "imported": (
        *TABLE,
        "optimizer={type=import, target=torch.optim.SGD, momentum=0.5}",
        "loss={type=import, target=torch.nn.CrossEntropyLoss}",
    ),
}  # fmt: skip
# Fields that no run reads, and who does.
ELSEWHERE = {
    "Checkpoint.resharding": "a run that resumes: tests/train/effects/checkpoint_fields.py",
    "BatchConfig.global_size": "the check of the batch sum; here it follows from the other sizes",
    "ImportedModel.max_sequence_length": "the check against the sequence length, and generate",
    "Job.silence": "resolve, which drops the cautions",
    "Prepare.workers": "data that is prepared: tests/train/effects/data_fields.py",
    "Job.user": "the user's own code",
}
# Fields that only several ranks read: tests/parallel.
OF_RANKS = {
    f"{section}.{name}"
    for section, names in {
        "Parallel": "replicate shard pipeline pipelining tensor ring ring_split ulysses "
        "shard_over_context expert expert_tensor expert_mesh_order dispatch engine sharding "
        "sequence_parallel loss_parallel async_tensor_parallel bucket_size load_weights timeout "
        "step_timeout backend",
        "Pipelining": "schedule stages_per_rank split transfer",
        "Sharding": "units layers_per_unit forward_prefetch backward_prefetch offload",
    }.items()
    for name in names.split()
}


@contextmanager
def reads() -> Iterator[set[str]]:
    """The fields that anything outside the kernel reads, as `Class.field`."""
    seen: set[str] = set()

    def look_up(self: Config, name: str) -> Any:
        if not name.startswith("_") and name in type(self).__setpoint__.fields:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if not caller.startswith("setpoint.config"):
                seen.add(f"{type(self).__name__}.{name}")
        return object.__getattribute__(self, name)

    type.__setattr__(Config, "__getattribute__", look_up)
    try:
        yield seen
    finally:
        type.__delattr__(Config, "__getattribute__")


def job_of(name: str, folder: Path) -> Job:
    return small_job(folder, *job_flags(name, folder))


def job_flags(name: str, folder: Path) -> list[str]:
    """The flags of a job, whose files are written."""
    (folder / "text").mkdir()
    for number in range(24):
        text = "one two three four five six seven eight nine ten " * 9
        (folder / "text" / f"{number}.txt").write_text(f"{number}: {text}")
    if any("type=tokens" in flag for flag in JOBS[name]):
        prepare_sources(folder)
    if TOKENIZER in JOBS[name]:
        byte_level(folder / "tokenizer")
    if CHATS in JOBS[name]:
        rows: list[object] = [{"prompt": f"{n}? " * 9, "completion": "one"} for n in range(90)]
        rows.append({"input_ids": [1], "labels": [-100]})
        (folder / "c.jsonl").write_text("\n".join(map(json.dumps, rows)))
    # Models of transformers have no fields of ours.
    base = [flag for flag in BASE if name != "of transformers" or not flag.startswith("model.")]
    return [flag.replace("{tmp}", str(folder)) for flag in (*base, *JOBS[name])]


@pytest.mark.parametrize("name", JOBS)
def test_a_run_reads_every_field(name: str, tmp_path: Path) -> None:
    job = job_of(name, tmp_path)
    if job.precision.float8 is not None:
        pytest.importorskip("torchao")
    fields = {
        dotted((*path, field)): f"{type(section).__name__}.{field}"
        for path, section in sections(job)
        # Not the arguments of imported components, which are all handed over.
        for field in fields_of(type(section).__setpoint__.cls)
    }
    with spared_device(), gpu_stand_in(), reads() as seen:
        print_summary(train(job), io.StringIO())
    for leaf in leaves(job):
        if leaf.origin.layer == DERIVED:  # what a derived value was derived from was read for it
            words = leaf.origin.label.removeprefix("from ").split(", ")
            seen |= {fields[path] for path in words if path in fields}
    assert set(fields.values()) - seen - refused(job) - ELSEWHERE.keys() - OF_RANKS == set()


def refused(job: Job) -> set[str]:
    """The fields that have no effect in this job: giving one, or another value, is an error."""
    found: set[str] = set()
    if not job.data.is_mixture:  # a check refuses them, and a section with nothing but dead fields
        found |= {"Data.mixture", *(f"{type(each).__name__}.epochs" for each in job.data.sources)}
    for _, section in sections(job):
        for name in type(section).__setpoint__.deads:
            for path in getattr(getattr(section, name), MARK).names:
                *outer, field = path.split(".")
                owner = reduce(getattr, outer, section)
                # What is derived may stand there, as in every full file; any other value may not.
                derived = not outer and field in type(section).__setpoint__.derives
                value = getattr(section, field) if derived else None
                unlike = 2 * value if isinstance(value, int | float) else Duration(7)
                unlike = not value if isinstance(value, bool) else unlike
                other = {field: unlike} if derived else {}
                if getattr(section.evolve(**other) if other else section, name)():
                    found.add(f"{type(owner).__name__}.{field}")
    return found


def test_the_jobs_hold_every_variant(tmp_path: Path) -> None:
    held: set[type[Config]] = set()
    for number, name in enumerate(JOBS):
        folder = tmp_path / str(number)
        folder.mkdir()
        placed = sections(job_of(name, folder))
        # With its arguments an imported component is of a class of its own.
        held |= {type(section).__setpoint__.cls for _, section in placed}
    # Only several ranks, or jobs, have a use for three: tests/train/effects/parallel_fields.py,
    # resilience_fields.py; one a GPU, one a server, run_fields.py; the
    # others write metrics: tests/track/test_csv_file.py, tests/track/test_services.py.
    # One starts a process: checkpoint_fields.py.
    beyond = {Export, DeepEP, DeepSpeed, TorchFT, GpuHealthCheck, Webhook}
    assert every(Job) - held == {*beyond, Csv, *ServiceConfig.__subclasses__()}


def every(cls: type[Config]) -> set[type[Config]]:
    """A class and all of Setpoint's that can stand below it."""
    found = {cls}
    for info in cls.__setpoint__.fields.values():
        for inner in section_classes(info.type):
            # Other tests of the process have variants of their own.
            found |= every(inner) if inner.__module__.startswith("setpoint.") else set()
    return found
