"""Effects of the fields of `[parallel]`."""

import sys
from datetime import timedelta
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from setpoint.model.build import layers_of, skeleton
from setpoint.model.moe.dispatch import DeepEPDispatcher, build_dispatcher
from setpoint.parallel import hangs
from setpoint.parallel.config import AXES
from setpoint.parallel.engines import zero_settings
from setpoint.parallel.expert_ranks import expert_grid
from setpoint.parallel.pipeline import keep_stages
from setpoint.parallel.process_group import backend_of, joined
from setpoint.parallel.replica_groups import ReplicaGroups
from setpoint.parallel.replicas import TorchReplicas
from setpoint.parallel.sharding import shard
from setpoint.parallel.world import World, choose_device, noise_axes, reader_of
from setpoint.train.build.components import Components, build_model_parts, divide_model
from setpoint.train.config import Job
from setpoint.train.open import settings_of
from setpoint.train.run_name import run_directory_of

from ...model.moe import stand_in_deepep
from .observations import Row


def on_ranks(job: Job) -> int:
    """The micro-batch size of each rank."""
    return job.batch.micro_size


def degrees_of(job: Job) -> dict[str, int]:
    """The axes that divide the ranks, and how many ranks read different data."""
    found = {axis: degree for axis, degree in job.parallel.degrees.items() if degree > 1}
    return {**found, "data": job.parallel.data_ranks}


def sharding_axes(job: Job) -> tuple[tuple[str, ...], ...]:
    """The axes whose ranks divide weights, and those whose ranks have copies."""
    return job.parallel.sharding_axes, job.parallel.copying_axes


def divided(job: Job) -> tuple[bool, bool, tuple[str, ...]]:
    """Tensor-parallel options, and the axes with different random numbers."""
    asked: list[bool] = []
    model: Any = torch.nn.Linear(2, 2)
    mesh: Any = {"tensor": None}
    degrees = {**dict.fromkeys(AXES, 1), "tensor": 2}
    world = World(torch.device("cpu"), degrees=degrees, mesh=mesh)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "setpoint.parallel.divide.divide_matrices",
            lambda model, mesh, *options: asked.extend(options),
        )
        divide_model(job, world, model)
    return asked[0], asked[1], noise_axes(job.parallel)


def reductions(job: Job) -> list[bool]:
    """True for each micro-batch after which FSDP2 reduces gradients."""

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
    """Inductor's async-TP setting, and whether ranks use symmetric memory."""
    from torch._inductor import config

    shares: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("setpoint.parallel.divide.share_memory", shares.append)
        divided(job)
        with settings_of(job):
            return config._micro_pipeline_tp, bool(shares)


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
    """`reshard_after_forward` of a layer and of the root."""
    asked: list[Any] = []
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "setpoint.parallel.sharding.fully_shard",
            lambda unit, **options: asked.append(options["reshard_after_forward"]),
        )
        mesh: Any = {"shard": None}
        policy: Any = None
        shard(job.parallel, mesh, model, [("0", model[0])], policy, set())
    return asked


def asked_of_fsdp(job: Job) -> list[dict[str, Any]]:
    """FSDP2's arguments and prefetches for each unit."""
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
        patch.setattr("setpoint.parallel.sharding.fully_shard", fully_shard)
        shard(job.parallel, mesh, model, layers_of(model), policy, set())
    return asked


def begins_on(job: Job) -> str:
    """The device of weight initialization on a machine with a GPU."""
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
    """True if one rank reads weights for others."""
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
    """The backend of ranks with a GPU each."""
    return backend_of(job.parallel, torch.device("cuda:0"))


