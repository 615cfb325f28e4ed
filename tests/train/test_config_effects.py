"""No dead knobs: each field of a job and its sections changes something, in a table of all."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from setpoint.checkpoint.folder import list_checkpoints
from setpoint.checkpoint.loading import load_directory
from setpoint.config import Config, SetpointError
from setpoint.config.record.record import fingerprint
from setpoint.config.schema.class_info import section_classes
from setpoint.config.values.user_code import allow_imports
from setpoint.files.tensor_file import DTYPES
from setpoint.infer.adopt import complete
from setpoint.infer.config import Inference, InferenceWeights
from setpoint.infer.loaded_model import load
from setpoint.infer.tasks import Generation
from setpoint.model.attention.attention import choose_backend
from setpoint.model.build import skeleton
from setpoint.model.config import TransformerConfig
from setpoint.model.layers import layers_of
from setpoint.model.moe import experts
from setpoint.parallel import hangs
from setpoint.parallel.config import AXES
from setpoint.parallel.device import choose_device
from setpoint.parallel.pipeline import keep_stages
from setpoint.parallel.process_group import backend_of, joined
from setpoint.parallel.replicas import TorchReplicas
from setpoint.parallel.sharding import shard
from setpoint.parallel.world import World, noise_axes, reader_of
from setpoint.resilience.signals import StopRequest
from setpoint.track.config import ServiceConfig
from setpoint.track.jsonl import JsonlTracker
from setpoint.train.build.components import (
    Components,
    build_components,
    build_model_parts,
    divide_model,
)
from setpoint.train.config import Job
from setpoint.train.finish import print_summary
from setpoint.train.loop import Loop
from setpoint.train.opening import settings_of
from setpoint.train.position import Position
from setpoint.train.run import train
from setpoint.train.run_name import run_directory_of

from ..data.tokenizers_here import byte_level
from ..support.cuda_autocast import cuda_autocast
from .adapter_effects import ROWS as ADAPTER_ROWS
from .compile_effects import ROWS as COMPILE_ROWS
from .data_effects import ROWS as DATA_ROWS
from .data_effects import prepare_sources
from .dispatch_effects import ROWS as DISPATCH_ROWS
from .evaluation_effects import ROWS as EVALUATION_ROWS
from .expert_effects import ROWS as EXPERT_ROWS
from .group_effects import ROWS as GROUP_ROWS
from .group_effects import learned
from .load_effects import LOAD_ROWS, prepare_loaded
from .loss_effects import ROWS as LOSS_ROWS
from .memory_effects import ROWS as MEMORY_ROWS
from .model_effects import ROWS
from .optimizer_variant_effects import ROWS as VARIANT_ROWS
from .precision_effects import ROWS as PRECISION_ROWS
from .pretrained_effects import PRETRAINED_ROWS, implementation, prepare  # noqa: F401 - rows name it
from .profile_effects import ROWS as PROFILE_ROWS
from .remote_effects import ROWS as REMOTE_ROWS
from .resilience_effects import ROWS as RESILIENCE_ROWS
from .saving_effects import ROWS as SAVING_ROWS
from .schedule_effects import ROWS as SCHEDULE_ROWS
from .schedule_effects import rates, updates
from .small import events, rows, small_job
from .tracking_effects import ROWS as TRACKING_ROWS
from .zero_effects import ROWS as ZERO_ROWS

BASE = ("duration=4 steps", "model.dropout=0")


allow_imports(__name__)


class Table(torch.nn.Module):
    """A table of logits."""

    def __init__(self, vocab_size: int, dropout: float, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.table = torch.nn.Embedding(vocab_size, vocab_size)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table(tokens) * self.scale


class Softened(Table):
    """A table of logits that are half as large."""

    def __init__(self, vocab_size: int, dropout: float) -> None:
        super().__init__(vocab_size, dropout, scale=0.5)


def weights(job: Job) -> dict[str, bytes]:
    """The initial parameters."""
    components = build_components(job)
    return {n: p.detach().numpy().tobytes() for n, p in components.model.named_parameters()}


def logits(job: Job) -> bytes:
    """What the initial model says about a fixed text; large, for what is small at the start."""
    model = build_components(job).model.eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5.0)
        return model(torch.arange(64, 80)[None]).numpy().tobytes()


def backend(job: Job) -> str:
    """What computes attention on the CPU."""
    assert isinstance(job.model, TransformerConfig)
    return choose_backend(job.model, torch.device("cpu")).name


def products(job: Job) -> set[str]:
    """Which matrix products experts take."""
    model, seen = build_components(job).model, set[str]()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("grouped_product", "looped_product"):
            real = getattr(experts, name)
            patch.setattr(experts, name, lambda *a, n=name, f=real: seen.add(n) or f(*a))
        model(torch.arange(64, 80)[None])
    return seen


def balanced(job: Job) -> dict[str, bytes]:
    """What is saved of the model after four updates, with the biases of routers."""
    components = build_components(job)
    Loop(job, components, [], StopRequest(), Position()).run()
    return {
        name: tensor.numpy().tobytes() for name, tensor in components.model.state_dict().items()
    }


def lengths(job: Job) -> tuple[int, int]:
    """Updates, and tokens in each."""
    seen = updates(job)
    return len(seen), seen[0].tokens


def portions(job: Job) -> tuple[int, tuple[int, ...]]:
    """How many micro-batches there are, and their shape."""
    return job.batch.accumulation, tuple(build_components(job).feed.take().batches[0].inputs.shape)


def corpora(job: Job) -> tuple[str, str]:
    """Both sides of the data."""
    components = build_components(job)
    assert components.held_out is not None
    return components.train_data.identity.digest, components.held_out.identity.digest


def deterministic(job: Job) -> bool:
    """What torch was told."""
    with settings_of(job):
        return torch.are_deterministic_algorithms_enabled()


def logged(job: Job) -> list[dict[str, Any]]:
    """The rows of metrics, if there are any."""
    run = train(job).directory
    return rows(run) if (run / "metrics.jsonl").exists() else []


def reports(job: Job) -> list[str]:
    """Which pages the run leaves."""
    return [path.name for path in train(job).directory.glob("*.html")]


def saved(job: Job) -> tuple[list[int], list[str]]:
    """Which checkpoints are there at the end, and what is pointed to."""
    run = train(job).directory
    pointers = [name for name in ("latest", "best") if (run / "checkpoints" / name).exists()]
    return list(list_checkpoints(run / "checkpoints")), pointers


def described(job: Job) -> str | None:
    """The description that trackers get."""
    given: list[str | None] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JsonlTracker, "describe", lambda _, facts: given.append(facts.description))
        train(job)
    return given[0]


def dtypes_of_the_last(job: Job) -> set[str]:
    """In which formats the weights of the last checkpoint are."""
    [folder] = list_checkpoints(train(job).directory / "checkpoints").values()
    return {DTYPES[each.dtype] for each in load_directory(folder).tensors["model"].values()}


def told(job: Job) -> str:
    """Whether and how people see the run."""
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        train(job)
    shown = stream.getvalue()
    return "a bar" if "━" in shown else "lines" if "step 1/" in shown else "nothing"


def summarized(job: Job) -> bool:
    """Whether the summary shows the n-gram models."""
    stream = io.StringIO()
    print_summary(train(job), stream)
    return "unigram" in stream.getvalue()


def trained_twice(job: Job) -> str:
    """How a run in a directory that holds a run begins."""
    train(job, Path(job.workspace) / "here")
    return "went on"


def on_ranks(job: Job) -> int:
    """What each rank does."""
    return job.batch.micro_size


RANKS = ("parallel.world_size=4", "batch.global_size=16", "parallel.shard=-1")
FSDP = (*RANKS, "model.layers=3", "parallel.device=cuda")
REPLICAS = ("parallel.world_size=4", "batch.global_size=16")


TENSOR = ("parallel.world_size=2", "parallel.tensor=2")


def degrees_of(job: Job) -> dict[str, int]:
    """The axes that divide the ranks, and how many ranks read different data."""
    found = {axis: degree for axis, degree in job.parallel.degrees.items() if degree > 1}
    return {**found, "data": job.parallel.data_ranks}


def sharding_axes(job: Job) -> tuple[tuple[str, ...], ...]:
    """The axes whose ranks divide weights, and those whose ranks have copies."""
    return job.parallel.sharding_axes, job.parallel.copying_axes


def divided(job: Job) -> tuple[bool, bool, tuple[str, ...]]:
    """How matrices are divided, whether logits are gathered, and whose random numbers differ."""
    asked: list[bool] = []
    model: Any = torch.nn.Linear(2, 2)
    degrees = {**dict.fromkeys(AXES, 1), "tensor": 2}
    world = World(torch.device("cpu"), degrees=degrees, mesh={"tensor": None})  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "setpoint.parallel.divide.divide_matrices",
            lambda model, mesh, *options: asked.extend(options),
        )
        divide_model(job, world, model)
    return asked[0], asked[1], noise_axes(job.parallel)


def reductions(job: Job) -> list[bool]:
    """After which micro-batches of a step FSDP2 reduces gradients."""

    class Sharded(torch.nn.Module):
        def set_requires_gradient_sync(self, is_last: bool) -> None:
            asked.append(is_last)

        def set_requires_all_reduce(self, is_last: bool) -> None: ...

        def set_reshard_after_backward(self, *_: Any, **__: Any) -> None: ...

    asked: list[bool] = []
    replicas = TorchReplicas(job.parallel, World(torch.device("cpu")), Sharded())
    count = job.batch.accumulation
    for number in range(1, count + 1):
        with replicas.micro_batch(number == count):
            pass
    return asked or [True] * count


def fuses_messages(job: Job) -> tuple[bool, bool]:
    """Whether inductor is told to, and whether the ranks share memory."""
    from torch._inductor import config

    shares: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("setpoint.parallel.divide.share_memory", shares.append)
        divided(job)
        with settings_of(job):
            return config._micro_pipeline_tp, bool(shares)


CUT = ("parallel.world_size=2", "parallel.pipeline=2", "model.layers=4", "batch.accumulation=4")
SPLIT = '[[embedding, "layers.0"], ["layers.1", "layers.2", "layers.3", output]]'


def staged(job: Job) -> tuple[str, list[list[str]]]:
    """The schedule of a pipeline, and the layers in each stage of its first rank."""
    pipelining = job.parallel.pipelining
    stages = keep_stages(pipelining, skeleton(job.model, 257), ranks=2, rank=0, sizes=None)
    held = [[name for name, _ in layers_of(stage)] for stage in stages]
    return pipelining.known.torch, [[name[-1] for name in each] for each in held]


def sent(job: Job) -> str:
    """The dtype of what a pipeline sends."""
    return job.parallel.pipelining.sent(job.precision.compute, job.precision.params)


def resharding(job: Job) -> list[Any]:
    """What FSDP2 is asked for, for a layer and for what lies around it."""
    asked: list[Any] = []
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "torch.distributed.fsdp.fully_shard",
            lambda unit, **options: asked.append(options["reshard_after_forward"]),
        )
        mesh: Any = {"shard": None}
        policy: Any = None
        shard(job.parallel, mesh, model, [("0", model[0])], policy, set())
    return asked


def asked_of_fsdp(job: Job) -> list[dict[str, Any]]:
    """What FSDP2 is asked for of each unit, and what of them it asks for ahead."""
    model = skeleton(job.model, 257)
    names = {module: name for name, module in model.named_modules()}
    asked: list[dict[str, Any]] = []

    def fully_shard(unit: Any, **options: Any) -> None:
        modules = unit if isinstance(unit, list) else [unit]
        row: dict[str, Any] = {"unit": [names[module] for module in modules]}
        row["offload"] = "offload_policy" in options
        row["whole"] = len(options.get("ignored_params", ()))
        for way in ("forward", "backward"):
            ahead = partial(row.__setitem__, way)
            told = lambda units, ahead=ahead: ahead([names[each] for each in units])  # noqa: E731
            setattr(modules[0], f"set_modules_to_{way}_prefetch", told)
        asked.append(row)

    class Mesh(dict[str, Any]):
        device_type = "cuda"

    mesh: Any = Mesh()
    mesh["shard"] = mesh
    policy: Any = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.distributed.fsdp.fully_shard", fully_shard)
        shard(job.parallel, mesh, model, layers_of(model), policy, set())
    return asked


def begins_on(job: Job) -> str:
    """Where weights get their first values on a machine with a GPU."""
    found: list[str] = []

    class Begun(Exception):
        pass

    def begun(model: torch.nn.Module, device: torch.device, dtype: torch.dtype) -> None:
        found.append(str(device))
        raise Begun

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("setpoint.train.build.components.materialize", begun)
        with pytest.raises(Begun):
            build_model_parts(job, Components(World(torch.device("cuda"))), 257)
    return found[0]


def reads_for_others(job: Job) -> bool:
    """Whether one rank reads weights for others."""
    group: Any = object()
    world = World(torch.device("cpu"), size=4, groups={("replicate", "shard", "ring", "ulysses",
                                                        "tensor"): group})  # fmt: skip
    return reader_of(job.parallel, world) is not None


def bucket_size(job: Job) -> float:
    """MiB of a bucket of DDP."""
    found: list[float] = []

    class Replicated(torch.nn.Module):
        def __init__(self, module: torch.nn.Module, bucket_cap_mb: float, **options: Any) -> None:
            super().__init__()
            found.append(bucket_cap_mb)

        def register_comm_hook(self, state: object, hook: object) -> None:
            pass

    degrees = dict.fromkeys(AXES, 1) | {"replicate": 4}
    world = World(torch.device("cpu"), size=4, degrees=degrees)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.nn.parallel.DistributedDataParallel", Replicated)
        TorchReplicas(job.parallel, world, torch.nn.Linear(2, 2))
    return found[0]


def backend_on_gpu(job: Job) -> str:
    """What ranks with a GPU each would communicate by."""
    return backend_of(job.parallel, torch.device("cuda:0"))


def meeting(job: Job) -> tuple[str, float, float]:
    """The backend of the ranks, and how long they wait for each other: at first and in a step."""
    found: list[Any] = []

    def join(backend: str, timeout: timedelta, device_id: object = None) -> None:
        found.extend((backend, timeout.total_seconds()))

    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"RANK": "0", "WORLD_SIZE": "4"}.items():
            patch.setenv(name, value)
        patch.setattr("torch.distributed.init_process_group", join)
        patch.setattr("torch.distributed.barrier", lambda: None)
        patch.setattr("torch.distributed.destroy_process_group", lambda: None)
        patch.setattr("setpoint.parallel.process_group.enter", lambda: None)
        patch.setattr("setpoint.parallel.hangs._set_timeouts", lambda groups, seconds: None)
        with joined(job.parallel):
            hangs.step_begins(first=False)
            watch = hangs._active
            assert watch is not None
            return found[0], found[1], watch.limit


def on_device(job: Job) -> str:
    """Where the model would lie on a machine with a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.cuda.is_available", lambda: True)
        return choose_device(job.parallel).type


