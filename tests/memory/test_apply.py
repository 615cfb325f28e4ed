import torch
from torch import nn

from setpoint.config import resolve
from setpoint.memory.apply import save_activations, save_state
from setpoint.memory.config import ActivationOffload, Full, Memory, OptimizerOffload
from setpoint.model.layers import layers_of
from setpoint.units import ByteSize

from ..model.small import small_model
from .passes import assert_same, run

CPU = torch.device("cpu")


def test_nothing_is_asked_for() -> None:
    model, optimizer = small_model(), torch.optim.AdamW([nn.Parameter(torch.ones(3))])
    before = [type(module) for module in model.modules()]
    save_activations(resolve(Memory()), model, layers_of(model), CPU)
    save_state(resolve(Memory()), optimizer, CPU)
    assert [type(module) for module in model.modules()] == before
    assert "forward" not in vars(model)
    assert "step" not in vars(optimizer)


def test_all_is_asked_for() -> None:
    config = resolve(
        Memory(
            activation_checkpointing=Full(),
            activation_offload=ActivationOffload(smallest=ByteSize(0)),
            optimizer_offload=OptimizerOffload(),
        )
    )
    model = small_model()
    save_activations(config, model, layers_of(model), CPU)
    saved = model.forward.args[0]  # pyright: ignore[reportFunctionMemberAccess]
    assert_same(run(model, metered=False), run(small_model(), metered=False))
    # The layers' inputs travelled, and what is within them was not there.
    assert saved.last is not None
    optimizer = torch.optim.AdamW(model.parameters())
    save_state(config, optimizer, CPU)
    assert "step" in vars(optimizer)