def meeting(job: Job) -> tuple[str, float, float]:
    """Backend, initial timeout and step timeout of the process group."""
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
    """The device of the model on a machine with a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.cuda.is_available", lambda: True)
        return choose_device(job.parallel).type


def experts_of(job: Job) -> Any:
    """The ranks that hold the same experts, by the experts that they hold."""
    grid = expert_grid(job.parallel, job.parallel.degrees)
    return grid.reshape(-1, *grid.shape[3:]).tolist()


def exchange_of(job: Job) -> tuple[Any, ...]:
    """The expert dispatcher and its options."""
    group: Any = SimpleNamespace(size=lambda: 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "deep_ep", stand_in_deepep)
        found = build_dispatcher(job.parallel.dispatch, job.model, group, None, False)
    if not isinstance(found, DeepEPDispatcher):
        return (type(found).__name__,)
    return "DeepEP", found.buffer_size, stand_in_deepep.Buffer.sms, found.async_combine


def zero(job: Job) -> Any:
    """DeepSpeed's ZeRO settings; None with PyTorch's engine."""
    settings = zero_settings(job)
    return settings and settings["zero_optimization"]


def managed(job: Job) -> dict[str, Any]:
    """Arguments of torchft's manager."""
    found: dict[str, Any] = {}
    fake: Any = ModuleType("torchft")
    fake.Manager = lambda **given: found.update(given)
    fake.ProcessGroupGloo = lambda timeout: f"gloo, {timeout.total_seconds()} s"
    fake.ProcessGroupNCCL = lambda timeout: f"nccl, {timeout.total_seconds()} s"
    assert job.parallel.torchft is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torchft", fake)
        patch.setenv("TORCHFT_LIGHTHOUSE", "http://here:1")
        patch.setattr("socket.gethostname", lambda: "localhost")
        ReplicaGroups(job.parallel.torchft, 60.0, "", World(torch.device("cpu")))
    return {name: found[name] for name in ("lighthouse_addr", "min_replica_size", "pg")}


def parts(job: Job) -> int:
    """Number of micro-batches that replica groups divide."""
    return job.batch.accumulation


RANKS = ("parallel.world_size=4", "batch.global_size=16", "parallel.shard=-1")
FSDP = (*RANKS, "model.layers=3", "parallel.device=cuda")
REPLICAS = ("parallel.world_size=4", "batch.global_size=16")
TENSOR = ("parallel.world_size=2", "parallel.tensor=2")
CUT = ("parallel.world_size=2", "parallel.pipeline=2", "model.layers=4", "batch.accumulation=4")
SPLIT = '[[embedding, "layers.0"], ["layers.1", "layers.2", "layers.3", output]]'
EXPERT_RANKS = ("parallel.world_size=4", "parallel.shard=-1", "batch.global_size=16",
         "model.moe.experts=4")  # fmt: skip
DEEPEP = (*EXPERT_RANKS, "parallel.expert=4", "precision.compute=bf16", "parallel.dispatch=deepep")
EXPERT_TENSOR = ("parallel.world_size=4", "parallel.shard=2", "parallel.tensor=2",
                 "batch.global_size=16",
          "model.moe.experts=4")  # fmt: skip
ON = (*REPLICAS, "parallel.engine=deepspeed")
THREE = (*ON, "parallel.engine.stage=3")
BUCKET = 25 * 2**20 // 4
GATHERED = 200 * 2**20 // 4
SECOND = {
    "stage": 2,
    "contiguous_gradients": True,
    "reduce_bucket_size": BUCKET,
    "allgather_bucket_size": GATHERED,
}
THIRD = {
    "stage": 3,
    "contiguous_gradients": True,
    "reduce_bucket_size": BUCKET,
    "stage3_prefetch_bucket_size": GATHERED,
    "stage3_param_persistence_threshold": 100_000,
}
ON_HOST = {"device": "cpu"}
GROUPS = ("parallel.torchft={}", "batch.global_size=4")
SIZES = ("accumulation", "micro_size")