def context(job: Job) -> int:
    """How far back generation sees."""
    weights = InferenceWeights(path=str(train(job).directory))
    return load(complete(Inference(weights=weights, generation=Generation(prompts=("x",))))).context


def warned(job: Job) -> list[str]:
    """The cautions that the record of a run holds."""
    (start, *_) = [event for event in events(train(job).directory) if event["event"] == "start"]
    return [caution["code"] for caution in start.get("cautions", [])]


def vocabulary(job: Job) -> int:
    """How many tokens the initial model predicts."""
    model: Any = build_components(job).model
    return model.vocab_size


@dataclass(frozen=True)
class Effect:
    """One field that is changed, and where the change is seen.

    Arguments:
        change: the override; `{tmp}` is a folder with texts.
        see: gives what must differ.
        base: overrides on both sides.
        gives: what is seen with the change, where it can be said in short.
        without: fields that the file of the job must not set.
    """

    change: str
    see: Callable[[Job], Any]
    base: tuple[str, ...] = ()
    gives: Any = None
    without: tuple[str, ...] = ()


STDLIB = ('data.sources=[{type=stdlib, include=["json/*", "csv.py", "ast.py"]}]',)
TEXT = ('data.sources=[{type=text, paths=["{tmp}/text/*.txt"]}]',)
ROWS_OF_TEXT = ("data.sources=[{type=text, paths=[{tmp}/rows.jsonl]}]",)
CHATS = ('data.sources=[{type=conversations, paths=["{tmp}/chats/*.jsonl"], template=plain, '
         "untrained=drop}]",)  # fmt: skip
