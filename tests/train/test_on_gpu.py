"""Training on a GPU. Each test runs on a CPU once as well, in small, so that it is known to run.

`make test-gpu` runs what is marked `cuda`.
"""

import gzip
import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from setpoint.cli.check_plan import make_plan
from setpoint.config import SetpointError
from setpoint.config.composition import compose
from setpoint.model.attention.choose_backend import unavailable_reason
from setpoint.model.attention.selection import (
    BACKENDS,
    LIMITS,
    demands_of,
    device_problem,
    supporting,
)
from setpoint.model.config import TransformerConfig
from setpoint.precision.config import Float8, Float8Recipe
from setpoint.train.config import Job
from setpoint.train.loop import Callback, Loop
from setpoint.train.run import train
from setpoint.train.verdict import StepResult

from .small import essence, small_job, train_rows

CUDA = pytest.mark.cuda
DEVICES = ["cpu", pytest.param("cuda", marks=CUDA)]
PRESETS = (
    "tiny", "llama3-tiny", "qwen3-tiny", "qwen3-moe-tiny", "gemma3-tiny", "gpt2-tiny",
    "mistral-tiny", "deepseek-tiny",
)  # fmt: skip
COMMON = ("duration=2 steps", "evaluation=null", "checkpoint.save=false", "tracking.report=false")
BF16, SLOW = "precision.compute=bf16", "optimizer.lr=1e-3"
READS = ("item", "tolist", "cpu", "nonzero", "numpy", "__bool__", "__int__", "__float__")


def device_flag(device: str) -> str:
    return f"parallel.device={device}"


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in train_rows(run)]


def preset_job(folder: Path, preset: str, *flags: str) -> Job:
    given = [
        *COMMON, f"workspace={folder}", "tracking.every=1 steps", "tracking.progress=none",
        "data.sources=[{type: random, documents: 60, length: 180}]", *flags,
    ]  # fmt: skip
    return compose(Job, preset, flags=given).resolve()


@pytest.mark.parametrize("packing", ["concatenate", "next_fit"])
@pytest.mark.parametrize("preset", PRESETS)
@CUDA
def test_all_backends_give_one_loss_on_a_gpu(preset: str, packing: str, tmp_path: Path) -> None:
    same_loss_in_all_backends(preset, packing, "cuda", tmp_path)


def test_all_backends_give_one_loss_on_a_cpu(tmp_path: Path) -> None:
    assert same_loss_in_all_backends("qwen3-moe-tiny", "next_fit", "cpu", tmp_path) == {
        "eager", "sdpa", "sdpa_math",
    }  # fmt: skip


def same_loss_in_all_backends(preset: str, packing: str, device: str, folder: Path) -> set[str]:
    """Two steps in each backend that the model and this machine have; the names of these."""
    flags = [f"data.packing.method={packing}", device_flag(device)]
    if device == "cpu":
        flags += ["model.layers=1", "batch.global_size=2", "batch.sequence_length=32"]
    model = preset_job(folder, preset, *flags).model
    assert isinstance(model, TransformerConfig)
    masked = packing != "concatenate" or "sliding" in model.attention_pattern
    found: dict[str, list[float]] = {}
    for name in supporting(model, tuple(each for each in BACKENDS if each != "auto")):
        reason = unavailable_reason(name, device)
        if reason or device_problem(demands_of(model), name, device, "bf16"):
            continue
        if masked and LIMITS[name].masks == "causal":
            continue
        job = preset_job(folder, preset, *flags, f"model.attention_backend={name}")
        found[name] = losses(train(job, directory=folder / name).directory)
    assert len(found) > 1
    for name, values in found.items():
        assert values == pytest.approx(found["eager"], rel=2e-2), name
    return set(found)


@pytest.mark.parametrize("device", DEVICES)
def test_grouped_experts_train_as_a_loop_does(device: str, tmp_path: Path) -> None:
    """Also with activations that autocast computes in fp32 on a GPU, and beside a shared expert."""
    experts = "model.moe={{experts: 4, top_k: 2, shared_experts: 1, implementation: {}}}"
    sizes = ("model.dim=32", "model.activation=relu_squared", BF16, device_flag(device))
    grouped, loop = (
        losses(
            train(
                small_job(tmp_path, *COMMON, *sizes, experts.format(name)),
                directory=tmp_path / name,
            ).directory
        )
        for name in ("grouped", "loop")
    )
    assert grouped == pytest.approx(loop, rel=1e-2)


