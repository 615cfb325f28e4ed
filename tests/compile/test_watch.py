"""A part that silently runs as it is written is found, whatever the reason."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from setpoint.compile.internals import dynamo_config, graph_breaks, internal
from setpoint.compile.watch import News, Watch, explain, reason_in
from setpoint.config import SetpointError

from .models import Asking, Layer, Printing, compiled, stack, train_on


def watched(kind: type[Layer] = Layer, **values: Any) -> tuple[torch.nn.Module, Watch]:
    model = stack(kind)
    told = compiled(model, **values)
    return model, Watch(told, values.get("recompile_limit", 8))


def broken(graph: object, inputs: object) -> object:
    raise ValueError("this backend cannot")


def test_nothing_new_is_no_news() -> None:
    model, watch = watched()
    train_on(model, 4)
    first = watch.news()
    assert first.graphs == 1 and first.seconds > 0
    assert first.recompilations == first.fallbacks == ()
    train_on(model, 4)
    assert not watch.news() and watch.news() == News()


def test_recompilations_are_counted_with_their_reason() -> None:
    model, watch = watched(dynamic=False)
    train_on(model, 4)
    watch.news()
    train_on(model, 5)
    news = watch.news()
    assert news.graphs == 1
    assert "expected 4, actual 5" in news.recompilations[0]
    assert news.fallbacks == ()
    # The mode of evaluation is compiled once, and that of training not again.
    model.eval()
    with torch.no_grad():
        model(torch.ones(4, 8))
        model(torch.ones(4, 8))
    assert watch.news().graphs == 1
    model.train()
    train_on(model, 4)
    assert not watch.news()


def test_code_without_a_graph_does_not_count() -> None:
    """Code that calls a layer with a graph break is compiled anew as well, and computes nothing."""
    model, watch = watched(Asking, dynamic=False)
    train_on(model, 4)
    watch.news()
    train_on(model, 5)
    news = watch.news()
    assert news.graphs == len(news.recompilations) == 1


def test_a_graph_break_is_found_with_its_place() -> None:
    model, watch = watched(Asking)
    train_on(model, 4)
    (found,) = watch.news().fallbacks
    assert "graph break" in found and "Tensor.item()" in found
    assert "tests/compile/models.py:" in found.replace("\\", "/")
    assert "0x" not in found and "\n" not in found


def test_the_limit_is_found_and_what_runs_as_written() -> None:
    model, watch = watched(dynamic=False, recompile_limit=1)
    train_on(model, 4)
    assert watch.news().fallbacks == ()
    train_on(model, 5)
    limit, ran = watch.news().fallbacks
    assert "compile.recompile_limit = 1 is reached" in limit
    assert "expected 4, actual 5" in limit
    assert ran == "0, 1, 2 ran eagerly, 3 of 3 compiled modules"
    # Once for each finding, however often it happens.
    train_on(model, 5)
    assert not watch.news()


def test_a_backend_that_fails_silently_is_found() -> None:
    model = stack()
    told = compiled(model)
    for layer in model.children():
        # What Setpoint gives torch.compile, with a backend that has no name.
        forward: Any = type(layer).forward
        entrance = forward._torchdynamo_orig_callable
        call: Any = torch.compile(lambda x, f=entrance, m=layer: f(m, x), backend=broken)
        layer.forward = call
    watch = Watch(told, 8)
    with torch._dynamo.config.patch(suppress_errors=True):
        train_on(model, 4)
    found = watch.news().fallbacks
    assert any("this backend cannot" in text for text in found), found
    assert found[-1] == "0, 1, 2 ran eagerly, 3 of 3 compiled modules"


@pytest.mark.parametrize("count", [3, 9])
def test_what_leaves_no_trace_with_the_compiler_is_found(count: int) -> None:
    model = stack(count=count)
    watch = Watch(compiled(model), 8)
    with torch.compiler.set_stance("force_eager"):
        train_on(model, 4)
    names = "0, 1, 2" if count == 3 else "0, 1, 2 and others"
    said = f"{names} ran eagerly, {count} of {count} compiled modules"
    assert watch.news().fallbacks == (said,)
    assert not watch.news()


def test_a_graph_that_ends_at_a_bucket_is_no_fallback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DDP sums the buckets of its gradients during backward (compile.optimize_ddp)."""
    monkeypatch.setattr(torch.distributed, "_DEFAULT_FIRST_BUCKET_BYTES", 64)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    try:
        model, watch = watched(scope="model", backend="aot_eager")
        with dynamo_config().patch(optimize_ddp=True):
            buckets: Any = 1e-4  # MiB
            train_on(DistributedDataParallel(model, bucket_cap_mb=buckets), 4)
    finally:
        torch.distributed.destroy_process_group()
    assert any("DDPOptimizer" in each.reason for each in graph_breaks())
    assert watch.news().fallbacks == ()


def test_what_happened_before_is_not_told() -> None:
    train_on(watched(Printing)[0], 4)
    model, watch = watched()
    train_on(model, 4)
    assert watch.news().fallbacks == ()


def test_a_backend_that_fails() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.compile(lambda x: x + 1, backend=broken)(torch.ones(2))
    told = str(explain(caught.value))
    assert "backend='broken' raised: ValueError: this backend cannot" in told
    assert explain(ValueError("x")) is explain(RuntimeError("x")) is None


def test_the_reason_is_one_line() -> None:
    text = (
        "Cannot\n  Explanation: it is <f at 0x7f99e39058a0>\n  Hint: do not\n\n"
        '  File "a.py", line 1, in a\n  File "b.py", line 2, in b\n'
    )
    assert reason_in(text) == "Cannot it is <f> (b.py:2)"
    assert reason_in("0/0: x == 1   # if x == 1:  # a.py:1") == "0/0: x == 1"


@pytest.mark.parametrize("module", ["torch._dynamo.utils", "torch._dynamo.gone"])
def test_a_name_that_this_pytorch_lacks_is_refused_by_its_version(module: str) -> None:
    said = f"PyTorch {torch.__version__} has no {module}.no_such_name"
    with pytest.raises(SetpointError, match=re.escape(said)):
        internal(module, "no_such_name")
