"""Compiled layers are the same layers, under the same names, and share their code."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from setpoint.compile.config import Compile
from setpoint.compile.watch import Watch
from setpoint.config import SetpointError, resolve

from .models import Layer, Printing, compiled, stack, train_on


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("scope", ["block", "model"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_equals_eager(scope: str, backend: str) -> None:
    plain, model = stack(), stack()
    compiled(model, scope=scope, backend=backend)
    torch.testing.assert_close(train_on(model, 4), train_on(plain, 4))
    ours, theirs = gradients(model), gradients(plain)
    assert len(ours) == len(theirs) == 6
    torch.testing.assert_close(ours, theirs)


def test_names_state_and_copies_are_those_of_the_model_as_written() -> None:
    plain, model = stack(), stack()
    compiled(model)
    train_on(model, 4)
    assert list(model.state_dict()) == list(plain.state_dict())
    assert [name for name, _ in model.named_modules()] == [n for n, _ in plain.named_modules()]
    model.load_state_dict(plain.state_dict())
    x = torch.ones(2, 8)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(other(x), plain(x))


def test_layers_of_one_kind_share_one_graph() -> None:
    model = stack(count=5)
    watch = Watch(compiled(model), limit=8)
    train_on(model, 4)
    assert watch.news().graphs == 1


def test_many_kinds_do_not_use_up_the_limit_together() -> None:
    model = nn.Sequential(*(Layer(number, scale=1.0 + number) for number in range(5)))
    watch = Watch(compiled(model, recompile_limit=1), limit=1)
    train_on(model, 4)
    news = watch.news()
    assert (news.graphs, news.fallbacks) == (5, ())


def test_the_whole_model_is_one_graph() -> None:
    model = stack(count=5)
    told = compiled(model, scope="model")
    watch = Watch(told, limit=8)
    train_on(model, 4)
    assert list(told.names.values()) == ["model"]
    assert watch.news().graphs == 1


def test_options_reach_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict] = []
    monkeypatch.setattr(torch, "compile", lambda function, **rest: seen.append(rest) or function)
    options = {"triton": {"cudagraphs": True}, "epilogue_fusion": False}
    compiled(stack(), backend="inductor", options=options, dynamic=False, fullgraph=True)
    compiled(stack(), backend="inductor", mode="max-autotune")
    assert seen[0] == {
        "backend": "inductor",
        "fullgraph": True,
        "dynamic": False,
        "mode": None,
        "options": {"triton.cudagraphs": True, "epilogue_fusion": False},
    }
    assert (seen[1]["mode"], seen[1]["options"]) == ("max-autotune", None)


def test_a_model_without_layers_is_refused_by_name() -> None:
    config = resolve(Compile(backend="eager"))
    with pytest.raises(SetpointError, match="a Linear, has no layers that repeat"):
        config.build(model=nn.Linear(2, 2), layers=[])


def test_a_value_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(SetpointError, match=r"compile\.options: .*max_autotune"):
        compiled(stack(), backend="inductor", options={"max_autotune": "yes"})


def test_what_ran_as_written_is_told_once() -> None:
    model = stack()
    told = compiled(model)
    with torch.compiler.set_stance("force_eager"):
        train_on(model, 4)
    assert told.take() == ["0", "1", "2"]
    assert told.take() == []
    train_on(model, 4)
    assert told.take() == []


def test_a_graph_break_is_not_the_whole_layer() -> None:
    model = stack(Printing)
    told = compiled(model)
    train_on(model, 4)
    assert told.take() == []


def test_sharded_layers_are_whole_graphs(run_module: Callable[[str], None]) -> None:
    run_module("tests.compile.sharded_layers")


def test_a_forward_of_one_module_alone_is_compiled() -> None:
    plain, model = stack(), stack()
    first: Any = model[0]
    own = first.forward
    first.forward = lambda x: 2 * own(x)
    told = compiled(model)
    torch.testing.assert_close(model(torch.ones(2, 8)), plain[1:](2 * plain[0](torch.ones(2, 8))))
    assert told.take() == []
