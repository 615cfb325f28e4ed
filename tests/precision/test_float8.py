"""Linear layers in float8: against torchao's own layers, and on several ranks against one."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from setpoint.config import resolve
from setpoint.precision.config import Float8, converted, layer_problems
from setpoint.precision.float8 import (
    Float8Product,
    grouped_products,
    require_float8,
    use_float8,
    why_not,
)
from setpoint.train.open import settings_of

from ..model.small import small_model
from ..support.forks import forked
from ..support.snapshots import refused
from ..train.small import small_job

CPU, GPU = torch.device("cpu"), torch.device("cuda")
torchao = pytest.mark.skipif(
    importlib.util.find_spec("torchao") is None, reason="needs the package torchao"
)


def section(**fields: Any) -> Float8:
    return resolve(Float8(**fields))


def model_of(**changes: Any) -> Any:
    sizes = {"dim": 32, "heads": 4, "ffn_dim": 64}
    return small_model(**{**sizes, **changes}).train()


def passed(layer: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The output of a layer, and its gradients."""
    x = x.detach().requires_grad_()
    y = layer(x)
    y.square().sum().backward()
    grads = [weight.grad for weight in layer.parameters()]
    return [y, x.grad, *grads]  # type: ignore[list-item]


def oracle(recipe: str, weight: torch.Tensor) -> nn.Module:
    """A layer of a recipe by torchao itself."""
    from torchao.float8 import Float8LinearConfig
    from torchao.float8.float8_linear import Float8Linear
    from torchao.prototype.moe_training.config import MXFP8TrainingOpConfig, MXFP8TrainingRecipe
    from torchao.quantization import quantize_

    plain = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    plain.weight = nn.Parameter(weight)
    if recipe == "mxfp8":
        if torch.__version__ < "2.13":
            pytest.skip("torchao asks for a newer torch")
        quantize_(
            plain,
            MXFP8TrainingOpConfig.from_recipe(MXFP8TrainingRecipe.MXFP8_EMULATED_RCEIL),
            filter_fn=lambda *_: True,
        )
        return plain
    config = Float8LinearConfig.from_recipe_name(recipe)
    object.__setattr__(config, "emulate", True)
    return Float8Linear.from_float(plain, config)


@torchao
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp", "mxfp8"])
def test_products_are_those_of_torchao(recipe: Any) -> None:
    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(0)).bfloat16()
    x = torch.randn(2, 32, 96, generator=torch.Generator().manual_seed(1)).bfloat16()
    model = nn.Sequential(nn.Linear(96, 64, bias=False))
    model[0].weight = nn.Parameter(weight.clone())
    use_float8(section(recipe=recipe, emulate=True), model)
    found = passed(model[0], x)
    for ours, theirs in zip(found, passed(oracle(recipe, weight.clone()), x), strict=True):
        assert torch.equal(ours, theirs.to(ours.dtype))
    # Rows that do not fill a block, and none, as an expert may have.
    assert torch.equal(model(x[:, :7])[0, 0], model(x[:, :7].contiguous())[0, 0])
    assert model(x[:, :0]).shape == (2, 0, 64)


@torchao
@pytest.mark.parametrize("recipe", ["rowwise", "rowwise_with_gw_hp", "mxfp8", "mxfp8_with_gw_hp"])
def test_grouped_products_are_those_of_each_expert(recipe: Any) -> None:
    """By torchao's linear layers, whose rows of an expert are filled up with zeros."""
    generator = torch.Generator().manual_seed(0)
    matrices = torch.randn(4, 96, 64, generator=generator).bfloat16().requires_grad_()
    sizes = (30, 0, 41, 29)
    rows = torch.randn(sum(sizes), 96, generator=generator).bfloat16().requires_grad_()
    ends = torch.tensor(sizes).cumsum(0, dtype=torch.int32)
    products = grouped_products(section(recipe=recipe, emulate=True, experts=True))
    y = products.product(rows, matrices, ends)
    y.square().sum().backward()
    grad = (2 * y).detach()
    assert rows.grad is not None and matrices.grad is not None
    assert torch.equal(matrices.grad, products.gradient(rows.detach(), grad, ends))
    start = 0
    for number, size in enumerate(sizes):
        weight = matrices[number].detach().t().contiguous()
        layer = oracle("mxfp8" if recipe.startswith("mxfp8") else "rowwise", weight)
        part = slice(start, start := start + size)
        padded = F.pad(rows[part].detach(), (0, 0, 0, 64 - size))
        result, of_rows, of_matrix = passed(layer, padded)
        if recipe.endswith("with_gw_hp"):
            of_matrix = (padded[:size].float().t() @ grad[part].float()).t()
        near(y[part], result[:size])
        near(rows.grad[part], of_rows[:size])
        near(matrices.grad[number], of_matrix.t())
    # A rank may have no rows at all.
    nothing = products.product(rows[:0], matrices, torch.zeros_like(ends))
    nothing.sum().backward()
    assert nothing.shape == (0, 64)


