"""Weights of other systems give the logits that transformers has with them."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from setpoint.cli.main import main
from setpoint.interop.checkpoints.import_weights import open_foreign
from setpoint.model import load_pretrained

from ...support.forks import forked
from ...support.snapshots import refused
from ..conftest import Refuses
from . import written


def run(*words: object) -> None:
    assert main(["checkpoint", "import", *map(str, words)]) == 0


def agrees(folder: Path, model: Any) -> None:
    """Both our transformer and transformers itself compute what the model does."""
    expected = written.logits(model)
    ours = load_pretrained(folder)
    size = expected.abs().max().item()
    torch.testing.assert_close(written.logits(ours), expected, rtol=1e-5, atol=1e-5 * max(size, 2))
    theirs = type(model).from_pretrained(folder).eval()
    torch.testing.assert_close(written.logits(theirs), expected, rtol=0, atol=0)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_torchtitan(tmp_path: Path, family: str, fused: bool) -> None:
    model = written.decoder(family)
    source = tmp_path / "checkpoint" / "step-7"
    tensors = written.titan(model, rotates_neighbours=family == "llama")
    tensors = written.fused_titan(tensors) if fused else tensors
    written.save_distributed({**tensors, "train_state": {"step": torch.tensor(7)}}, source)
    run(source, tmp_path / "out", "--model", written.config_json(model, tmp_path / "config"))
    agrees(tmp_path / "out", model)


def test_torchtitan_on_two_ranks(tmp_path: Path) -> None:
    """Each rank has written its rows; of an odd number one has more."""
    model = written.decoder(intermediate_size=95)
    torch.save(written.titan(model), tmp_path / "tensors.pt")
    forked("tests.interop.checkpoints.sharded", str(tmp_path))
    assert len([*(tmp_path / "step-3").glob("*.distcp")]) == 2
    config = written.config_json(model, tmp_path / "config")
    run(tmp_path / "step-3", tmp_path / "out", "--model", config)
    agrees(tmp_path / "out", model)


def test_scaled_positions(tmp_path: Path, refuses: Refuses) -> None:
    """Of Llama 3.1: litgpt says how, GGUF has the frequencies alone and needs --model."""
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 16}  # fmt: skip
    model = written.decoder(rope_scaling=scaling)
    text = written.lit_config(model) + (
        "rope_adjustments:\n  factor: 8.0\n  low_freq_factor: 1.0\n  high_freq_factor: 4.0\n"
        "  original_max_seq_len: 16\n"
    )
    torch.save(written.lit(model), tmp_path / "lit_model.pth")
    (tmp_path / "model_config.yaml").write_text(text)
    run(tmp_path / "lit_model.pth", tmp_path / "lit")
    agrees(tmp_path / "lit", model)
    tensors = {**written.gguf_tensors(model), "rope_freqs.weight": torch.ones(8)}
    content = {name: written.plain(tensor) for name, tensor in tensors.items()}
    path = written.write_gguf(tmp_path / "m.gguf", written.gguf_metadata(model), content)
    refuses("checkpoint", "import", path, tmp_path / "out")
    run(path, tmp_path / "out", "--model", written.config_json(model, tmp_path / "config"))
    agrees(tmp_path / "out", model)


def test_experts_of_torchtitan(tmp_path: Path) -> None:
    model = written.decoder("qwen3_moe", num_experts=4, num_experts_per_tok=2,
                            moe_intermediate_size=32, norm_topk_prob=True)  # fmt: skip
    tensors = written.titan(model, rotates_neighbours=False)
    source = written.save_distributed(tensors, tmp_path / "step-1")
    run(source, tmp_path / "out", "--model", written.config_json(model, tmp_path / "config"))
    agrees(tmp_path / "out", model)


@pytest.mark.parametrize("engine", [True, False])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_megatron(tmp_path: Path, family: str, engine: bool) -> None:
    model = written.decoder(family)
    folder = tmp_path / "run" / "iter_0000012"
    written.save_distributed(written.megatron(model, engine), folder)
    (tmp_path / "run" / "latest_checkpointed_iteration.txt").write_text("12")
    if engine:  # Megatron-LM keeps the plans of saving
        metadata = pickle.loads((folder / ".metadata").read_bytes())
        plan = DefaultSavePlanner()
        plan.set_up_planner(written.megatron(model), None, is_coordinator=True)
        metadata.all_local_plans = [plan.create_local_plan()]
        (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    config = written.config_json(model, tmp_path / "config")
    run(tmp_path / "run", tmp_path / "out", "--model", config)
    agrees(tmp_path / "out", model)


EXPERTS = {
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True,
                  "moe_intermediate_size": written.FFN},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
}  # fmt: skip


@pytest.mark.parametrize("family", EXPERTS)
def test_experts_of_megatron(tmp_path: Path, family: str) -> None:
    model = written.decoder(family, **EXPERTS[family])
    written.save_distributed(written.megatron(model), tmp_path / "iter_0000003")
    config = written.config_json(model, tmp_path / "config")
    run(tmp_path / "iter_0000003", tmp_path / "out", "--model", config)
    agrees(tmp_path / "out", model)


@pytest.mark.parametrize("family", EXPERTS)
def test_experts_of_gguf(tmp_path: Path, family: str) -> None:
    model = written.decoder(family, **EXPERTS[family])
    tensors = written.gguf_tensors(model, family == "mixtral")
    content = {name: written.plain(tensor) for name, tensor in tensors.items()}
    path = written.write_gguf(tmp_path / "m.gguf", written.gguf_metadata(model), content)
    run(path, tmp_path / "out")
    agrees(tmp_path / "out", model)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_torchtune(tmp_path: Path, family: str) -> None:
    model = written.decoder(family)
    folder = written.config_json(model, tmp_path / "epoch_0")  # which torchtune copies there
    torch.save(written.tune(model, family == "llama"), folder / "torchtune_model.pt")
    run(folder, tmp_path / "out")
    agrees(tmp_path / "out", model)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_litgpt(tmp_path: Path, family: str, old: bool) -> None:
    model = written.decoder(family)
    folder = tmp_path / "lit"
    folder.mkdir()
    tensors = written.lit(model, old)
    torch.save({"model": tensors} if old else tensors, folder / "lit_model.pth")
    (folder / "model_config.yaml").write_text(written.lit_config(model))
    run(folder, tmp_path / "out")
    agrees(tmp_path / "out", model)


@pytest.mark.parametrize("family", ["mistral", "gemma", "gemma2", "phi3", "mixtral"])
def test_litgpt_with_the_config_of_hugging_face(
    tmp_path: Path, family: str, refuses: Refuses
) -> None:
    """Of models that model_config.yaml is not read for; downloads have a config.json beside it."""
    more = {"phi3": {"pad_token_id": 0}, "mixtral": {"num_local_experts": 4}}.get(family, {})
    model = written.decoder(family, **more)
    folder = written.config_json(model, tmp_path / "lit")
    torch.save(written.lit(model), folder / "lit_model.pth")
    run(folder, tmp_path / "out")
    agrees(tmp_path / "out", model)
    (folder / "config.json").unlink()
    text = written.lit_config(model).replace("norm_class_name: RMSNorm", "norm_class_name: Other")
    (folder / "model_config.yaml").write_text(text)
    refuses("checkpoint", "import", folder, tmp_path / "other")


@pytest.mark.parametrize("bias", [True, False])
def test_nanogpt(tmp_path: Path, bias: bool, capsys: pytest.CaptureFixture[str]) -> None:
    model = written.gpt2(activation_function="gelu")
    if not bias:
        for name, parameter in model.named_parameters():
            if name.endswith(".bias"):
                parameter.data.zero_()
    content = {
        "model": {f"_orig_mod.{n}": t for n, t in written.nano(model, bias).items()},
        "model_args": written.nano_args(bias),
        "iter_num": 5,
        "best_val_loss": torch.tensor(2.5),
        "config": {"learning_rate": 6e-4, "device": "cuda"},
    }
    torch.save(content, tmp_path / "ckpt.pt")
    run(tmp_path / "ckpt.pt", tmp_path / "out")
    agrees(tmp_path / "out", model)
    assert ("zero biases are added" in capsys.readouterr().err) is not bias


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_gguf(tmp_path: Path, family: str, tied: bool) -> None:
    model = written.decoder(family, tie_word_embeddings=tied)
    tensors = written.gguf_tensors(model, family == "llama")
    content = {name: written.plain(tensor) for name, tensor in tensors.items()}
    path = written.write_gguf(tmp_path / "m.gguf", written.gguf_metadata(model), content)
    run(path, tmp_path / "out")
    agrees(tmp_path / "out", model)


def test_gguf_with_quantized_matrices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = written.decoder()
    tensors = written.gguf_tensors(model)
    content: dict[str, tuple[int, tuple[int, ...], bytes]] = {}
    for name, tensor in tensors.items():
        if tensor.ndim == 2:
            content[name], dense = written.q8_0(tensor)
            tensor.copy_(dense)
        else:
            content[name] = written.plain(tensor)
    path = written.write_gguf(tmp_path / "m.gguf", written.gguf_metadata(model), content)
    run(path, tmp_path / "out")
    assert "Q8_0" in capsys.readouterr().err
    for part in ("embed_tokens", "layers.1.mlp.down_proj"):  # whose rows stay where they are
        theirs = {"embed_tokens": "token_embd", "layers.1.mlp.down_proj": "blk.1.ffn_down"}[part]
        weight: Tensor = model.get_parameter(f"model.{part}.weight")
        weight.data.copy_(tensors[f"{theirs}.weight"])
    from safetensors.torch import load_file

    saved = load_file(tmp_path / "out" / "model.safetensors")
    for part in ("embed_tokens", "layers.1.mlp.down_proj"):
        assert torch.equal(
            saved[f"model.{part}.weight"], model.get_parameter(f"model.{part}.weight")
        )
    rows = saved["model.layers.0.self_attn.q_proj.weight"]
    expected = tensors["blk.0.attn_q.weight"]
    assert torch.equal(written.neighbours(rows, written.HEADS), expected)


def test_a_model_with_other_heads_is_refused(tmp_path: Path) -> None:
    model = written.gpt2(activation_function="gelu")
    content = {"model": written.nano(model, True), "model_args": written.nano_args(True)}
    torch.save(content, tmp_path / "ckpt.pt")
    same = written.config_json(model, tmp_path / "same")
    open_foreign(str(tmp_path / "ckpt.pt"), str(same))
    other = tmp_path / "same" / "config.json"
    keys = json.loads(other.read_text())
    other.write_text(json.dumps({**keys, "n_head": keys["n_head"] * 2}))
    with refused():
        open_foreign(str(tmp_path / "ckpt.pt"), str(same))
