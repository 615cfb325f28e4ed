from contextlib import nullcontext
from functools import partial

import pytest
import torch

from setpoint.config import ConfigError, SetpointError, resolve
from setpoint.config.resolving.checks import verify
from setpoint.config.values.user_code import allow_imports
from setpoint.model.attention import choose_backend as module
from setpoint.model.attention.backends import FASTEST_ON_GPU, SDPA, RowLayout, repeat_heads
from setpoint.model.attention.choose_backend import (
    choose_backend,
    device_problems,
    unavailable_reason,
)
from setpoint.model.attention.selection import (
    BACKENDS,
    chosen,
    determinism_problems,
    find_dense,
    supporting,
)
from setpoint.model.attention.varlen import Varlen
from setpoint.presets.tiny import tiny

from ...support.snapshots import compare, refused
from ..small import small_config
from .small import SLIDING, latent_config

allow_imports("torch.nn")

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def packages(monkeypatch):
    """The packages that seem to be installed."""
    found = {"triton", "torch.nn.attention.varlen", "flash_attn", "flash_attn_interface"}
    found.add("flash_attn.cute")
    monkeypatch.setattr(module, "find_spec", lambda name: name if name in found else None)
    monkeypatch.setattr(module, "use_flash", lambda *_: None)
    return found


def test_what_runs_without_a_gpu(packages):
    names = {name for name in BACKENDS[1:] if unavailable_reason(name, "cpu") is None}
    assert names == {"eager", "sdpa", "sdpa_flash", "sdpa_math", "flex"}
    assert "it needs a GPU" in unavailable_reason("varlen", "cpu")
    assert not any(unavailable_reason(name, "cuda") for name in BACKENDS[1:])


@pytest.mark.parametrize(
    ("name", "package", "message"),
    [
        ("flash_attention_2", "flash_attn", "not installed (pip install flash-attn)"),
        ("flex", "triton", "Triton, which is not installed (pip install triton)"),
        ("varlen", "torch.nn.attention.varlen", "has no varlen_attn, which was added in 2.10"),
    ],
)
def test_packages(name, package, message, packages):
    packages.remove(package)
    assert message in unavailable_reason(name, "cuda")
    with pytest.raises(SetpointError) as error:
        choose_backend(small_config(attention_backend=name, head_dim=8), CUDA)
    assert str(error.value).startswith(f"model.attention_backend = {name}: ")
    assert str(error.value).endswith("; use auto, sdpa or eager")


def test_auto_leaves_out_what_is_not_there(packages):
    config = small_config(head_dim=16)

    def chosen(**more):
        return choose_backend(config, CUDA, torch.bfloat16, **more).name

    assert chosen() == "sdpa"
    assert chosen(masked=True) == "varlen"
    # Lengths change with each token that is generated.
    assert chosen(masked=True, cached=True) == "sdpa"
    packages.remove("torch.nn.attention.varlen")
    assert chosen(masked=True) == "flex"
    packages.remove("triton")
    assert chosen(masked=True) == "sdpa"
    assert choose_backend(config, CPU, masked=True).name == "sdpa"


