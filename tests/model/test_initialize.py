import hashlib
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from setpoint.model.initialize import (
    ConstantInit,
    DrawKey,
    FirstRows,
    NormalInit,
    PerExpert,
    block_rows,
    fill_by,
    initialize,
)
from setpoint.model.transformer import Transformer

from ..support.snapshots import refused
from .small import VOCAB, small_config, small_model


def values(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.named_parameters()}


def assert_same(some: dict[str, torch.Tensor], all_of: dict[str, torch.Tensor]) -> None:
    assert some
    for name, tensor in some.items():
        assert torch.equal(tensor, all_of[name]), name


def test_is_the_formula():
    model = small_model(seed=7, init_std=0.3, layers=2)
    name = "layers.1.feed_forward.down.weight"
    key = int.from_bytes(hashlib.sha256(f"7/{name}/0".encode()).digest()[:8], "big")
    drawn = torch.randn(24, 40, generator=torch.Generator().manual_seed(key)) * (0.3 / 2)
    torch.testing.assert_close(values(model)[name], drawn)


def test_never_changes():
    # A change of these numbers changes every run there is: think twice, and say so.
    model = small_model(seed=1, init_std=0.02)
    found = model.layers["0"].attention.query.weight[0, :3]
    expected = torch.tensor([0.00730647286, -0.0230349805, -0.0049955938])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


def test_does_not_depend_on_what_was_drawn_before():
    first = values(small_model(seed=3))
    torch.manual_seed(99)
    torch.randn(1000)
    state = torch.get_rng_state()
    again = small_model(seed=3)
    assert_same(values(again), first)
    initialize(again, 3)
    assert_same(values(again), first)
    untouched = Transformer(small_config(), vocab_size=VOCAB)
    torch.set_rng_state(state)
    initialize(untouched, 3)
    assert torch.equal(torch.get_rng_state(), state), "the global generator is left alone"


def test_does_not_depend_on_which_layers_are_here():
    whole = values(small_model(seed=3, layers=4))
    model = Transformer(small_config(layers=4), vocab_size=VOCAB)
    for index in ("0", "2"):
        del model.layers[index]
    initialize(model, 3)
    assert_same(values(model), whole)


def test_does_not_depend_on_wrappers():
    whole = values(small_model(seed=3))
    model = Transformer(small_config(), vocab_size=VOCAB)
    for index in list(model.layers):
        model.layers[index] = torch.compile(checkpoint_wrapper(model.layers[index]))
    initialize(model, 3)
    found = {
        name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", ""): tensor
        for name, tensor in values(model).items()
    }
    assert found.keys() == whole.keys()
    assert_same(found, whole)


def test_does_not_depend_on_the_meta_device():
    whole = values(small_model(seed=3, tie_embeddings=True))
    with torch.device("meta"):
        model = Transformer(small_config(tie_embeddings=True), vocab_size=VOCAB)
    with refused(ValueError):
        initialize(model, 3)
    model.to_empty(device="cpu")
    initialize(model, 3)
    assert_same(values(model), whole)
    tokens = torch.arange(10).unsqueeze(0)
    assert torch.equal(model(tokens), small_model(seed=3, tie_embeddings=True)(tokens))


def test_scales():
    model = small_model(dim=256, heads=4, kv_heads=4, ffn_dim=256, layers=8, init_std=0.02)
    for name, tensor in values(model).items():
        if "norm" in name:
            assert torch.equal(tensor, torch.ones(256))
            continue
        expected = 0.02
        if name.endswith(("attention.output.weight", "down.weight")):
            expected = 0.02 / 4
        assert tensor.std().item() == pytest.approx(expected, rel=0.03), name
        assert abs(tensor.mean().item()) < expected / 20, name


def test_embeddings_output_and_each_layer_have_deviations_of_their_own():
    stds = {"init_std_embedding": 1.0, "init_std_output": 0.1, "residual_init": "layer_scaled"}
    sizes = {"dim": 256, "heads": 4, "kv_heads": 4, "ffn_dim": 256, "layers": 2, "init_std": 0.02}
    tensors = values(small_model(**sizes, **stds, positions="learned"))
    for name, expected in {
        "embedding.weight": 1.0,
        "position_embedding.weight": 1.0,
        "output.weight": 0.1,
        "layers.0.feed_forward.up.weight": 0.02,
        "layers.0.feed_forward.down.weight": 0.02 / math.sqrt(2),
        "layers.1.attention.output.weight": 0.02 / 2,
    }.items():
        assert tensors[name].std().item() == pytest.approx(expected, rel=0.03), name


def test_lower_precision_is_the_rounded_value():
    whole = values(small_model(seed=3))
    model = Transformer(small_config(), vocab_size=VOCAB).bfloat16()
    initialize(model, 3)
    for name, tensor in values(model).items():
        assert torch.equal(tensor, whole[name].bfloat16())


class Partly(nn.Module):
    def __init__(self, rules):
        super().__init__()
        self.a = nn.Parameter(torch.zeros(2))
        self.b = nn.Parameter(torch.zeros(2))
        self.rules = rules

    def initializers(self):
        return self.rules


@pytest.mark.parametrize("names", ["a", "abc"])
def test_parameters_and_rules_must_fit(names: str):
    with refused():
        initialize(Partly(dict.fromkeys(names, NormalInit(1.0))), 0)


@pytest.mark.parametrize(
    "rule", [NormalInit(0.5), ConstantInit(2.0), FirstRows(0.5, 600), PerExpert(NormalInit(0.5))]
)
def test_any_rows_are_those_of_the_whole(rule: Any) -> None:
    shape = (3, 200, 400) if isinstance(rule, PerExpert) else (1000, 300)
    of = DrawKey(3, "layers.0.experts.up", shape)
    assert 1 <= block_rows(shape) < 300
    whole = rule.rows(of, 0, shape[0])
    assert whole.shape == shape
    for first, last in ((0, 1), (1, 3), (2, 3), (217, 219), (500, 700), (599, 1000)):
        if last <= shape[0]:
            assert torch.equal(rule.rows(of, first, last), whole[first:last])
    if not isinstance(rule, ConstantInit):
        drawn = whole[:600].flatten()
        assert abs(float(drawn.std()) - 0.5) < 0.005
        assert len(drawn.unique()) > 0.9 * len(drawn)  # blocks are not alike


def test_threads_change_no_bit() -> None:
    rules = {name: NormalInit(0.02) for name in ("a", "b", "c")}
    found: list[dict[str, torch.Tensor]] = []
    before = torch.get_num_threads()
    for threads in (1, 3):
        torch.set_num_threads(threads)
        weights = {name: torch.empty(300, 400, requires_grad=True) for name in rules}
        fill_by(weights, rules, seed=1)
        found.append(weights)
    torch.set_num_threads(before)
    assert all(torch.equal(found[0][name], found[1][name]) for name in rules)
