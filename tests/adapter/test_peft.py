"""LoRA, DoRA and rank-stabilized LoRA against PEFT: forward, gradients and steps of AdamW."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from setpoint.adapter.config import AdapterConfig, DoRA, LoRA, PatternRank
from setpoint.adapter.low_rank import adapter_parameters, adapters_of, merge_all
from setpoint.adapter.targets import CHILD

from ..support.cases import few
from .models import adapted_model, base_model, loss_of, model_config, tokens

# Of the norm of a difference to that of a tensor. That both compute the same shows in fp64; how far
# ten steps in fp32 are apart depends on the order of sums, which processors choose. LoRA on plain
# layers has the same order in both.
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}


def theirs_of(model: nn.Module, ours: nn.Module, adapter: AdapterConfig, packed: bool) -> nn.Module:
    """The same base with PEFT's adapter of the same values."""
    from peft import LoraConfig, inject_adapter_in_model

    found = adapters_of(ours)
    modules = [n.removesuffix(f".{CHILD}") for n in found if n.endswith(f".{CHILD}")]
    experts = [name.replace(f".{CHILD}.", ".") for name in found if f".{CHILD}." in name]
    ranks = {each.pattern: each.rank for each in adapter.ranks if each.rank is not None}
    config = LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,  # type: ignore[arg-type]
        use_rslora=adapter.rank_stabilized,
        use_dora=adapter.has_magnitude,
        target_modules=modules,
        target_parameters=experts or None,
        rank_pattern=ranks,
    )
    for module in model.modules():
        if packed and type(module).__name__ == "PackedExperts":
            vars(module)["is_transposed"] = True  # which PEFT reads of models of transformers
    theirs: Any = inject_adapter_in_model(config, model)
    with torch.no_grad():
        for name, value in adapter_parameters(ours).items():
            target, change = counterpart(theirs, name)
            target.copy_(change(value))
    return theirs


def counterpart(theirs: nn.Module, name: str) -> tuple[Tensor, Any]:
    """PEFT's parameter in the place of one of ours, and the way from our form to its own."""
    path, _, own = name.rpartition(".")
    if f".experts.{CHILD}." in name:
        holder, projection = path.split(f".{CHILD}.")
        module: Any = theirs.get_submodule(holder)
        while module.parameter_name != projection:
            module = module.base_layer
        if own == "a":
            return module.lora_A["default"].weight, lambda t: t.transpose(1, 2).flatten(0, 1)
        return module.lora_B["default"].weight, lambda t: t.permute(2, 1, 0).flatten(1)
    module = theirs.get_submodule(path.removesuffix(f".{CHILD}"))
    if own == "magnitude":
        return module.lora_magnitude_vector["default"].weight, lambda t: t
    if isinstance(module.base_layer, nn.Embedding):
        held = module.lora_embedding_A if own == "a" else module.lora_embedding_B
        return held["default"], (lambda t: t.T) if own == "a" else (lambda t: t)
    return (module.lora_A if own == "a" else module.lora_B)["default"].weight, lambda t: t


def close(ours: Tensor, theirs: Tensor, bound: float) -> None:
    assert (ours - theirs).norm() <= bound * theirs.norm()


def equal(ours: nn.Module, theirs: nn.Module, bound: float, *, gradients: bool) -> None:
    for name, value in adapter_parameters(ours).items():
        target, change = counterpart(theirs, name)
        mine, other = (value.grad, target.grad) if gradients else (value, target)
        assert mine is not None and other is not None, name
        close(change(mine.detach()), other.detach(), bound)


CASES: dict[str, tuple[str, AdapterConfig, dict[str, Any]]] = {
    "llama-lora": ("llama", LoRA(rank=3, alpha=6, b_std=0.1, targets=("layers", "embedding")), {}),
    "llama-dora": ("llama", DoRA(rank=3, alpha=6, b_std=0.1, targets=("layers", "embedding")), {}),
    "qwen3-rslora": (
        "qwen3",
        LoRA(rank=4, b_std=0.1, rank_stabilized=True, targets=("query", "down", "value"),
             ranks=(PatternRank(pattern="down", rank=2),)),
        {},
    ),
    "gpt2-dora": ("gpt2", DoRA(rank=2, b_std=0.1), {}),
    "moe-lora": ("moe", LoRA(rank=2, alpha=4, b_std=0.1), {}),
    "moe-unpacked-dora": ("moe", DoRA(rank=2, alpha=4, b_std=0.1), {"packed": False}),
}  # fmt: skip


QUICK = ("llama-dora", "qwen3-rslora", "gpt2-dora", "moe-lora")


@pytest.mark.parametrize("case", few(CASES, QUICK))
def test_equal_to_peft(case: str) -> None:
    shape, adapter, moe = CASES[case]
    config = model_config(shape)
    if moe:
        assert config.moe is not None
        config = model_config(shape, moe=config.moe.evolve(**moe))
    ours = adapted_model(adapter, config)
    theirs = theirs_of(base_model(config), ours, adapter, packed=not moe)
    trained = [each for each in ours.parameters() if each.requires_grad]
    assert len(trained) == len(adapter_parameters(ours))
    for dtype, bound in TOLERANCE.items():
        ours, theirs = ours.to(dtype), theirs.to(dtype)
        is_exact = dtype == torch.float32 and not adapter.has_magnitude and shape != "moe"
        take_steps(ours, theirs, 0.0 if is_exact else bound, packed=shape == "moe" and not moe)
    ours.eval()
    with torch.no_grad():
        before = ours(tokens())
        merge_all(ours)
        assert not adapter_parameters(ours)
        close(ours(tokens()), before, TOLERANCE[torch.float64])


def take_steps(ours: nn.Module, theirs: nn.Module, bound: float, *, packed: bool) -> None:
    """Ten steps of AdamW from the same values."""
    with torch.no_grad():
        for name, value in adapter_parameters(ours).items():
            target, change = counterpart(theirs, name)
            target.copy_(change(value))
        close(ours(tokens()), theirs(tokens()), bound)
    optimizers = [
        torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        for model in (ours, theirs)
    ]
    for step in range(10):
        losses = [loss_of(model, tokens(step)) for model in (ours, theirs)]
        close(losses[0], losses[1], bound)
        for loss in losses:
            loss.backward()
        if step == 0:
            equal(ours, theirs, bound, gradients=True)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    equal(ours, theirs, bound, gradients=False)
    with torch.no_grad():
        close(ours(tokens()), theirs(tokens()), bound)