def near(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Equal but for the order of sums, which rounding to bf16 may show."""
    torch.testing.assert_close(ours.float(), theirs.float(), rtol=2**-7, atol=1e-3)


@torchao
def test_a_model_keeps_its_parameters() -> None:
    plain, model = model_of(), model_of()
    before = {name: id(p) for name, p in model.named_parameters()}
    use_float8(section(emulate=True), model)
    assert {name: id(p) for name, p in model.named_parameters()} == before
    products = [name for name, part in model.named_modules() if isinstance(part, Float8Product)]
    assert products == [
        name for name, part in plain.named_modules()
        if isinstance(part, nn.Linear) and name != "output"
    ]  # fmt: skip


@torchao
def test_small_layers_are_those_that_torchao_leaves_out() -> None:
    from torchao.float8 import _auto_filter_for_recipe

    sizes = [(16 * n, 16 * k) for n in (1, 64, 65, 128, 129, 256, 257) for k in (1, 64, 65, 256)]
    layers = {f"{n}x{k}": (n, k) for n, k in [*sizes, (4104, 4104)]}
    for recipe in ("tensorwise", "rowwise"):
        takes = _auto_filter_for_recipe(recipe, [])
        with torch.device("meta"):
            theirs = [
                name for name, (n, k) in layers.items()
                if takes(nn.Linear(k, n, bias=False), name)
            ]  # fmt: skip
        assert converted(section(recipe=recipe, skip=(), skip_small=True), layers) == theirs


@torchao
def test_several_ranks_multiply_as_one() -> None:
    said = forked("tests.precision.float8_ranks", "2", *FEW)
    assert all(f"{name}: " in said for name in FEW)


FEW = ("sharded", "tensor, rowwise", "experts, mxfp8")


@torchao
@pytest.mark.slow
@pytest.mark.parametrize("ranks", ["2", "4"])
def test_several_ranks_multiply_as_one_in_every_case(ranks: str) -> None:
    forked("tests.precision.float8_ranks", ranks)


@torchao
def test_what_does_not_fit_is_refused() -> None:
    for config, model in (
        (section(), model_of(ffn_dim=40)), (section(skip_small=True), model_of()),
    ):  # fmt: skip
        with refused():
            use_float8(config, model)


def test_compiled_rows_are_rounded_as_eager_ones(tmp_path: Path) -> None:
    from torch._inductor import config

    for recipe, compiled in (("rowwise", "{}"), ("rowwise", "null"), ("tensorwise", "{}")):
        flags = (f"precision.float8={{recipe={recipe}, emulate=true}}", f"compile={compiled}")
        with settings_of(small_job(tmp_path, *flags, "precision.compute=bf16")):
            assert config.emulate_precision_casts is (recipe == "rowwise" and compiled == "{}")


def test_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100")
    assert why_not(section(), CPU) == (
        "recipe = tensorwise needs a GPU of the Ada or Hopper generation or newer, but the device "
        "is cpu"
    )
    assert why_not(section(emulate=True), CPU) is None
    for recipe, capability in (("tensorwise", (8, 9)), ("rowwise", (9, 0)), ("mxfp8", (10, 0))):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, c=capability: c)
        require_float8(section(recipe=recipe), GPU)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    with refused():
        require_float8(section(recipe="nvfp4"), GPU)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with refused():
        require_float8(section(emulate=True), GPU)


LAYERS = {"output": (256, 32), "layers.0.up": (48, 32), "layers.0.router.up": (40, 32)}


def told(layers: dict[str, tuple[int, int]], **fields: Any) -> list[str]:
    found = layer_problems(resolve(Float8(**fields)), layers, {})
    return [f"{problem.path}: {problem.message}" for problem in found]


def test_layers_are_searched_by_name() -> None:
    assert converted(resolve(Float8()), LAYERS) == ["layers.0.up"]
    assert converted(resolve(Float8(skip=("^layers",))), LAYERS) == ["output"]
    assert converted(resolve(Float8(skip=())), LAYERS) == [*LAYERS]


def test_layers_that_do_not_fit_are_named() -> None:
    assert told(LAYERS) == []  # of the patterns it has by default, one matches nothing
    assert told(LAYERS, skip=("^output$", "router")) == []
    assert told(LAYERS, skip=("router", "ruoter")) == [
        "skip.1: matches none of the 3 linear layers"
    ]
    assert told(LAYERS, skip=("^output$",)) == [
        ": requires matrix dimensions that are multiples of 16, but layers.0.router.up is 40 x 32"
    ]
    odd = {"a": (16, 8), "b": (16, 16), "c": (24, 16), "d": (8, 8)}
    assert told(odd)[0].endswith("but a is 16 x 8; 2 other layers do not fit either")
    assert told({"output": (16, 16)}) == [
        ": finds no linear layer: the model has none that skip does not match"
    ]