FIRST = "data.sources.0"
QUESTIONS = ("data.sources=[{type=questions, documents=200}]", "batch.sequence_length=32")
TOKENIZER = ("tokenizer={type=huggingface, path={tmp}/tokenizer}",)
EVERY_STEP = ("checkpoint.every=1 steps",)
ADAGRAD = ("optimizer={type=import, target=torch.optim.Adagrad}",)
TORCH_LOSS = ("loss={type=import, target=torch.nn.CrossEntropyLoss}",)
TABLE = ("model=import", f"model.target={__name__}.Table")

EFFECTS = {
    "Job.name": Effect("name=other", run_directory_of),
    "Job.experiment": Effect("experiment=e", run_directory_of),
    "Job.description": Effect("description=of the run in words", described),
    "Job.workspace": Effect("workspace=elsewhere", run_directory_of),
    "Job.seed": Effect("seed=7", weights),
    "Job.duration": Effect("duration=6 steps", lengths, gives=(6, 64)),
    "Job.deterministic": Effect("deterministic=true", deterministic, gives=True),
    "Job.schedule": Effect("schedule=constant", rates, gives=[0.01] * 4),
    "Job.evaluation": Effect("evaluation=null", logged),
    "Job.silence": Effect("silence=learning-rate-high", warned,
                          ("optimizer.lr=0.2", "evaluation.every=4 steps"), gives=[]),
    "Job.user": Effect("user.note=x", fingerprint),
    "Batch.global_size": Effect("batch.global_size=8", lengths, without=("accumulation",),
                                gives=(4, 128)),
    "Batch.micro_size": Effect("batch.micro_size=4", portions, gives=(2, (4, 16))),
    "Batch.accumulation": Effect("batch.accumulation=3", portions, gives=(3, (2, 16))),
    "Batch.sequence_length": Effect("batch.sequence_length=8", portions, gives=(2, (2, 8))),
    "TransformerConfig.max_sequence_length": Effect(
        "model.max_sequence_length=64", context, gives=64
    ),
    "TransformerConfig.dim": Effect("model.dim=32", weights),
    "TransformerConfig.layers": Effect("model.layers=2", weights),
    "TransformerConfig.heads": Effect("model.heads=4", logits),
    "TransformerConfig.kv_heads": Effect("model.kv_heads=1", weights),
    "TransformerConfig.head_dim": Effect("model.head_dim=16", weights),
    "TransformerConfig.ffn_dim": Effect("model.ffn_dim=40", weights),
    "TransformerConfig.ffn_multiple_of": Effect("model.ffn_multiple_of=8", weights),
    "TransformerConfig.rope_base": Effect("model.rope_base=100", logits),
    "TransformerConfig.norm_eps": Effect("model.norm_eps=0.1", logits),
    "TransformerConfig.init_std": Effect("model.init_std=0.5", weights),
    "TransformerConfig.tie_embeddings": Effect("model.tie_embeddings=true", weights),
    "TransformerConfig.dropout": Effect("model.dropout=0.3", learned),
    "Data.sources": Effect(STDLIB[0], corpora),
    "Data.held_out": Effect("data.held_out=0.4", corpora),
    "Data.validation": Effect("data.validation=[{type=random, documents=9}]", corpora,
                              ("data.sources=[{type=random, documents=200}]",),
                              without=("held_out",)),
    "Stdlib.name": Effect(f"{FIRST}.name=library", corpora, STDLIB),
    "Stdlib.include": Effect(f'{FIRST}.include=["email/*"]', corpora, STDLIB),
    "Text.name": Effect(f"{FIRST}.name=mine", corpora, TEXT),
    "Text.paths": Effect(f'{FIRST}.paths=["{{tmp}}/text/1*.txt"]', corpora, TEXT),
    "Text.separator": Effect(f'{FIRST}.separator="five"', corpora, TEXT),
    "Text.format": Effect(f"{FIRST}.format=text", corpora, ROWS_OF_TEXT),
    "Text.field": Effect(f"{FIRST}.field=title", corpora, ROWS_OF_TEXT),
    "Conversations.name": Effect(f"{FIRST}.name=mine", corpora, CHATS),
    "Conversations.paths": Effect(f'{FIRST}.paths=["{{tmp}}/chats/1*.jsonl"]', corpora, CHATS),
    "Conversations.template": Effect(f"{FIRST}.template=alpaca", corpora, CHATS),
    "Conversations.loss_on": Effect(f"{FIRST}.loss_on=all", corpora, CHATS),
    "Conversations.untrained": Effect(f"{FIRST}.untrained=error", corpora, CHATS,
                                      gives="refused: SetpointError"),
    "Random.name": Effect(f"{FIRST}.name=other", corpora),
    "Random.documents": Effect(f"{FIRST}.documents=50", corpora),
    "Random.length": Effect(f"{FIRST}.length=300", corpora),
    "Random.pattern": Effect(f"{FIRST}.pattern=uniform", corpora),
    "Random.alphabet": Effect(f"{FIRST}.alphabet=9", corpora),
    "Random.seed": Effect(f"{FIRST}.seed=1", corpora),
    "Questions.name": Effect(f"{FIRST}.name=other", corpora, QUESTIONS),
    "Questions.documents": Effect(f"{FIRST}.documents=150", corpora, QUESTIONS),
    "Questions.seed": Effect(f"{FIRST}.seed=1", corpora, QUESTIONS),
    "HuggingFace.path": Effect("tokenizer.path={tmp}/other", corpora, TOKENIZER),
    "HuggingFace.separator": Effect('tokenizer.separator="<|begin|>"', corpora, TOKENIZER),
    "HuggingFace.added": Effect('tokenizer.added=["<|im_end|>"]', vocabulary, TOKENIZER, 295),
    "ImportedOptimizer.target": Effect("optimizer.target=torch.optim.Adam", learned, ADAGRAD),
    "ImportedLossConfig.target": Effect("loss.target=torch.nn.NLLLoss", learned, TORCH_LOSS),
    "ImportedModel.target": Effect(f"model.target={__name__}.Softened", learned, TABLE),
    "ImportedModel.max_sequence_length": Effect("model.max_sequence_length=64", context, TABLE,
                                                gives=64),
    "Parallel.world_size": Effect("parallel.world_size=2", on_ranks, ("batch.global_size=8",),
                                  without=("micro_size", "accumulation"), gives=4),
    "Parallel.replicate": Effect("parallel.replicate=4", degrees_of, RANKS,
                                 gives={"replicate": 4, "data": 4}),
    "Parallel.shard": Effect("parallel.shard=2", degrees_of, RANKS,
                                 gives={"replicate": 2, "shard": 2, "data": 4}),
    "Parallel.pipeline": Effect("parallel.pipeline=2", degrees_of, (*RANKS, "model.layers=2"),
                                  without=("accumulation",),
                                gives={"pipeline": 2, "shard": 2, "data": 2}),
    "Pipelining.schedule": Effect("parallel.pipelining.schedule=looped_bfs", staged, CUT,
                                  gives=("LoopedBFS", [["0"], ["2"]])),
    "Pipelining.stages_per_rank": Effect(
        "parallel.pipelining.stages_per_rank=1", staged,
        (*CUT, "parallel.pipelining.schedule=looped_bfs"), gives=("LoopedBFS", [["0", "1"]])),
    "Pipelining.transfer": Effect("parallel.pipelining.transfer=bf16", sent, CUT, gives="bf16"),
    "Pipelining.split": Effect(f"parallel.pipelining.split={SPLIT}", staged, CUT,
                               gives=("1F1B", [["0"]])),
    "Parallel.tensor": Effect("parallel.tensor=2", degrees_of, RANKS,
                                  without=("accumulation",),
                                gives={"shard": 2, "tensor": 2, "data": 2}),
    "Parallel.ring": Effect("parallel.ring=2", degrees_of, RANKS,
                                  without=("accumulation",),
                                gives={"shard": 2, "ring": 2, "data": 2}),
    "Parallel.ulysses": Effect("parallel.ulysses=2", degrees_of, RANKS,
                                  without=("accumulation",),
                                gives={"shard": 2, "ulysses": 2, "data": 2}),
    "Parallel.ring_split": Effect("parallel.ring_split=contiguous", lambda job: job.parallel
                                  .sequence_multiple, (*RANKS, "parallel.ring=2"),
                                  without=("accumulation",), gives=2),
    "Parallel.shard_over_context": Effect("parallel.shard_over_context=none", sharding_axes,
                                        (*RANKS, "parallel.ring=2"), without=("accumulation",),
                                        gives=(("shard",), ("replicate", "ring", "ulysses"))),
    "Parallel.sequence_parallel": Effect("parallel.sequence_parallel=false", divided, TENSOR,
                                         gives=(False, False, ("ring", "ulysses"))),
    "Parallel.async_tensor_parallel": Effect(
        "parallel.async_tensor_parallel=true", fuses_messages,
        (*TENSOR, "compile={}", "parallel.device=cuda"), gives=(True, True)),
    "Parallel.loss_parallel": Effect("parallel.loss_parallel=false", divided, TENSOR,
                                     gives=(True, True, ("ring", "ulysses", "tensor"))),
    "Parallel.reshard": Effect("parallel.reshard=false", resharding, RANKS),
    "Parallel.sharding": Effect("parallel.sharding.layers_per_unit=2", asked_of_fsdp, FSDP),
    "Sharding.units": Effect("parallel.sharding.units=['layers.0.attention']", asked_of_fsdp, FSDP),
    "Sharding.replicated": Effect("parallel.sharding.replicated=[norm]", asked_of_fsdp, FSDP),
    "Sharding.layers_per_unit": Effect("parallel.sharding.layers_per_unit=2", asked_of_fsdp, FSDP),
    "Sharding.forward_prefetch": Effect("parallel.sharding.forward_prefetch=2", asked_of_fsdp,
                                        FSDP),
    "Sharding.backward_prefetch": Effect("parallel.sharding.backward_prefetch=2", asked_of_fsdp,
                                         FSDP),
    "Sharding.accumulation": Effect("parallel.sharding.accumulation=unsharded", reductions,
                                    (*RANKS, "batch.accumulation=2"), [False, True],
                                    without=("micro_size",)),
    "Sharding.offload": Effect("parallel.sharding.offload=true", asked_of_fsdp, FSDP),
    "Parallel.init_device": Effect("parallel.init_device=cpu", begins_on,
                                   ("parallel.device=cuda",), gives="cpu"),
    "Parallel.load_weights": Effect("parallel.load_weights=broadcast", reads_for_others,
                                    (*REPLICAS, "model.pretrained=weights"), gives=True),
    "Parallel.bucket_size": Effect("parallel.bucket_size=1", bucket_size, REPLICAS, gives=1.0),
    "Parallel.timeout": Effect("parallel.timeout=5", meeting, RANKS, gives=("gloo", 5.0, 300.0)),
    "Parallel.step_timeout": Effect("parallel.step_timeout=5", meeting, RANKS,
                                    gives=("gloo", 600.0, 5.0)),
    "Parallel.backend": Effect("parallel.backend=gloo", backend_on_gpu, RANKS, gives="gloo"),
    "Parallel.device": Effect("parallel.device=cpu", on_device, gives="cpu"),
    "Checkpoint.every": Effect("checkpoint.every=3 steps", saved, ("checkpoint.keep=null",),
                               gives=([3, 4], ["latest", "best"])),
    # An epoch of the small job is about 113 steps.
    "Checkpoint.also_every": Effect("checkpoint.also_every=0.02 epochs", saved,
                                    ("checkpoint.every=2 steps", "checkpoint.keep=null"),
                                    gives=([2, 3, 4], ["latest", "best"])),
    "Checkpoint.at_start": Effect("checkpoint.at_start=true", saved, ("checkpoint.keep=null",),
                                  gives=([0, 4], ["latest", "best"])),
    "Checkpoint.at": Effect("checkpoint.at=[1, 2]", saved, ("checkpoint.keep=1",),
                            gives=([1, 2, 4], ["latest", "best"])),
    "Checkpoint.last": Effect("checkpoint.last=none", saved, gives=([], [])),
    "Checkpoint.last_dtype": Effect("checkpoint.last_dtype=bf16", dtypes_of_the_last,
                                    ("checkpoint.last=weights",), gives={"BF16"}),
    "Checkpoint.keep": Effect("checkpoint.keep=1", saved, (*EVERY_STEP, "evaluation=null"),
                              gives=([4], ["latest"])),
    "Checkpoint.keep_every": Effect(
        "checkpoint.keep_every=2 steps", saved,
        (*EVERY_STEP, "checkpoint.keep=1", "checkpoint.keep_best=false"),
        gives=([2, 4], ["latest"])),
    "Checkpoint.save": Effect("checkpoint.save=false", saved, gives=([], [])),
    "Checkpoint.keep_best": Effect("checkpoint.keep_best=false", saved, EVERY_STEP,
                                   gives=([3, 4], ["latest"])),
    "Checkpoint.resume": Effect("checkpoint.resume=must", trained_twice),
    "Evaluation.every": Effect("evaluation.every=1 steps", logged),
    "Evaluation.sequences": Effect("evaluation.sequences=3", logged),
    "Evaluation.baselines": Effect("evaluation.baselines=true", summarized, gives=True),
    "Tracking.every": Effect("tracking.every=2 steps", logged),
    "Tracking.progress": Effect("tracking.progress=lines", told, gives="lines"),
    "Tracking.trackers": Effect("tracking.trackers=[]", logged, gives=[]),
    "Tracking.report": Effect("tracking.report=true", reports, gives=["report.html"]),
}  # fmt: skip