@CUDA
@pytest.mark.parametrize("recompute", ["null", "full", "operators"])
def test_the_plan_expects_the_peak_of_memory(recompute: str, tmp_path: Path) -> None:
    """On a CPU tests/plan compares it with dry runs."""
    job = small_job(
        tmp_path, *COMMON, BF16, device_flag("cuda"), "model.dim=1024", "model.layers=4",
        "model.heads=8", "model.dropout=0", "batch.sequence_length=1024",
        "data.sources=[{type: random, documents: 40, length: 2000}]",
        f"memory.activation_checkpointing={recompute}",
    )  # fmt: skip
    planned = make_plan(job).memory
    assert planned is not None
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    train(job)
    peak = torch.cuda.max_memory_allocated() - before
    assert planned.total == pytest.approx(peak, rel=0.1)


KERNELS = {
    "sdpa_cudnn": "cudnn", "sdpa_flash": "flash", "sdpa_efficient": "fmha|efficient",
    "varlen": "flash", "flex": "flex_attention|triton", "sdpa": "cudnn|flash",
    "auto": "cudnn|flash",
}  # fmt: skip


@pytest.mark.parametrize(
    ("device", "backend", "kernel"),
    [
        ("cpu", "sdpa", "flash_attention_for_cpu"),
        *(pytest.param("cuda", *each, marks=CUDA) for each in KERNELS.items()),
    ],
)
def test_a_profile_names_the_kernels(
    device: str, backend: str, kernel: str, tmp_path: Path
) -> None:
    """Those of attention are those of the backend, and products are in bf16."""
    job = small_job(
        tmp_path, *COMMON, BF16, device_flag(device), f"model.attention_backend={backend}",
        "model.dim=128", "model.dropout=0", "batch.sequence_length=128",
        "profiling={wait: 1, warmup: 0, active: 1}",
    )  # fmt: skip
    (trace,) = train(job).directory.glob("traces/**/*.json.gz")
    with gzip.open(trace, "rt") as file:
        events = json.load(file)["traceEvents"]
    kind = "kernel" if device == "cuda" else "cpu_op"
    names = Counter(event["name"] for event in events if event.get("cat") == kind)
    assert [name for name in names if re.search(kernel, name)], names
    if device == "cuda":
        assert [name for name in names if re.search("bf16|bfloat16|nvjet", name)], names


@contextmanager
def reads(device: str) -> Iterator[list[str]]:
    """Collect what waits for the device: on a GPU as CUDA tells it, on a CPU calls that would."""
    found: list[str] = []
    with ExitStack() as stack:
        if device == "cuda":
            caught = stack.enter_context(warnings.catch_warnings(record=True))
            warnings.simplefilter("always")
            before = torch.cuda.get_sync_debug_mode()
            stack.callback(torch.cuda.set_sync_debug_mode, before)
            torch.cuda.set_sync_debug_mode("warn")
            yield found
            texts = (f"{each.message} ({each.filename}:{each.lineno})" for each in caught)
            found += [text for text in texts if "called a synchronizing" in text]
            return
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name in READS:
            patch.setattr(Tensor, name, _noting(getattr(Tensor, name), name, found))
        yield found


def _noting(method: Any, name: str, found: list[str]) -> Any:
    """A method of tensors that says when it is called."""

    def noting(self: Tensor, *args: Any, **options: Any) -> Any:
        found.append(name)
        return method(self, *args, **options)

    return noting


class Watch(Callback):
    """Watches some steps for what waits."""

    def __init__(self, device: str, first: int, last: int) -> None:
        self.device, self.first, self.last = device, first, last
        self.stack, self.found = ExitStack(), list[str]()

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """See `Callback.after_step`."""
        if loop.position.step == self.first:
            self.found = self.stack.enter_context(reads(self.device))
        elif loop.position.step == self.last:
            self.stack.close()


