"""Compiled layers are the same layers, under the same names, and share their code."""

import copy
import logging
import os
import pickle
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import utils
from torch._logging._internal import warning_once
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from setpoint.compile.compile_model import (
    CACHE,
    KEPT,
    KERNELS,
    LOGGERS,
    Artifacts,
    compile_model,
    compiling,
    quiet_compiler,
    signature_of,
)
from setpoint.compile.config import Compile
from setpoint.compile.internals import random_states_in_place
from setpoint.compile.watch import Watch
from setpoint.config import SetpointError, resolve
from setpoint.memory.checkpointing import contexts, recompute

from ..support.ranks import run_on_ranks
from ..support.snapshots import refused
from .models import SETTINGS, Asking, Layer, Printing, compiled, stack, train_on


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(("scope", "backend"), [("block", "aot_eager"), ("model", "eager")])
def test_compiled_equals_eager(scope: str, backend: str) -> None:
    plain, model = stack(), stack()
    told = compiled(model, scope=scope, backend=backend)
    watch = Watch(told, limit=8)
    torch.testing.assert_close(train_on(model, 4), train_on(plain, 4))
    ours, theirs = gradients(model), gradients(plain)
    assert len(ours) == len(theirs) == 6
    torch.testing.assert_close(ours, theirs)
    # Layers of one kind share one graph.
    assert watch.news().graphs == 1
    assert scope == "block" or list(told.names.values()) == ["model"]


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


def test_many_kinds_do_not_use_up_the_limit_together() -> None:
    model = nn.Sequential(*(Layer(number, scale=1.0 + number) for number in range(5)))
    watch = Watch(compiled(model, recompile_limit=1), limit=1)
    train_on(model, 4)
    news = watch.news()
    assert (news.graphs, news.fallbacks) == (5, ())


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


def test_what_cannot_be_compiled_is_refused_by_name() -> None:
    config = resolve(Compile(backend="eager"))
    with refused():
        config.build(model=nn.Linear(2, 2), layers=[])
    with pytest.raises(SetpointError, match=r"compile\.options: .*max_autotune"):
        compiled(stack(), backend="inductor", options={"max_autotune": "yes"})


