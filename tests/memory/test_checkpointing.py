import copy
import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext

from setpoint.config import resolve
from setpoint.memory import checkpointing
from setpoint.memory.checkpointing import ATTENTION, MATMUL, recompute
from setpoint.memory.config import CheckpointedParts, CheckpointingConfig, Full, Operators
from setpoint.model.build import layers_of
from setpoint.model.moe.config import MoE

from ..model.families import sparse
from ..model.small import VOCAB, small_model
from ..support.cases import few, pairs, rotated
from ..support.snapshots import refused
from .passes import CASES, DROPOUT, Pass, assert_same, run

POLICIES: dict[str, CheckpointingConfig] = {
    "full": Full(),
    "full reentrant": Full(reentrant=True),
    "every second": Full(every=2),
    "attention": CheckpointedParts(),
    "feed-forward": CheckpointedParts(parts=("feed_forward",)),
    "both": CheckpointedParts(parts=("attention", "feed_forward")),
    "parts reentrant": CheckpointedParts(parts=("attention", "feed_forward"), reentrant=True),
    "operators": Operators(),
    "matmul": Operators(save=("matmul",)),
    "every second matmul": Operators(matmul_every=2),
    "attention kept": Operators(save=("attention",)),
}


def checkpointed(config: CheckpointingConfig, **changes: Any) -> nn.Module:
    model = small_model(**changes)
    resolve(config).build(layers=layers_of(model))
    return model


@functools.cache
def plain_pass(name: str, precision: torch.dtype | None) -> Pass:
    return run(small_model(**{**CASES[name], **DROPOUT}), precision)


AXES = (CASES, POLICIES, [None, torch.bfloat16])


@pytest.mark.parametrize(
    ("name", "policy", "precision"),
    few(dict.fromkeys([*rotated(*AXES), *pairs(*AXES)]), rotated(*AXES)),
)
def test_equal_to_the_last_bit(name: str, policy: str, precision: torch.dtype | None) -> None:
    plain = plain_pass(name, precision)
    again = run(checkpointed(POLICIES[policy], **{**CASES[name], **DROPOUT}), precision)
    assert_same(again, plain)
    assert again.kept < plain.kept


@pytest.mark.parametrize("policy", ["full reentrant", "operators"])
def test_gradients_of_micro_batches_add_up(policy: str) -> None:
    case = {**sparse(), **DROPOUT}
    plain = run(small_model(**case), passes=3)
    assert_same(run(checkpointed(POLICIES[policy], **case), passes=3), plain)


@functools.cache
def pass_of_four_layers(policy: str) -> Pass:
    case = {"layers": 4}
    return run(checkpointed(POLICIES[policy], **case) if policy != "none" else small_model(**case))


def test_what_each_policy_keeps() -> None:
    kept = {name: pass_of_four_layers(name).kept for name in (*POLICIES, "none")}
    assert kept["full"] < kept["every second"] < kept["none"]
    assert kept["full"] < kept["attention kept"] < kept["every second matmul"]
    assert kept["every second matmul"] < kept["matmul"] < kept["operators"] < kept["none"]
    assert kept["full"] < kept["both"] < min(kept["attention"], kept["feed-forward"])
    assert abs(kept["full reentrant"] - kept["full"]) < 0.1 * kept["full"]


def test_what_is_computed_again() -> None:
    attention = "_scaled_dot_product_flash_attention_for_cpu"
    layers = 4

    def again(policy: str, name: str) -> int:
        return pass_of_four_layers(policy).calls[name] - pass_of_four_layers("none").calls[name]

    assert again("full", attention) == again("full reentrant", attention) == layers
    assert again("every second", attention) == layers // 2
    assert again("attention", attention) == layers
    assert again("feed-forward", attention) == 0
    assert again("operators", attention) == again("attention kept", attention) == 0
    assert again("matmul", attention) == layers
    # Seven products a layer; the last one of what is computed again is not reached.
    assert again("operators", "mm") == again("matmul", "mm") == 0
    assert again("every second matmul", "mm") == 3 * layers
    assert again("attention kept", "mm") >= 6 * layers
    assert 0 < again("attention", "mm") <= 4 * layers


def test_products_of_experts_are_kept() -> None:
    product = "setpoint::looped_product"
    case = {"moe": MoE(experts=4, implementation="loop")}
    plain = run(small_model(**case)).calls[product]
    assert run(checkpointed(Full(), **case)).calls[product] > plain
    assert run(checkpointed(Operators(), **case)).calls[product] == plain


@pytest.mark.parametrize("policy", ["full", "full reentrant", "both", "operators"])
def test_names_stay_and_nothing_changes_without_gradients(policy: str) -> None:
    plain, model = small_model(**DROPOUT), checkpointed(POLICIES[policy], **DROPOUT)
    assert list(model.state_dict()) == list(plain.state_dict())
    assert list(dict(model.named_modules())) == list(dict(plain.named_modules()))
    tokens = torch.arange(12).view(2, 6) % VOCAB
    with torch.no_grad():
        for mode in (True, False):
            torch.manual_seed(1)
            expected = plain.train(mode)(tokens)
            torch.manual_seed(1)
            assert torch.equal(model.train(mode)(tokens), expected)


