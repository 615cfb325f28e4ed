"""Checkpoints that are hostile, damaged or of other models are refused in words."""

import copy
import functools
import pickle
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from setpoint.cli.main import main
from setpoint.config import SetpointError
from setpoint.interop.checkpoints.import_weights import import_weights, open_foreign

from ..conftest import Refuses
from . import written


class Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self.path,)


@pytest.fixture
def refused(refuses: Refuses) -> Refuses:
    return functools.partial(refuses, "checkpoint", "import")


def test_pickles_that_run_code(tmp_path: Path, refused: Refuses) -> None:
    made = tmp_path / "made"
    hostile = {"model": {"w": torch.ones(1)}, "model_args": {}, "config": Hostile(made)}
    torch.save(hostile, tmp_path / "ckpt.pt")
    out = tmp_path / "out"
    refused(tmp_path / "ckpt.pt", out)
    for name in ("lit_model.pth", "model.pt"):
        torch.save({"x": Hostile(made)}, tmp_path / name)
        refused(f"litgpt:{tmp_path / name}", out)
    folder = written.save_distributed({"tok_embeddings.weight": torch.ones(2)}, tmp_path / "dcp")
    for content in (Hostile(made), {"state_dict_metadata": Hostile(made)}):
        (folder / ".metadata").write_bytes(pickle.dumps(content))
        for name in ("", "torchtitan:", "megatron:"):
            refused(f"{name}{folder}", out)
    assert not made.exists()
    assert not out.exists()


def test_tensors_of_distributed_checkpoints_that_run_code(tmp_path: Path, refused: Refuses) -> None:
    model = written.decoder()
    folder = written.save_distributed(written.titan(model), tmp_path / "dcp")
    path = folder / "__0_0.distcp"
    content = pickle.dumps(Hostile(tmp_path / "made"), protocol=2)
    path.write_bytes(content + path.read_bytes()[len(content) :])  # in place of the first tensor
    config = written.config_json(model, tmp_path / "config")
    refused(folder, tmp_path / "out", "--model", config)
    assert not (tmp_path / "made").exists()


def test_advice_to_read_unsafely_is_not_passed_on(tmp_path: Path, refused: Refuses) -> None:
    (tmp_path / "lit_model.pth").write_text("print('a program, and no pickle')")
    refused(f"litgpt:{tmp_path / 'lit_model.pth'}", tmp_path / "out")


