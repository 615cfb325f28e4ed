"""Run by test_tensor.py in a process of its own: what inductor makes of messages of a layer.

The ranks are a fake process group, and nothing is run but what inductor does to graphs.
"""

import copy
from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch._guards import detect_fake_mode
from torch._inductor import compile_fx as inductor
from torch._inductor.fx_passes.post_grad import post_grad_passes, view_to_reshape
from torch._inductor.virtualized import V
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from setpoint.compile.compile_model import compiling
from setpoint.compile.config import Compile
from setpoint.config import resolve
from setpoint.model.build import build_transformer
from setpoint.model.config import TransformerConfig as Config
from setpoint.model.transformer import Transformer
from setpoint.parallel.tensor import divide_matrices, share_memory

MESSAGES = ("all_gather_into_tensor", "reduce_scatter_tensor")
FUSED = ("fused_all_gather_matmul", "fused_matmul_reduce_scatter")


def messages_of(model: Transformer) -> list[dict[str, int]]:
    """Messages in the graphs of a layer, forward and backward, behind inductor's passes."""
    found: list[dict[str, int]] = []

    def inner(graph: Any, inputs: Sequence[Any], **given: Any) -> Any:
        whole = copy.deepcopy(graph)
        view_to_reshape(whole)
        with V.set_fake_mode(detect_fake_mode(inputs)):
            post_grad_passes(whole, is_inference=False)
        names = [getattr(node.target, "__name__", "").split(".")[0] for node in whole.graph.nodes]
        found.append({name: names.count(name) for name in (*MESSAGES, *FUSED) if name in names})

        def run(values: list[Any]) -> Any:
            return graph(*values)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def backend(graph: Any, inputs: Sequence[Any]) -> Any:
        return inductor.compile_fx(graph, inputs, inner_compile=inner)

    with (
        compiling(resolve(Compile()), fuses_messages=True),
        torch._functorch.config.patch(enable_autograd_cache=False),
        torch.autocast("cpu", torch.bfloat16),
    ):
        layer = model.layers["0"]
        forward = torch.compile(type(layer).forward, backend=backend)
        with mock.patch.object(type(layer), "forward", forward):
            model(torch.zeros(2, 32, dtype=torch.int64)).float().sum().backward()
    return found


def main() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
    config = resolve(Config(dim=64, layers=1, heads=4, max_sequence_length=32))
    model = build_transformer(config, vocab_size=64)
    divide_matrices(model, mesh["tensor"], sequence_parallel=True, gathers_logits=False)
    # A build without CUDA has no NCCL, without which the pass does nothing.
    with mock.patch.object(dist, "is_nccl_available", lambda: True):
        share_memory(mesh["tensor"])
        forward, backward = messages_of(model)
    assert forward == {FUSED[0]: 2, FUSED[1]: 2}
    # What several products give back is added up before it is scattered.
    assert backward == {MESSAGES[1]: 2, FUSED[0]: 2}


if __name__ == "__main__":
    main()