def test_the_choice_ends_no_graph(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    config = small_config(head_dim=16)

    def chosen(x):
        backend = choose_backend(config, CUDA, torch.bfloat16, masked=True)
        return x + (backend.name == "varlen") * isinstance(backend, Varlen)

    assert torch.compile(chosen, backend="eager", fullgraph=True)(torch.zeros(1)) == 1


def test_kernels_are_asked_for_by_name(monkeypatch):
    """What PyTorch is allowed to use while attention is computed."""
    allowed = []

    def look(query, *_, **__):
        allowed.append(
            [
                torch.backends.cuda.flash_sdp_enabled(),
                torch.backends.cuda.mem_efficient_sdp_enabled(),
                torch.backends.cuda.cudnn_sdp_enabled(),
                torch.backends.cuda.math_sdp_enabled(),
            ]
        )
        return query

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", look)
    x = torch.randn(1, 3, 2, 4)
    for name in ("sdpa_flash", "sdpa_efficient", "sdpa_cudnn", "sdpa_math"):
        backend = SDPA(name)
        backend.attend(x, x, x, SDPA.prepare_mask(backend, _layout(CPU), None))
    assert allowed == [[place == kernel for place in range(4)] for kernel in range(4)]


def test_cudnn_comes_first_on_a_gpu():
    """PyTorch's own order, which has it last, is back afterwards."""
    before = torch._C._get_sdp_priority_order()

    class OnGPU:
        is_cuda = True

    with SDPA("sdpa")._kernels(OnGPU()):
        assert torch._C._get_sdp_priority_order()[:4] == [int(each) for each in FASTEST_ON_GPU]
    assert torch._C._get_sdp_priority_order() == before


def test_grouped_heads_are_repeated_for_the_kernel_that_needs_it(monkeypatch):
    seen = []

    def look(query, key, value, **options):
        seen.append((key.shape[1], options["enable_gqa"]))
        return query

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", look)
    query, key = torch.randn(1, 3, 4, 4), torch.randn(1, 3, 2, 4)
    for name in ("sdpa", "sdpa_flash", "sdpa_efficient"):
        backend = SDPA(name)
        backend.attend(query, key, key, backend.prepare_mask(_layout(CPU), None))
    assert seen == [(2, True), (2, True), (4, False)]
    heads = repeat_heads(key, 2)
    assert torch.equal(heads[:, :, 0], heads[:, :, 1])
    assert torch.equal(heads[:, :, 1], key[:, :, 0])
    assert torch.equal(heads[:, :, 2], key[:, :, 1])


def test_the_flash_kernel_of_a_gpu_takes_no_mask():
    assert SDPA("sdpa_flash").prepare_mask(_layout(CUDA), None).is_causal
    with refused():
        SDPA("sdpa_flash").prepare_mask(_layout(CUDA), 2)


def _layout(device):
    return RowLayout(queries=3, keys=3, batch=1, device=device)


def reasons(device="cpu", compute="fp32", training=True, **changes):
    config = small_config(**changes)
    return [p.message for p in device_problems(config, device, compute, training=training)]


@pytest.mark.parametrize("name", ["auto", "eager", "sdpa", "sdpa_math", "sdpa_flash"])
def test_what_runs_on_a_cpu(name):
    assert not reasons(attention_backend=name, compute="fp32")
    assert not reasons(attention_backend=name, compute="bf16", **SLIDING)


def test_what_does_not_is_said_why():
    cases = {
        "training on a CPU": {"attention_backend": "flex"},
        "a kernel for GPUs": {"attention_backend": "varlen", "head_dim": 8},
        "another": {"attention_backend": "sdpa_cudnn"},
        "dropout": {"attention_backend": "sdpa_flash", "attention_dropout": 0.1},
    }
    lines = []
    for name, changes in cases.items():
        config = small_config(**changes)
        (problem,) = device_problems(config, "cpu", "fp32", training=True)
        lines += [f"# {name}", str(problem)]
    compare("model/attention_device", "\n\n".join(lines))


def test_sizes_are_tried(monkeypatch):
    config = latent_config(attention_backend="sdpa_math")
    assert not list(device_problems(config, "cpu", "fp32", training=True))
    shapes = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def look(query, key, value, **options):
        shapes.append((query.shape, key.shape, value.shape))
        return attend(query, key, value, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", look)
    assert not list(device_problems(config, "cpu", "fp32", training=True))
    assert shapes == [((1, 6, 16, 10), (1, 6, 16, 10), (1, 6, 16, 5))]


@pytest.mark.parametrize("name", ["varlen", "flash_attention_2", "flash_attention_4", "sdpa_flash"])
def test_flash_kernels_need_half_precision(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(module, "unavailable_reason", lambda *_: None)
    tried = []
    monkeypatch.setattr(module, "_trial", lambda *given: tried.append(given[1:]))
    changes = {"attention_backend": name, "head_dim": 8}
    expected = ["it supports only bf16 and fp16; set precision.compute"]
    assert reasons("cuda", **changes) == expected
    assert reasons("cuda", "bf16", **changes) == []
    assert tried == [(torch.device("cuda"), torch.bfloat16, True)]


def test_a_missing_device_is_reported_elsewhere():
    assert not torch.cuda.is_available()
    assert reasons("cuda", attention_backend="varlen", head_dim=8) == []


def test_a_job_verifies_it():
    job = tiny()
    job.model.attention_backend = "varlen"
    job.model.head_dim = 32
    (problem,) = verify(resolve(job), {"torch"}).problems
    assert problem.path == "model.attention_backend"
    assert "attention backend" in " ".join(map(str, verify(resolve(job), ()).skipped))


NEEDS = {
    "capped": {"attention_soft_cap": 30.0, "head_dim": 8},
    "dropped": {"attention_dropout": 0.1, "head_dim": 8},
    "large heads": {"head_dim": 512},
    "odd heads": {"head_dim": 12},
}


@pytest.mark.parametrize("name", [*NEEDS, "latent"])
def test_backends_are_valid_or_refused(name):
    made = latent_config if name == "latent" else partial(small_config, **NEEDS[name])
    valid = supporting(made())
    assert {"auto", "eager"} <= set(valid)
    for backend in BACKENDS:
        with nullcontext() if backend in valid else refused(ConfigError):
            made(attention_backend=backend)


CAPPED = {"attention_soft_cap": 30.0}
DROPPED = {"attention_dropout": 0.1}


@pytest.mark.parametrize(
    ("device", "compute", "masked", "changes", "expected", "held"),
    [
        ("cpu", "bf16", False, {}, "sdpa", None),
        ("cpu", "bf16", True, {}, "sdpa", None),
        ("cpu", "fp32", True, CAPPED, "eager", None),
        ("cuda", "bf16", False, {}, "sdpa", None),
        ("cuda", "fp32", False, DROPPED, "sdpa", None),
        ("cuda", "bf16", True, {}, "varlen", None),
        ("cuda", "fp32", True, {}, "flex", None),
        ("cuda", "fp16", True, {"head_dim": 20}, "flex", None),
        ("cuda", "bf16", False, CAPPED, "flex", None),
        ("cuda", "bf16", True, CAPPED, "flex", None),
        ("cuda", "bf16", True, DROPPED, "sdpa", "mask"),
        ("cuda", "bf16", False, CAPPED | DROPPED, "eager", "scores"),
        ("cuda", "fp32", True, {"head_dim": 8}, "sdpa", "mask"),
        ("cuda", "bf16", True, {"attention_backend": "sdpa_efficient"}, "sdpa_efficient", "mask"),
        ("cuda", "bf16", False, {"attention_backend": "flex", **CAPPED}, "flex", None),
    ],
)
def test_the_choice(device, compute, masked, changes, expected, held):
    config = small_config(**{"head_dim": 16, **changes})
    assert chosen(config, device, compute, masked=masked) == expected
    if device == "cuda":
        dense = find_dense(config, compute, 32, documents=masked)
        assert (dense and ("scores" if dense.scores else "mask")) == held


def test_all_at_once():
    fields = {"attention_soft_cap": 30.0, "attention_dropout": 0.1, "attention_backend": "varlen"}
    with pytest.raises(ConfigError) as error:
        small_config(**fields, head_dim=8)
    assert len(error.value.problems) == 2
    assert error.value.problems[0].valid == ("auto", "eager", "flash_attention_2")
    assert resolve(small_config(**{**fields, "attention_backend": "auto"})) is not None


def test_which_backend_cannot_be_deterministic():
    found = {
        backend: list(determinism_problems(small_config(attention_backend=backend, head_dim=8)))
        for backend in BACKENDS
    }
    assert [backend for backend in BACKENDS if found[backend]] == ["sdpa_cudnn"]
