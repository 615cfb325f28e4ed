import pytest
import torch

from setpoint.config import SetpointError
from setpoint.model.attention import backend as module
from setpoint.model.attention.backend import choose_backend, missing
from setpoint.model.attention.eager import Eager
from setpoint.model.attention.flex import Flex
from setpoint.model.attention.packed import Varlen
from setpoint.model.attention.sdpa import SDPA, repeat_heads
from setpoint.model.attention.support import BACKENDS

from ..small import small_config

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def packages(monkeypatch):
    """The packages that seem to be installed."""
    found = {"flash_attn", "triton", "torch.nn.attention.varlen"}
    monkeypatch.setattr(module, "find_spec", lambda name: name if name in found else None)
    return found


@pytest.mark.parametrize("name", BACKENDS)
def test_what_runs_without_a_gpu(name, packages):
    needs_gpu = name in {"varlen", "flash_attention", "sdpa_efficient", "sdpa_cudnn"}
    said = "it needs a GPU, and the device is cpu"
    assert missing(name, "cpu") == (said if needs_gpu else None)
    assert missing(name, "cuda") is None


@pytest.mark.parametrize(
    ("name", "package", "message"),
    [
        ("flash_attention", "flash_attn", "flash-attn is not installed (pip install flash-attn)"),
        ("flex", "triton", "Triton, which is not installed (pip install triton)"),
        ("varlen", "torch.nn.attention.varlen", "has no varlen_attn, which came with 2.10"),
    ],
)
def test_packages(name, package, message, packages):
    packages.remove(package)
    assert message in missing(name, "cuda")
    with pytest.raises(SetpointError) as error:
        choose_backend(small_config(attention_backend=name, head_dim=8), CUDA)
    assert str(error.value).startswith(f"model.attention_backend = {name}: ")
    assert str(error.value).endswith("; use auto, sdpa or eager")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("auto", SDPA),
        ("eager", Eager),
        ("sdpa", SDPA),
        ("sdpa_flash", SDPA),
        ("sdpa_cudnn", SDPA),
        ("flex", Flex),
        ("varlen", Varlen),
    ],
)
def test_each_name_has_its_backend(name, kind, packages):
    backend = choose_backend(small_config(attention_backend=name, head_dim=8), CUDA)
    assert type(backend) is kind
    if kind is SDPA:
        assert backend.name == name.replace("auto", "sdpa")


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
    with pytest.raises(SetpointError, match="sdpa_flash takes no mask on a GPU"):
        SDPA("sdpa_flash").prepare_mask(_layout(CUDA), 2)


def _layout(device):
    from setpoint.model.attention.layout import Layout

    return Layout(queries=3, keys=3, batch=1, device=device)
