"""Ranks that divide matrices train what one rank trains, and what divides is checked before."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from setpoint.config import ConfigError, Free, SetpointError, resolve
from setpoint.model.build import build_transformer
from setpoint.model.config import HuggingFaceConfig
from setpoint.model.initialize import initialize
from setpoint.model.moe.config import MoE
from setpoint.parallel.tensor import divide_matrices, sum_over_tensor_ranks, summed_gradients
from setpoint.shapes.outcome import Projection

from ..model.families import FAMILIES
from ..model.small import VOCAB, small_config, small_model
from ..support.forks import forked
from ..support.ranks import run_on_ranks
from ..support.snapshots import refused
from ..train.small import small_job
from .test_equal import compare

WORLD = 2
MODELS: dict[str, dict[str, Any]] = {
    **{name: each for name, each in FAMILIES.items() if name not in ("llama", "qwen3_moe")},
    "one key-value head": {"kv_heads": 1},
    "merged": {"merge_qkv": True, "qkv_bias": True},
    "merged, one key-value head": {"merge_qkv": True, "kv_heads": 1},
    "unpacked experts": {"moe": MoE(experts=4, packed=False, shared_experts=1)},
    "a rank with padding only": {"vocab_multiple_of": 128},
}
# Without sequence parallelism as well: between them they have all that is exchanged.
BOTH = ("gpt2", "deepseek")


def our_models_are_equal(_: Path) -> None:
    mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("tensor",))
    tokens = torch.randint(VOCAB, (2, 8), generator=torch.Generator().manual_seed(0))
    for name, changes in MODELS.items():
        for sequence_parallel in (False, True) if name in BOTH else (True,):
            whole = small_model(seed=3, **changes).train()
            with torch.device("meta"):
                model = build_transformer(small_config(**changes), vocab_size=VOCAB)
            divide_matrices(model, mesh, sequence_parallel, gathers_logits=True)
            model.to_empty(device="cpu")
            initialize(model, 3)
            found, expected = (each(tokens, head=logits) for each in (model.train(), whole))
            torch.testing.assert_close(found.result, expected.result, rtol=1e-4, atol=1e-4)
            for outcome in (found, expected):
                auxiliary = 0.0 if outcome.auxiliary is None else outcome.auxiliary
                (outcome.result.logsumexp(-1).sum() + auxiliary).backward()
            gradients_are_equal(f"{name}, {sequence_parallel}", model, whole, mesh)
            with torch.no_grad():
                torch.testing.assert_close(
                    model.eval()(tokens), whole.eval()(tokens), rtol=1e-4, atol=1e-4
                )


def logits(hidden: Tensor, projection: Projection) -> Any:
    return projection.logits(hidden)


def gradients_are_equal(name: str, model: nn.Module, whole: nn.Module, mesh: DeviceMesh) -> None:
    sum_over_tensor_ranks(list(summed_gradients(model)), mesh.get_group())
    expected = dict(whole.named_parameters())
    for key, parameter in model.named_parameters():
        grad = parameter.grad
        assert isinstance(parameter, DTensor) and isinstance(grad, DTensor), key
        theirs = expected[key].grad
        assert theirs is not None, key
        torch.testing.assert_close(
            grad.full_tensor(),
            theirs,
            rtol=1e-4,
            atol=1e-5,
            msg=lambda m, what=f"{name}, {key}": f"{what}: {m}",
        )


class Own(nn.Module):
    """A model of a user's own, which says how it is divided."""

    def __init__(self, plan: dict[str, str] | None = None) -> None:
        super().__init__()
        self.plan = plan or {"table": "vocabulary_rows", "mix.*": "column", "down": "row"}
        self.table = nn.Embedding(VOCAB, 6)
        self.mix = nn.ModuleList([nn.Linear(6, 8), nn.Linear(6, 8, bias=False)])
        self.down = nn.Linear(8, 6)
        self.out = nn.Linear(6, VOCAB)

    def tensor_plan(self) -> dict[str, str]:
        return self.plan

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        gate, up = (mix(x) for mix in self.mix)
        return self.out(x + self.down(gate.sigmoid() * up))