EFFECTS |= {
    name: Effect(change, globals()[see], base)
    for name, (change, see, base) in (ROWS | EXPERT_ROWS | PRETRAINED_ROWS).items()
}
EFFECTS |= {name: Effect(*row) for name, row in DISPATCH_ROWS.items()}
EFFECTS |= {name: Effect(*row[:3], gives=row[3]) for name, row in ZERO_ROWS.items()}
EFFECTS |= {name: Effect(*row) for name, row in LOSS_ROWS.items()}
EFFECTS |= {name: Effect(*row) for name, row in MEMORY_ROWS.items()}
EFFECTS |= {name: Effect(*row) for name, row in COMPILE_ROWS.items()}
EFFECTS |= {name: Effect(*row) for name, row in GROUP_ROWS.items()}
EFFECTS |= {name: Effect(*row) for name, row in VARIANT_ROWS.items()}
EFFECTS |= {name: Effect(*row) for name, row in PRECISION_ROWS.items()}
EFFECTS |= {name: Effect(*row) for name, row in PROFILE_ROWS.items()}
EFFECTS |= {name: Effect(*row) for name, row in REMOTE_ROWS.items()}
EFFECTS |= {name: Effect(*row) for name, row in RESILIENCE_ROWS.items()}
EFFECTS |= {name: Effect(*row) for name, row in SCHEDULE_ROWS.items()}
EFFECTS |= {name: Effect(*row) for name, row in EVALUATION_ROWS.items()}
EFFECTS |= {name: Effect(*row) for name, row in SAVING_ROWS.items()}
EFFECTS |= {name: Effect(*row) for name, row in DATA_ROWS.items()}
EFFECTS |= {name: Effect(*row) for name, row in LOAD_ROWS.items()}
EFFECTS |= {name: Effect(*row) for name, row in ADAPTER_ROWS.items()}
EFFECTS |= {name: Effect(*row) for name, row in TRACKING_ROWS.items()}