def test_damage(tmp_path: Path, refused: Refuses, capsys: pytest.CaptureFixture[str]) -> None:
    model = written.decoder()
    config = written.config_json(model, tmp_path / "config")
    out = (tmp_path / "out", "--model", config)
    folder = written.save_distributed(written.titan(model), tmp_path / "dcp")
    whole = (folder / "__0_0.distcp").read_bytes()
    (folder / "__0_0.distcp").write_bytes(whole[: len(whole) // 2])
    assert main(["checkpoint", "import", str(folder), *map(str, out)]) == 1
    assert "its tensors cannot be read" in capsys.readouterr().err
    (folder / "__0_0.distcp").unlink()
    refused(folder, *out)
    metadata = (folder / ".metadata").read_bytes()
    for length in (0, 3, len(metadata) // 2, len(metadata) - 2):
        (folder / ".metadata").write_bytes(metadata[:length])
        refused(folder, *out)
    path = tmp_path / "model.pt"
    torch.save(written.tune(model), path)
    content = path.read_bytes()
    for cut in (0, 100, len(content) // 2):
        path.write_bytes(content[:cut])
        assert main(["checkpoint", "import", f"torchtune:{path}", *map(str, out)]) in (1, 2)
        assert "is damaged, or was not written by torch.save" in capsys.readouterr().err


def test_misfits_name_tensor_file_and_both_shapes(tmp_path: Path, refused: Refuses) -> None:
    model = written.decoder()
    other = written.config_json(written.decoder(intermediate_size=80), tmp_path / "other")
    path = tmp_path / "model.pt"
    torch.save(written.tune(model), path)
    refused(path, tmp_path / "out", "--model", other)
    short = {n: t for n, t in written.tune(model).items() if n != "layers.1.sa_norm.scale"}
    torch.save(short | {"extra": torch.ones(2)}, path)
    config = written.config_json(model, tmp_path / "config")
    refused(path, tmp_path / "out", "--model", config)
    assert not (tmp_path / "out").exists()


def test_what_is_not_known(tmp_path: Path, refused: Refuses) -> None:
    out = tmp_path / "out"
    model = written.decoder()
    torch.save(written.tune(model), tmp_path / "model.pt")
    refused(tmp_path / "model.pt", out)
    refused(f"torchtune:{tmp_path / 'none.pt'}", out)
    refused(f"torchtun:{tmp_path / 'model.pt'}", out)
    torch.save({"a": torch.ones(1)}, tmp_path / "a.pt")
    refused(tmp_path / "a.pt", out)
    folder = tmp_path / "outputs"
    for step in (90, 100):
        (folder / f"step-{step}").mkdir(parents=True)
        torch.save(written.tune(model), folder / f"step-{step}" / "model.pt")
    refused(folder, out)
    cut = written.save_distributed(written.titan(model), folder / "step-110") / ".metadata"
    cut.write_bytes(cut.read_bytes()[:100])
    refused(folder, out)
    torch.save({"a": torch.ones(1)}, folder / "pytorch_model.bin")
    refused(folder / "pytorch_model.bin", out)
    (folder / "hf").mkdir()
    (folder / "hf" / "config.json").write_text("{}")
    (folder / "hf" / "pytorch_model.bin").write_bytes(pickle.dumps(1))
    refused(folder / "hf", out)
    save_file({"a": torch.ones(1)}, folder / "hf" / "model.safetensors")
    (folder / "hf" / "gguf").mkdir()
    (folder / "hf" / "gguf" / "model.gguf").write_bytes(b"GGUF")
    refused(folder / "hf", out)
    (tmp_path / "empty").mkdir()
    for system in ("nanogpt", "litgpt", "torchtune", "torchtitan", "megatron", "gguf"):
        refused(f"{system}:{tmp_path / 'empty'}", out)
        refused(f"{system}:{tmp_path / 'a.pt'}", out)
    arguments = {**written.nano_args(), "use_rmsnorm": True}
    torch.save({"model": {"w": torch.ones(1)}, "model_args": arguments}, tmp_path / "ckpt.pt")
    refused(tmp_path / "ckpt.pt", out)
    family = written.config_json(written.decoder("gemma"), tmp_path / "gemma")
    refused(tmp_path / "model.pt", out, "--model", family)


def test_other_models_than_the_job(
    tmp_path: Path, refused: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = written.gpt2(activation_function="gelu")
    content = {"model": written.nano(model), "model_args": written.nano_args(), "iter_num": 5}
    torch.save(content, "ckpt.pt")
    refused("ckpt.pt", "out", "--job", "tiny", "--model.dim", "64")
    sizes = ["--model.dim=64", "--model.layers=2", "--model.heads=4", "--model.kv_heads=4",
             "--model.ffn_dim=256", "--model.activation=gelu", "--model.ffn_bias=true",
             "--model.qkv_bias=true", "--model.attention_output_bias=true", "--model.norm",
             "{type = layer_norm, bias = true}", "--model.positions=learned",
             "--model.max_sequence_length=32", "--model.norm_eps=1e-5",
             "--batch.sequence_length=32"]  # fmt: skip
    refused("ckpt.pt", "out", "--job", "tiny", *sizes)
    refused("ckpt.pt", "out", "--model.dim", "64")


def test_weights_of_a_job_that_are_of_another_system(
    tmp_path: Path, refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"a": torch.ones(1)}, "model.pt")
    written.save_distributed({"a": torch.ones(1)}, tmp_path / "step-1")
    for name in ("model.pt", "step-1"):
        refuses("train", "tiny", "--model.pretrained", name)


ODD: tuple[Any, ...] = (None, True, -1, 10**30, 1.5, "x", [], {}, [1], {"a": 1}, torch.ones(2),
                        torch.zeros(0), {1: {"exp_avg": 3}}, [{"params": [0]}])  # fmt: skip


def holders(value: Any) -> list[tuple[Any, Any]]:
    """The dicts and lists in a nested value, each once for each of its keys."""
    if not isinstance(value, dict | list):
        return []
    pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
    inner = [found for _, item in pairs for found in holders(item)]
    return [(value, key) for key, _ in pairs] + inner


def test_wrong_values_anywhere(tmp_path: Path) -> None:
    """A file in which some value is another gives a checkpoint or a sentence."""
    model = written.gpt2(activation_function="gelu")
    tensors = written.nano(model)
    trained = [tensor for name, tensor in tensors.items() if name != "lm_head.weight"]
    groups = [[t for t in trained if t.ndim >= 2], [t for t in trained if t.ndim < 2]]
    optimizer = torch.optim.AdamW([{"params": group} for group in groups])
    for tensor in tensors.values():
        tensor.grad = torch.ones_like(tensor)
    optimizer.step()
    content = {
        "model": tensors,
        "optimizer": optimizer.state_dict(),
        "model_args": written.nano_args(),
        "iter_num": 5,
    }
    random = Random(1)
    for number in range(50):
        changed = copy.deepcopy(content)
        holder, key = random.choice(holders(changed))
        holder[key] = random.choice(ODD)
        torch.save(changed, tmp_path / "ckpt.pt")
        try:
            foreign = open_foreign(f"nanogpt:{tmp_path / 'ckpt.pt'}", None, optimizer=True)
            import_weights(foreign, tmp_path / f"out{number}")
        except SetpointError as error:
            assert len(str(error)) > 20