ROWS: dict[str, Row] = {
    "Parallel.world_size": ("parallel.world_size=2", on_ranks, ("batch.global_size=8",), 4,
        ("micro_size", "accumulation")),
    "Parallel.replicate": ("parallel.replicate=4", degrees_of, RANKS, {"replicate": 4, "data": 4}),
    "Parallel.shard": ("parallel.shard=2", degrees_of, RANKS,
        {"replicate": 2, "shard": 2, "data": 4}),
    "Parallel.pipeline": ("parallel.pipeline=2", degrees_of, (*RANKS, "model.layers=2"),
        {"pipeline": 2, "shard": 2, "data": 2}, ("accumulation",)),
    "Pipelining.schedule": ("parallel.pipelining.schedule=looped_bfs", staged, CUT,
        ("LoopedBFS", [["0"], ["2"]])),
    "Pipelining.stages_per_rank": ("parallel.pipelining.stages_per_rank=1", staged,
        (*CUT, "parallel.pipelining.schedule=looped_bfs"), ("LoopedBFS", [["0", "1"]])),
    "Pipelining.transfer": ("parallel.pipelining.transfer=bf16", sent, CUT, "bf16"),
    "Pipelining.split": (f"parallel.pipelining.split={SPLIT}", staged, CUT, ("1F1B", [["0"]])),
    "Parallel.tensor": ("parallel.tensor=2", degrees_of, RANKS,
        {"shard": 2, "tensor": 2, "data": 2}, ("accumulation",)),
    "Parallel.ring": ("parallel.ring=2", degrees_of, RANKS, {"shard": 2, "ring": 2, "data": 2},
        ("accumulation",)),
    "Parallel.ulysses": ("parallel.ulysses=2", degrees_of, RANKS,
        {"shard": 2, "ulysses": 2, "data": 2}, ("accumulation",)),
    "Parallel.ring_split": ("parallel.ring_split=contiguous",
        lambda job: job.parallel .sequence_multiple, (*RANKS, "parallel.ring=2"), 2,
        ("accumulation",)),
    "Parallel.shard_over_context": ("parallel.shard_over_context=none", sharding_axes,
        (*RANKS, "parallel.ring=2"), (("shard",), ("replicate", "ring", "ulysses")),
        ("accumulation",)),
    "Parallel.sequence_parallel": ("parallel.sequence_parallel=false", divided, TENSOR,
        (False, False, ("ring", "ulysses"))),
    "Parallel.async_tensor_parallel": ("parallel.async_tensor_parallel=true", fuses_messages,
        (*TENSOR, "compile={}", "parallel.device=cuda"), (True, True)),
    "Parallel.loss_parallel": ("parallel.loss_parallel=false", divided, TENSOR,
        (True, True, ("ring", "ulysses", "tensor"))),
    "Parallel.reshard": ("parallel.reshard=false", resharding, RANKS),
    "Parallel.sharding": ("parallel.sharding.layers_per_unit=2", asked_of_fsdp, FSDP),
    "Sharding.units": ("parallel.sharding.units=['layers.0.attention']", asked_of_fsdp, FSDP),
    "Sharding.replicated": ("parallel.sharding.replicated=[norm]", asked_of_fsdp, FSDP),
    "Sharding.layers_per_unit": ("parallel.sharding.layers_per_unit=2", asked_of_fsdp, FSDP),
    "Sharding.forward_prefetch": ("parallel.sharding.forward_prefetch=2", asked_of_fsdp, FSDP),
    "Sharding.backward_prefetch": ("parallel.sharding.backward_prefetch=2", asked_of_fsdp, FSDP),
    "Sharding.accumulation": ("parallel.sharding.accumulation=unsharded", reductions,
        (*RANKS, "batch.accumulation=2"), [False, True], ("micro_size",)),
    "Sharding.offload": ("parallel.sharding.offload=true", asked_of_fsdp, FSDP),
    "Parallel.init_device": ("parallel.init_device=cpu", begins_on, ("parallel.device=cuda",),
        "cpu"),
    "Parallel.load_weights": ("parallel.load_weights=broadcast", reads_for_others,
        (*REPLICAS, "model.pretrained=weights"), True),
    "Parallel.bucket_size": ("parallel.bucket_size=1", bucket_size, REPLICAS, 1.0),
    "Parallel.timeout": ("parallel.timeout=5", meeting, RANKS, ("gloo", 5.0, 300.0)),
    "Parallel.step_timeout": ("parallel.step_timeout=5", meeting, RANKS, ("gloo", 600.0, 5.0)),
    "Parallel.backend": ("parallel.backend=gloo", backend_on_gpu, RANKS, "gloo"),
    "Parallel.device": ("parallel.device=cpu", on_device, (), "cpu"),
    "Parallel.expert": ("parallel.expert=2", experts_of, EXPERT_RANKS, [[[0], [1]], [[2], [3]]]),
    "Parallel.expert_tensor": ("parallel.expert_tensor=2", experts_of, EXPERT_TENSOR,
        [[[0, 1]], [[2, 3]]], ("accumulation",)),
    "Parallel.expert_mesh_order": ("parallel.expert_mesh_order=expert_major", experts_of,
        (*EXPERT_RANKS, "parallel.expert=2"), [[[0], [2]], [[1], [3]]]),
    "Parallel.dispatch": ("parallel.dispatch=deepep", exchange_of,
        (*EXPERT_RANKS, "parallel.expert=4", "precision.compute=bf16"),
        ("DeepEP", 2 * 10**9, 20, False)),
    "DeepEP.buffer_size": ("parallel.dispatch.buffer_size=1 MB", exchange_of, DEEPEP,
        ("DeepEP", 10**6, 20, False)),
    "DeepEP.sms": ("parallel.dispatch.sms=24", exchange_of, DEEPEP,
        ("DeepEP", 2 * 10**9, 24, False)),
    "DeepEP.async_combine": ("parallel.dispatch.async_combine=true", exchange_of, DEEPEP,
        ("DeepEP", 2 * 10**9, 20, True)),
    "Parallel.engine": ("parallel.engine=deepspeed", zero, REPLICAS, SECOND),
    "DeepSpeed.stage": ("parallel.engine.stage=3", zero, ON, THIRD),
    "DeepSpeed.offload": ("parallel.engine.offload=all", zero, (*THREE, "parallel.device=auto"),
        {**THIRD, "offload_optimizer": ON_HOST, "offload_param": ON_HOST}),
    "DeepSpeed.overlap": ("parallel.engine.overlap=true", zero, ON,
        {**SECOND, "overlap_comm": True}),
    "DeepSpeed.contiguous_gradients": ("parallel.engine.contiguous_gradients=false", zero, ON,
        {**SECOND, "contiguous_gradients": False}),
    "DeepSpeed.gather_size": ("parallel.engine.gather_size=1", zero, ON,
        {**SECOND, "allgather_bucket_size": 2**18}),
    "DeepSpeed.persistence_threshold": ("parallel.engine.persistence_threshold=7", zero, THREE,
        {**THIRD, "stage3_param_persistence_threshold": 7}),
    "Parallel.torchft": (GROUPS[0], parts, GROUPS[1:], 2, SIZES),
    "TorchFT.lighthouse": ("parallel.torchft.lighthouse=http://there:1", managed, GROUPS, None,
        SIZES),
    "TorchFT.replica_id": ("parallel.torchft.replica_id=1", run_directory_of, GROUPS, None, SIZES),
    "TorchFT.group_size": ("parallel.torchft.group_size=4", parts, GROUPS, 4, SIZES),
    "TorchFT.min_replica_size": ("parallel.torchft.min_replica_size=2", managed, GROUPS, None,
        SIZES),
    "TorchFT.process_group": ("parallel.torchft.process_group=nccl", managed,
        (*GROUPS, "parallel.device=auto"), None, SIZES),
    "TorchFT.timeout": ("parallel.torchft.timeout=20", managed, GROUPS, None, SIZES),
}  # fmt: skip