def test_recomputed_dropout_beside_outputs_that_are_divided(tmp_path: Path) -> None:
    """The device mesh is among the outputs of the graph, and among what it saves for backward."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    mesh = init_device_mesh("cpu", (1,))

    def inner(x: Any, w: Any) -> Tensor:
        local = functional.dropout((x @ w).to_local(), 0.5).sin()
        return DTensor.from_local(local, mesh, [Replicate()], run_check=False)

    def outer(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y: Any = checkpoint(inner, x, w, use_reentrant=False)
        return y * w.sum(), y

    def train(call: Callable[..., tuple[Any, Any]]) -> list[Tensor]:
        torch.manual_seed(0)
        given: list[Any] = [
            distribute_tensor(torch.randn(shape), mesh, [Replicate()]).requires_grad_()
            for shape in ((4, 8), (8, 8))
        ]
        product, y = call(*given)
        (product.full_tensor().sum() + y.full_tensor().square().sum()).backward()
        return [each.full_tensor() for each in (product, y, *(tensor.grad for tensor in given))]

    try:
        with random_states_in_place():
            ours = train(torch.compile(outer, backend="aot_eager", fullgraph=True))
        assert all(map(torch.equal, ours, train(outer)))
    finally:
        torch.distributed.destroy_process_group()


def shard(model: nn.Module) -> None:
    for layer in model.children():
        fully_shard(layer)
    fully_shard(model)


def sharded_layers_are_whole_graphs(_: Path) -> None:
    config = resolve(Compile(backend="aot_eager", fullgraph=True))
    plain = stack()
    loss = train_on(plain, 4)
    for shards_first, recomputed in ((False, True), (True, False)):
        torch._dynamo.reset()
        before = len(utils.graph_break_reasons), utils.counters["stats"]["unique_graphs"]
        model = stack()
        layers = list(model.named_children())
        for _, layer in layers:
            if recomputed:
                recompute(layer)
        if shards_first:
            shard(model)
        compiled = compile_model(config, model=model, layers=layers)
        if not shards_first:
            shard(model)
        # Every rank sees the same data, so that their mean is what one process has.
        torch.testing.assert_close(train_on(model, 4), loss)
        found = [each.full_tensor() for each in gradients(model) if isinstance(each, DTensor)]
        torch.testing.assert_close(found, gradients(plain))
        now = len(utils.graph_break_reasons), utils.counters["stats"]["unique_graphs"]
        assert (now[0] - before[0], now[1] - before[1]) == (0, 1), (shards_first, recomputed, now)
        assert compiled.take() == []


def test_sharded_layers_are_whole_graphs() -> None:
    run_on_ranks(2, sharded_layers_are_whole_graphs)


def test_a_forward_of_one_module_alone_is_compiled() -> None:
    plain, model = stack(), stack()
    first: Any = model[0]
    own = first.forward
    first.forward = lambda x: 2 * own(x)
    told = compiled(model)
    torch.testing.assert_close(model(torch.ones(2, 8)), plain[1:](2 * plain[0](torch.ones(2, 8))))
    assert told.take() == []


def test_what_makes_another_kind() -> None:
    frozen = Layer(0)
    frozen.inner.weight.requires_grad_(False)
    wider = Layer(0)
    wider.inner = nn.Linear(8, 9)
    patched = Layer(0)
    patched.forward = lambda x: x
    kinds = [Layer(0), Layer(0, scale=2.0), Printing(0), frozen, wider, patched]
    assert len({signature_of(layer) for layer in kinds}) == 6
    assert signature_of(Layer(0)) == signature_of(Layer(1))


def state() -> list[Any]:
    dynamo, utils = torch._dynamo.config, torch._dynamo.utils
    limits = [dynamo.recompile_limit, dynamo.accumulated_recompile_limit]
    remembered = utils._compilation_metrics.maxlen
    return [*limits, os.environ.get(CACHE), os.environ.get(KERNELS), remembered]


def section(**values: Any) -> Compile:
    return resolve(Compile(**values))


def test_settings_hold_for_one_job_also_if_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE, "theirs")
    before = state()
    given = section(recompile_limit=300, cache=tmp_path)
    with pytest.raises(ValueError, match="x"), compiling(given):
        *limits, most = state()
        assert limits == [300, 300, str(tmp_path), str(tmp_path / "triton")] and most > before[-1]
        raise ValueError("x")
    assert state() == before
    with compiling(section(recompile_limit=2)):
        assert state()[:-1] == [2, *before[1:-1]]
    assert state() == before


def test_graphs_of_an_earlier_job_do_not_count() -> None:
    for _ in range(3):
        model = stack()
        told = compiled(model, recompile_limit=1, dynamic=False)
        train_on(model, 4)
        assert told.take() == []


class InPlace(torch.nn.Module):
    """A layer that changes what a product of matrices has given."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = torch.nn.Linear(8, 16, dtype=torch.float64)
        self.narrow = torch.nn.Linear(16, 8, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer."""
        return x + self.narrow(self.wide(x).mul_(1.5).sigmoid_()).mul_(0.5)


def gradients_of_settings(*, compiles: bool) -> list[Tensor | None]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(InPlace(), InPlace())
    if compiles:
        for layer in model:
            recompute(layer, keep=partial(contexts, ["matmul"], 1))
        model.compile(backend="aot_eager_decomp_partition")
    x = torch.linspace(-1, 1, 32, dtype=torch.float64).view(4, 8).requires_grad_() * 1
    model(x).square().sum().backward()
    return [parameter.grad for parameter in model.parameters()]


def test_what_pytorch_warns_of_does_no_harm_and_is_not_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kept results of operators, in compiled layers that work in place."""
    said: list[str] = []
    logger = logging.getLogger("torch._higher_order_ops.wrap")
    monkeypatch.setattr(logger, "handle", lambda record: said.append(record.getMessage()))
    warning_once.cache_clear()
    torch._dynamo.reset()
    gradients_of_settings(compiles=True)
    assert len(said) == 1 and KEPT in said[0]
    monkeypatch.undo()
    monkeypatch.setattr(logger, "callHandlers", lambda record: said.append(record.getMessage()))
    warning_once.cache_clear()
    with compiling(section()):
        found = gradients_of_settings(compiles=True)
        logger.warning("another")
    assert said[1:] == ["another"]
    torch.testing.assert_close(found, gradients_of_settings(compiles=False), rtol=1e-12, atol=1e-14)
    assert not logger.filters


class Kept(logging.Handler):
    """Keeps what reaches the terminal."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.lines.append(record.getMessage())


def heard(environment: str | None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """PyTorch's warnings of a graph break and of too many recompilations."""
    if environment is None:
        monkeypatch.delenv("TORCH_LOGS", raising=False)
    else:
        monkeypatch.setenv("TORCH_LOGS", environment)
    kept, logger = Kept(), logging.getLogger("torch._dynamo")
    logger.addHandler(kept)
    try:
        model = stack(Asking)
        compiled(model)
        train_on(model, 3)
        model = stack()
        compiled(model, recompile_limit=1, dynamic=False)
        for rows in (2, 3, 4):
            train_on(model, rows)
    finally:
        SETTINGS.close()
        logger.removeHandler(kept)
    return kept.lines


def test_warnings_that_are_told_are_left_out_unless_logs_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Logs show as well that PyTorch would say something."""
    assert heard(None, monkeypatch) == []
    lines = heard("+dynamo", monkeypatch)
    assert any("hit config.recompile_limit" in line for line in lines)


def test_other_warnings_are_heard_and_all_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_LOGS", raising=False)
    kept, logger = Kept(), logging.getLogger(LOGGERS[0])
    logger.addHandler(kept)
    before = [list(logging.getLogger(name).filters) for name in LOGGERS]
    with pytest.raises(ValueError, match="x"), quiet_compiler():
        logger.warning("torch._dynamo hit config.%s (%s)", "recompile_limit", 8)
        logger.warning("Graph break from `Tensor.item()`, consider setting:")
        logger.warning("something else")
        logger.error("Graph break")
        raise ValueError("x")
    logger.removeHandler(kept)
    assert kept.lines == ["something else", "Graph break"]
    assert [list(logging.getLogger(name).filters) for name in LOGGERS] == before


CPU = torch.device("cpu")


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The content that PyTorch loads; it saves three artifacts as `made`."""
    given: list[bytes] = []
    names: dict[str, list[str]] = defaultdict(list, inductor=["a", "b"], aot_autograd=["c"])
    info: Any = SimpleNamespace(artifacts=names)
    monkeypatch.setattr(torch.compiler, "save_cache_artifacts", lambda: (b"made", info))
    monkeypatch.setattr(
        torch.compiler, "load_cache_artifacts", lambda content: given.append(content) or info
    )
    return given


def test_what_is_saved_is_loaded(tmp_path: Path, loaded: list[bytes]) -> None:
    assert Artifacts(tmp_path / "new", "job", CPU).load() == 0
    assert Artifacts(tmp_path / "new", "job", CPU).save()
    assert Artifacts(tmp_path / "new", "job", CPU).load() == 3
    assert loaded == [b"made"]
    assert Artifacts(tmp_path / "new", "other", CPU).load() == 0


def test_a_damaged_file_is_not_given_to_pytorch(tmp_path: Path, loaded: list[bytes]) -> None:
    """Its content is unpickled, and may be anything."""
    artifacts = Artifacts(tmp_path, "job", CPU)
    artifacts.save()
    content = artifacts.path.read_bytes()
    for damaged in (b"", content[:-1], content[:-1] + b"x"):
        artifacts.path.write_bytes(damaged)
        assert artifacts.load() is None
    assert loaded == []
    artifacts.save()
    assert artifacts.load() == 3


def test_a_full_disk_leaves_the_file_of_before(
    tmp_path: Path, loaded: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts = Artifacts(tmp_path, "job", CPU)
    artifacts.save()
    write = Path.write_bytes

    def full(path: Path, content: bytes) -> None:
        write(path, content[:9])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        artifacts.save()
    assert list(tmp_path.iterdir()) == [artifacts.path]
    assert artifacts.load() == 3
    assert loaded == [b"made"]


def test_each_instruction_set_has_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are written for the width of a vector, which PyTorch's own keys leave out."""
    paths = set[Path]()
    for name in ("AVX2", "AVX512"):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda name=name: name)
        paths.add(Artifacts(tmp_path, "job", CPU).path)
    assert len(paths) == 2
