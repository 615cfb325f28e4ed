"""Parts of a model, and sharded ones, take what they hold of the files and no more."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from setpoint.model import load_pretrained
from setpoint.model.build import skeleton
from setpoint.model.moe.config import MoE, SigmoidTopK
from setpoint.model.pretrained.config_json import read_config
from setpoint.model.pretrained.fill import FileTensor, Weights, weights_of

from .ours import directory, model


def weights(folder: Path) -> tuple[Weights, Any]:
    """The weights of a directory, held against the whole model, and its configuration."""
    config, family = read_config(folder)
    assert config.vocab_size is not None
    whole = skeleton(config, config.vocab_size)
    return weights_of(folder, family, whole, config), config


def test_a_stage_of_a_pipeline_reads_its_own_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = directory(tmp_path / "model", layers=3)
    found, config = weights(folder)
    stage: Any = skeleton(config, config.vocab_size)
    stage.embedding = None
    del stage.layers["0"], stage.layers["1"]
    read: list[str] = []
    real = FileTensor.box
    names = {tensor: name for name, tensor in found.tensors.items()}

    def box(self: FileTensor, *given: Any) -> torch.Tensor:
        read.append(names[self])
        return real(self, *given)

    monkeypatch.setattr(FileTensor, "box", box)
    found.fill(stage, device="cpu", dtype=None)
    assert {name.split("layers.")[-1][0] for name in read if "layers." in name} == {"2"}
    assert "model.embed_tokens.weight" not in read
    monkeypatch.undo()
    whole = load_pretrained(folder).state_dict()
    for name, tensor in stage.state_dict().items():
        assert torch.equal(tensor, whole[name])


@pytest.fixture
def second_of_two_ranks() -> Iterator[None]:
    """As if this process were one of two, of which the other does not exist."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("second_of_two_ranks")
def test_a_sharded_parameter_takes_its_part(tmp_path: Path) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    moe = MoE(experts=4, expert_dim=8)
    folder = directory(tmp_path / "model", qk_norm=True, ffn_dim=None, moe=moe, merge_qkv=True)
    whole = load_pretrained(folder)
    found, config = weights(folder)
    sharded = config.build(vocab_size=config.vocab_size)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("parts",))
    for name, parameter in list(sharded.named_parameters()):
        path, _, last = name.rpartition(".")
        placed = distribute_tensor(torch.zeros_like(parameter), mesh, [Shard(0)])
        setattr(sharded.get_submodule(path), last, nn.Parameter(placed))
    found.fill(sharded, device="cpu", dtype=None)
    for name, parameter in sharded.named_parameters():
        local: Any = parameter
        wanted = whole.get_parameter(name).chunk(2)[1]
        assert torch.equal(local.to_local(), wanted), name


def test_a_buffer_that_no_file_holds_starts_where_it_always_does(tmp_path: Path) -> None:
    """The bias of a router is in the checkpoints of runs, and in no format of transformers."""
    moe = MoE(experts=4, expert_dim=8, router=SigmoidTopK())
    ours = model(ffn_dim=None, moe=moe)
    other = skeleton(ours.config, 20)
    shapes = {name: tuple(p.shape) for name, p in other.named_parameters()}
    Weights("nowhere", [], {}, {}).fill(nn.Module(), device="cpu", dtype=None)
    from safetensors.torch import save_file

    from setpoint.files.tensor_header import read_header
    from setpoint.model.pretrained.weight_names import Piece

    save_file({n: p.detach() for n, p in ours.named_parameters()}, tmp_path / "w.safetensors")
    held = read_header(tmp_path / "w.safetensors")
    tensors = {name: FileTensor(info) for name, info in held.items()}
    found = Weights(tmp_path, [Piece(n, n) for n in shapes], tensors, shapes)
    found.fill(other, device="cpu", dtype=torch.bfloat16)
    biases = [b for name, b in other.named_buffers() if name.endswith("router.bias")]
    assert len(biases) == 2
    for bias in biases:
        assert torch.equal(bias, torch.zeros(4))
        assert bias.dtype == torch.float32