def other_models_are_equal(_: Path) -> None:
    """Of users, and of transformers by its own plans: tied outputs, and norms of heads."""
    mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("tensor",))
    tokens = torch.randint(1, VOCAB, (2, 8), generator=torch.Generator().manual_seed(0))
    for name in ("own", "llama", "qwen3"):
        pair: list[nn.Module] = []
        for _ in range(2):
            torch.manual_seed(1)
            pair.append(Own() if name == "own" else theirs(name, name == "llama"))
        model, whole = pair
        divide_matrices(model, mesh, sequence_parallel=False, gathers_logits=True)
        found, expected = model(tokens), whole(tokens)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        for each in (found, expected):
            each.logsumexp(-1).sum().backward()
        gradients_are_equal(name, model, whole, mesh)


def theirs(kind: str, tied: bool, **changes: Any) -> nn.Module:
    keys: dict[str, Any] = {
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "head_dim": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCAB,
        "tie_word_embeddings": tied, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    }  # fmt: skip
    if kind == "gpt2":
        keys = {"n_embd": 16, "n_layer": 1, "n_head": 4, "vocab_size": VOCAB}
    overrides = Free(**{**keys, **changes})
    section = HuggingFaceConfig(config=kind, overrides=overrides, max_sequence_length=8)
    return resolve(section).build(vocab_size=VOCAB)


def what_cannot_be_divided_is_refused(_: Path) -> None:
    mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("tensor",))
    for model, said in (
        (nn.Linear(2, 2), "a Linear does not define how it is divided"),
        (Own({"table": "row_wise"}), "'row_wise' for table. Did you mean row?"),
        (Own({"tables": "column"}), "names tables, but there is no module of that name"),
        (Own({"out": "column"}), f"the {VOCAB} outputs of out cannot be divided"),
        (Own({"mix.*": "column 3*2"}), "the 3 heads of mix.0 cannot be divided"),
        (theirs("gpt2", True), "transformers has no tensor-parallel plan for GPT2LMHeadModel"),
        (theirs("llama", False, num_key_value_heads=1), "the 1 heads of model.model.layers.0"),
    ):
        try:
            divide_matrices(model, mesh, sequence_parallel=False, gathers_logits=True)
        except SetpointError as error:
            assert said in str(error) and "Valid: " in str(error), error
        else:
            raise AssertionError(f"not refused: {said}")


def test_models_of_all_kinds_are_divided() -> None:
    run_on_ranks(
        WORLD,
        our_models_are_equal,
        other_models_are_equal,
        what_cannot_be_divided_is_refused,
    )


def test_messages_are_fused_with_products() -> None:
    forked("tests.parallel.async_tensor_ranks")


def test_two_ranks_of_matrices_train_what_one_does() -> None:
    assert "equal over" in compare(2, "clipping, z-loss, label smoothing", "tensor=2")


@pytest.mark.parametrize(
    "flags",
    [
        ("model.heads=6", "model.dim=24"),
        ("model.heads=12", "model.dim=24", "model.kv_heads=6"),
        ("model.heads=4", "model.ffn_dim=30"),
        ("model.heads=4", "model.moe={experts: 2, shared_experts: 1, expert_dim: 6}"),
        ("model.heads=4", "model.ffn_dim=48",
         "adapter={type: qlora, rank: 2, quantize: {type: nf4, group_size: 8}}"),
        ("model.heads=4", "batch.sequence_length=18", "parallel.sequence_parallel=true"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_does_not_divide_is_refused(tmp_path: Path, flags: tuple[str, ...]) -> None:
    ranks = ("parallel.world_size=4", "parallel.tensor=4", "parallel.device=cpu")
    with refused(ConfigError):
        small_job(tmp_path, *ranks, *flags)