# Sections that are always there and have no value of their own: what is in them has.
SECTIONS = {
    "Job.model", "Job.tokenizer", "Job.data", "Job.batch", "Job.optimizer", "Job.loss",
    "Job.precision", "Job.parallel", "Job.checkpoint", "Job.memory", "Job.tracking",
    "Job.resilience", "Parallel.pipelining", "Data.mixture", "Data.loader", "Loader.evaluation",
    "Data.packing", "Data.prepare", "Tracking.metrics",
}  # fmt: skip


def classes(cls: type[Config] = Job) -> Iterator[type[Config]]:
    """All config classes that a job can hold, itself included."""
    yield cls
    for info in cls.__setpoint__.fields.values():
        for below in section_classes(info.type):
            # Not made by another test, nor a service, whose fields are in test_services.py.
            if below.__module__.startswith("setpoint.") and not issubclass(below, ServiceConfig):
                yield from classes(below)


def observed(effect: Effect, folder: Path, flags: tuple[str, ...]) -> Any:
    try:
        seen = effect.see(small_job(folder, *flags, without=effect.without))
    except SetpointError as error:
        return f"refused: {type(error).__name__}"
    return seen.replace(str(folder), "HERE") if isinstance(seen, str) else seen


class Before:
    """What is seen without a change, once for all rows that start from the same.

    Arguments:
        folder: for what rows name by `{tmp}`, and for the runs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen: dict[tuple[Any, ...], Any] = {}
        (folder / "text").mkdir()
        for number in range(24):
            text = f"{number}: one two three four five six seven eight nine ten " * 9
            (folder / "text" / f"{number}.txt").write_text(text)
        rows = [{"text": f"the text of row {n}", "title": f"row {n}, its title"} for n in range(99)]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "chats").mkdir()
        for number in range(24):
            rows = [{"prompt": f"{number}? " * 9, "completion": "one two three"}, {"prompt": "a"}]
            rows[1]["completion"] = "" if number == 3 else "b"
            text = "\n".join(json.dumps(row) for row in rows)
            (folder / "chats" / f"{number}.jsonl").write_text(text)
        prepare_sources(folder)
        byte_level(folder / "tokenizer")
        byte_level(folder / "other", vocab_size=280)

    def __call__(self, effect: Effect, base: tuple[str, ...]) -> Any:
        key = (effect.see, base, effect.without)
        if key not in self._seen:
            self._seen[key] = observed(effect, self.folder / str(len(self._seen)), base)
        return self._seen[key]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Before:
    return Before(tmp_path_factory.mktemp("before"))


def test_each_field_is_in_the_table() -> None:
    names = {f"{cls.__name__}.{name}" for cls in classes() for name in cls.__setpoint__.fields}
    assert names - SECTIONS == EFFECTS.keys()
    for name in SECTIONS:
        owner, _, field = name.partition(".")
        (cls,) = {cls for cls in classes() if cls.__name__ == owner}
        assert isinstance(cls.__setpoint__.fields[field].initial(), Config)


@pytest.mark.parametrize("name", EFFECTS)
def test_the_field_has_an_effect(before: Before, tmp_path: Path, name: str) -> None:
    has_effect(before, tmp_path, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(EFFECTS.keys() - {"Precision.compute"}))
def test_the_field_has_an_effect_on_a_gpu(before: Before, tmp_path: Path, name: str) -> None:
    """As far as autocast tells: in bf16, with the lists of operators that CUDA has."""
    with cuda_autocast():
        has_effect(before, tmp_path, name, "precision.compute=bf16")


def has_effect(before: Before, tmp_path: Path, name: str, *more: str) -> None:
    effect = EFFECTS[name]
    if name in PRETRAINED_ROWS:
        prepare(before.folder, name)
    if name in LOAD_ROWS:
        prepare_loaded(before.folder)
    # Models of transformers have no dropout of that name.
    common = BASE[:1] if name.startswith("HuggingFaceConfig") else BASE
    flags = [flag.replace("{tmp}", str(before.folder)) for flag in (*common, *more, *effect.base)]
    change = effect.change.replace("{tmp}", str(before.folder))
    without = before(effect, tuple(flags))
    after = observed(effect, tmp_path, (*flags, change))
    assert not str(without).startswith("refused"), without
    assert after != without
    if effect.gives is not None:
        assert after == effect.gives


def test_no_resumption_into_a_run(tmp_path: Path) -> None:
    """The third value of `checkpoint.resume`, beside the two above."""
    train(small_job(tmp_path, *BASE))
    with pytest.raises(SetpointError, match="never"):
        train(small_job(tmp_path, *BASE, "checkpoint.resume=never"))