@pytest.mark.parametrize("policy", ["full", "full reentrant"])
def test_where_no_input_needs_a_gradient(policy: str) -> None:
    plain, model = small_model(), checkpointed(POLICIES[policy])
    for one in (plain, model):
        one.get_parameter("embedding.weight").requires_grad_(False)
        run(one)
    for (name, mine), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        if name != "embedding.weight":
            assert mine.grad is not None and theirs.grad is not None
            assert torch.equal(mine.grad, theirs.grad), name


def test_a_copy_computes_with_its_own_parameters() -> None:
    model = checkpointed(Full(reentrant=True))
    other = copy.deepcopy(model)
    run(other)
    assert all(p.grad is None for p in model.parameters())
    assert all(p.grad is not None for p in other.parameters())


@pytest.mark.parametrize("policy", ["full", "full reentrant", "both", "operators"])
def test_models_of_transformers(policy: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {
        "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2,
    }  # fmt: skip
    keys = transformers.AutoConfig.for_model("llama", vocab_size=VOCAB, **sizes)
    keys.bos_token_id = keys.eos_token_id = None

    def model() -> nn.Module:
        torch.manual_seed(1)
        return transformers.AutoModelForCausalLM.from_config(keys).train()

    def gradients(one: nn.Module) -> list[torch.Tensor]:
        tokens = torch.arange(24).view(2, 12) % VOCAB
        one(input_ids=tokens, use_cache=False).logits.square().mean().backward()
        return [p.grad for p in one.parameters() if p.grad is not None]

    again = model()
    resolve(POLICIES[policy]).build(layers=layers_of(again))
    for mine, theirs in zip(gradients(again), gradients(model()), strict=True):
        assert torch.equal(mine, theirs)


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mixer = nn.Linear(4, 4)


def test_a_model_without_layers_or_parts_is_refused() -> None:
    with refused():
        resolve(Full()).build(layers=layers_of(nn.Linear(4, 4)))
    model = nn.ModuleDict({"blocks": nn.ModuleList([Odd(), Odd()])})
    with refused():
        resolve(CheckpointedParts()).build(layers=layers_of(model))
    # Nothing was changed before it was refused.
    assert {type(block) for block in model["blocks"]} == {Odd}  # pyright: ignore[reportGeneralTypeIssues]


ATEN = torch.ops.aten
KEPT, AGAIN = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE


def policies(
    *given: tuple[Any, tuple[Any, ...]],
    save: tuple[str, ...] = ("matmul", "attention"),
    every: int = 1,
    recompute: bool = False,
    counts: list[int] | None = None,
) -> list[CheckpointPolicy]:
    context = SelectiveCheckpointContext(is_recompute=recompute)
    counts = [0, 0] if counts is None else counts
    return [
        checkpointing._policy(save, every, counts, context, operator, *args)
        for operator, args in given
    ]


def test_attention_is_kept_unless_it_draws_random_numbers() -> None:
    for name, before in (
        ("_scaled_dot_product_flash_attention", 0),
        ("_scaled_dot_product_flash_attention_for_cpu", 0),
        ("_scaled_dot_product_efficient_attention", 2),
        ("_scaled_dot_product_cudnn_attention", 2),
    ):
        operator = getattr(ATEN, name).default
        given = (None,) * (3 + before)
        found = policies((operator, given), (operator, (*given, 0.0)), (operator, (*given, 0.1)))
        assert found == [KEPT, KEPT, AGAIN], name
        assert policies((operator, given), save=("matmul",)) == [AGAIN]
    assert policies((torch.ops.higher_order.flex_attention, ())) == [KEPT]


def test_the_names_are_those_of_this_pytorch() -> None:
    known = set(torch._C._dispatch_get_all_op_names())
    for name in MATMUL | ATTENTION:
        if name.startswith("aten::") and not name.endswith("_v2"):
            assert name in known


class Scaled(nn.Module):
    """Takes tensors in keywords and tuples, and returns some of them within a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(3.0))
        self.calls = 0

    def forward(self, x: Tensor, *, pair: tuple[Tensor, int]) -> tuple[Tensor, tuple[Tensor, str]]:
        self.calls += 1
        by, times = pair
        return (x * self.weight).tanh(), (by * self.weight * times, "told")


@pytest.mark.parametrize("reentrant", [False, True])
def test_tensors_in_keywords_and_tuples_get_their_gradients(reentrant: bool) -> None:
    found = []
    for again in (False, True):
        module = Scaled()
        if again:
            recompute(module, reentrant=reentrant)
        x, by = torch.tensor(0.5, requires_grad=True), torch.tensor(2.0, requires_grad=True)
        out, (more, told) = module(x, pair=(by, 2))
        assert told == "told"
        (out + more.square()).backward()
        assert x.grad is not None and by.grad is not None and module.weight.grad is not None
        found.append([out.detach(), x.grad, by.grad, module.weight.grad])
        assert module.calls == 1 + again
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_forward_that_was_replaced_is_computed_again() -> None:
    module = nn.Linear(2, 2)
    calls: list[int] = []
    real = module.forward

    def forward(x: Tensor) -> Tensor:
        calls.append(1)
        return real(x)

    module.forward = forward
    recompute(module)
    module(torch.ones(1, 2)).tanh().sum().backward()
    assert len(calls) == 2


def test_layers_that_are_alike_share_a_class_that_looks_like_theirs() -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    recompute(one)
    recompute(other)
    assert type(one) is type(other)
    assert isinstance(one, nn.Linear)
    assert repr(one) == repr(nn.Linear(2, 2))