@pytest.mark.parametrize("device", DEVICES)
def test_no_step_waits_for_the_device_unless_it_is_logged(device: str, tmp_path: Path) -> None:
    watch = Watch(device, 3, 7)
    flags = [*COMMON, "duration=10 steps", "tracking.every=10 steps", BF16, device_flag(device)]
    if device == "cpu":  # where reading the norm costs nothing, and saves a pass over gradients
        flags.append("optimizer.clip_norm=null")
    train(small_job(tmp_path, *flags), callbacks=[watch])
    assert watch.found == []


class Poison(Callback):
    """Makes the gradients of the second step infinite, and keeps the weights of all."""

    def __init__(self) -> None:
        self.weights: list[list[Tensor]] = []
        self.counts: list[float] = []

    def before_update(self, loop: Loop) -> None:
        """See `Callback.before_update`."""
        if loop.position.step == 1:
            next(loop.components.model.parameters()).grad.fill_(math.inf)  # pyright: ignore[reportOptionalMemberAccess]

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """See `Callback.after_step`."""
        self.weights.append([p.detach().clone() for p in loop.components.model.parameters()])
        state = next(iter(loop.components.optimizer.state.values()))
        self.counts.append(float(state["step"]))


@pytest.mark.parametrize("device", DEVICES)
def test_found_inf_skips_a_step_of_the_fused_optimizer(device: str, tmp_path: Path) -> None:
    poison = Poison()
    flags = (*COMMON, "duration=3 steps", "resilience.non_finite=skip", device_flag(device))
    run = train(small_job(tmp_path, *flags, BF16), callbacks=[poison])
    one, two, three = poison.weights
    assert all(map(torch.equal, one, two))
    assert all(each.isfinite().all() for each in three)
    assert not any(map(torch.equal, two, three))
    assert poison.counts == [1, 1, 2]
    if device == "cuda":
        assert all(group["fused"] for group in run.components.optimizer.param_groups)


@pytest.mark.parametrize(
    ("device", "recipe"),
    [
        ("cpu", "tensorwise"),
        *(
            pytest.param("cuda", each, marks=CUDA)
            for each in ("tensorwise", "rowwise", "rowwise_with_gw_hp", "mxfp8", "nvfp4")
        ),
    ],
)
def test_float8_learns_as_bf16_does(device: str, recipe: Float8Recipe, tmp_path: Path) -> None:
    """On a CPU by emulation; on a GPU without the products of a recipe, it is refused by name."""
    pytest.importorskip("torchao")
    flags = (*COMMON, "duration=8 steps", BF16, "model.dim=128", "model.dropout=0", SLOW)
    float8 = f"precision.float8={{recipe: {recipe}, emulate: {str(device == 'cpu').lower()}}}"
    plain = losses(
        train(small_job(tmp_path, *flags, device_flag(device)), directory=tmp_path / "a").directory
    )
    capability, _ = Float8(recipe=recipe).capability
    if device == "cuda" and torch.cuda.get_device_capability() < capability:
        with pytest.raises(SetpointError, match=r"precision\.float8"):
            train(small_job(tmp_path, *flags, float8))
        return
    run = train(small_job(tmp_path, *flags, float8), directory=tmp_path / "b")
    assert losses(run.directory) == pytest.approx(plain, rel=3e-2)
    assert losses(run.directory) != plain


@CUDA
def test_compiled_layers_train_as_others_do(tmp_path: Path) -> None:
    flags = (*COMMON, BF16, "model.dropout=0", device_flag("cuda"))
    without, with_it = (
        losses(train(small_job(tmp_path, *flags, each), directory=tmp_path / each[:9]).directory)
        for each in ("compile=null", "compile={scope: block, backend: inductor}")
    )
    assert with_it == pytest.approx(without, rel=1e-2)


@CUDA
def test_saves_beside_training_hold_what_others_hold(tmp_path: Path) -> None:
    """They are copied into page-locked memory while the next step runs."""
    flags = ("duration=4 steps", "checkpoint.every=2 steps", BF16, device_flag("cuda"),
             "deterministic=true")  # fmt: skip
    found = [
        essence(train(small_job(tmp_path, *flags, f"checkpoint.mode={mode}"),
                      directory=tmp_path / mode).directory)
        for mode in ("sync", "async_pinned")
    ]  # fmt: skip
    assert found[0] == found[1]
