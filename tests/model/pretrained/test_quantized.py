"""Weights that files hold quantized, against dense ones by the formats' definitions."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file

from setpoint.adapter.config import LoRA
from setpoint.checkpoint.folder import list_checkpoints
from setpoint.checkpoint.loading import load_directory
from setpoint.config import RunError, resolve
from setpoint.infer.inference import infer
from setpoint.infer.loaded_model import add_adapter
from setpoint.infer.tasks import ExportTask
from setpoint.model import config_from_pretrained, load_pretrained, save_pretrained
from setpoint.model.build import skeleton
from setpoint.model.huggingface.builder import check_weights
from setpoint.model.moe.config import MoE
from setpoint.model.pretrained import fill
from setpoint.model.pretrained.config_json import check_directory, read_config
from setpoint.model.pretrained.fill import FileTensor, TensorReader
from setpoint.model.pretrained.load import start_from
from setpoint.model.pretrained.tensor_files import dense_tensors
from setpoint.shapes.placed import as_placed
from setpoint.shapes.stored import stored_weights
from setpoint.train.run import train

from ...infer.small import inference
from ...support.forks import forked
from ...support.snapshots import refused
from ...train.small import assert_same_run, small_job
from .ours import as_transformers, change_config, directory, rewrite
from .quantized_files import FORMATS, KEPT, gpt_oss, quantize_files
from .theirs import logits

SIZES: dict[str, Any] = {"dim": 64, "heads": 4, "ffn_dim": 96}


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a few rows dense at a time."""
    monkeypatch.setattr(fill, "AT_ONCE", 1000)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.usefixtures("small_pieces")
def test_dense_weights_are_those_of_the_format(name: str, tmp_path: Path) -> None:
    folder = directory(tmp_path / "quantized", **SIZES)
    dense = quantize_files(folder, FORMATS[name])
    infos = dense_tensors(folder)
    assert {n: info.shape for n, info in infos.items()} == {
        n: tuple(tensor.shape) for n, tensor in dense.items()
    }
    for own, tensor in dense.items():
        stored = FileTensor(infos[own])
        assert torch.equal(stored.whole(), tensor), own
        if tensor.ndim == 2:  # as ranks divide it
            rows, columns = (5, tensor.shape[0] - 3), (tensor.shape[1] // 2, tensor.shape[1])
            box = TensorReader().box(stored, [rows, columns])
            assert torch.equal(box, tensor[slice(*rows), slice(*columns)])


@pytest.mark.parametrize("name", FORMATS)
def test_models_are_those_of_the_dense_weights(name: str, tmp_path: Path) -> None:
    """Ours, and that of transformers, whose exports are dense and say so."""
    folder = directory(tmp_path / "quantized", **SIZES)
    dense = quantize_files(folder, FORMATS[name])
    plain = directory(tmp_path / "plain", **SIZES)
    save_file(dense, plain / "model.safetensors", {"format": "pt"})
    change_config(plain, dtype="bfloat16")
    ours, expected = load_pretrained(folder), load_pretrained(plain)
    for own, tensor in expected.state_dict().items():
        assert torch.equal(ours.state_dict()[own], tensor)
    assert config_from_pretrained(folder) == config_from_pretrained(plain)
    config = as_transformers(folder)
    theirs: Any = config.build(vocab_size=20)
    start_from(config, theirs)
    state = theirs.model.state_dict()
    for own, tensor in dense.items():
        assert torch.equal(state[own], tensor.float()), own
    for number, model in enumerate((ours, theirs)):
        exported = save_pretrained(model, tmp_path / str(number), dtype="bf16")
        assert "quantization_config" not in json.loads((exported / "config.json").read_text())
        for own, tensor in load_file(exported / "model.safetensors").items():
            assert torch.equal(tensor, dense[own]), own


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    folder = directory(tmp_path / "model", **SIZES)
    quantize_files(folder, FORMATS["fp8"])
    name = "model.layers.0.mlp.up_proj.weight"
    scales = load_file(folder / "model.safetensors")[f"{name}_scale_inv"]
    rewrite(folder, {f"{name}_scale_inv": scales[:2]})
    with refused(RunError):
        load_pretrained(folder)
    rewrite(folder, {f"{name}_scale_inv": None})  # type: ignore[dict-item]
    with refused(RunError):
        load_pretrained(folder)
    for keys in (
        {"quant_method": "gptq"},
        {"quant_method": "fp8", "fmt": "e3m4"},
        "fp8",
        {"quant_method": "compressed-tensors", "format": "marlin-24"},
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"group_0": {"weights": {"num_bits": 3}}},
        },
        {"quant_method": "fp8", "weight_block_size": [0, 128]},
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"},
    ):
        change_config(folder, quantization_config=keys)
        with refused():
            config_from_pretrained(folder)
        with refused():
            dense_tensors(folder)


def test_check_refuses_what_train_would(tmp_path: Path) -> None:
    """By the headers of files: parts that are missing or left over, and what no file describes."""
    name, beyond = (
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.9.mlp.up_proj.weight_scale_inv",
    )
    none: Any = None
    edits: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "weight": ({name: none, f"{name}_scale_inv": none}, {}),
        "scales": ({beyond: torch.ones(3, 4)}, {}),
        "keys": ({}, {"quantization_config": None}),
        "fmt": ({}, {"quantization_config": {"quant_method": "fp8", "fmt": "e5m2"}}),
    }
    for case, (tensors, keys) in edits.items():
        folder = directory(tmp_path / case, **SIZES)
        quantize_files(folder, FORMATS["fp8"])
        rewrite(folder, tensors)
        change_config(folder, **keys)
        section = resolve(config_from_pretrained(folder).evolve(pretrained=str(folder)))
        (problem,) = check_directory(section)
        with refused() as caught:
            load_pretrained(folder)
        assert problem.message in " ".join(str(caught.value).split()), case
    theirs = as_transformers(tmp_path / "weight")
    assert not [*check_directory(theirs)]
    (found,) = check_weights(theirs)
    assert (
        found.message
        == f"does not fit the model, so nothing was loaded: 1 tensor is missing: {name}"
    )
    with refused():
        start_from(theirs, theirs.build(vocab_size=20))


def test_scales_that_make_no_weights_are_named(tmp_path: Path) -> None:
    """Where they are made dense, and where an adapter's base keeps them."""
    folder = directory(tmp_path, dim=64, heads=4, ffn_dim=64)
    quantize_files(folder, KEPT["fp8"])
    name = "model.layers.1.mlp.up_proj.weight_scale_inv"
    sound = load_file(folder / "model.safetensors")[name]
    config = resolve(read_config(folder)[0].evolve(pretrained=str(folder)))
    for value in (float("nan"), 0.0, -1.0):
        scales = sound.clone()
        scales[1, 2] = value
        rewrite(folder, {name: scales})
        for section in (None, SECTIONS["fp8"]):
            model: Any = skeleton(config, 20)
            adapter = resolve(LoRA(rank=2, quantize=cast(Any, section)))
            add_adapter(adapter, config, model)
            with refused(RunError):
                start_from(config, model, "cpu", torch.float32, skeleton(config, 20))


SECTIONS: dict[str, dict[str, Any]] = {
    "fp8": {"type": "fp8", "group_size": 16},
    "nvfp4": {"type": "nvfp4"},
    "modelopt": {"type": "nvfp4"},
    "mxfp4": {"type": "mxfp4"},
    "nf4": {"type": "nf4"},
    "nf4 with plain scales": {"type": "nf4", "double": False},
}


@pytest.mark.parametrize("name", KEPT)
def test_bases_beneath_adapters_keep_their_bytes(name: str, tmp_path: Path) -> None:
    """Codes of linear layers and experts are those of the files, and stand for the same."""
    moe = MoE(experts=3, expert_dim=64, top_k=2)
    folder = directory(tmp_path, dim=128, heads=4, ffn_dim=None, moe=moe, qk_norm=True)
    dense = quantize_files(folder, KEPT[name])
    held = load_file(folder / "model.safetensors")
    config, _ = read_config(folder)
    config = resolve(config.evolve(pretrained=str(folder)))
    model: Any = skeleton(config, 20)
    adapter = resolve(LoRA(rank=2, quantize=cast(Any, SECTIONS[name])))
    add_adapter(adapter, config, model)
    start_from(config, model, "cpu", torch.float32, skeleton(config, 20))
    kept = dict(stored_weights(model))
    assert len(kept) == 2 * (4 + 3)
    for own, stored in kept.items():
        layer, _, part = own.removesuffix(".weight").partition("layers.")[2].partition(".")
        names = theirs_of(f"layers.{layer}.{part}", 3)
        matrices = stored.dense().mT if "experts" in own else stored.dense()[None]
        codes = stored.codes if "experts" in own else stored.codes[None]
        for index, base in enumerate(names):
            file = next(held[n] for n in (f"{base}.weight_packed", f"{base}.weight") if n in held)
            assert torch.equal(codes[index].flatten(), file.view(torch.uint8).flatten()), own
            assert torch.equal(matrices[index].bfloat16(), dense[f"{base}.weight"]), own


@pytest.mark.slow
def test_ranks_start_from_quantized_files_as_one() -> None:
    forked("tests.model.pretrained.quantized_ranks")


def test_a_run_on_a_quantized_base_resumes_and_is_exported_dense(tmp_path: Path) -> None:
    folder = directory(tmp_path / "files", **{**SIZES, "ffn_dim": 64, "vocab_size": 257})
    dense = quantize_files(folder, KEPT["fp8"])
    flags = (
        "model.dim=64", "model.heads=4", "model.kv_heads=4", "model.ffn_dim=64", "model.layers=2",
        "model.dropout=0", "model.max_sequence_length=32", "batch.sequence_length=16",
        "evaluation=null", f"model.pretrained={folder}", "checkpoint.save_frozen=false",
        "adapter={type: lora, rank: 2, b_std: 0.1, quantize: {type: fp8, group_size: 16}}",
        "checkpoint.every=2 steps", "schedule=constant",
    )  # fmt: skip
    whole = train(
        small_job(tmp_path, *flags, "duration=4 steps"), directory=tmp_path / "whole"
    ).directory
    train(small_job(tmp_path, *flags, "duration=2 steps"), directory=tmp_path / "cut")
    train(small_job(tmp_path, *flags, "duration=4 steps"), directory=tmp_path / "cut")
    assert_same_run(whole, tmp_path / "cut")
    infer(inference(whole, export=ExportTask(path=tmp_path / "merged")))
    exported = load_file(tmp_path / "merged" / "model.safetensors")
    assert "quantization_config" not in (tmp_path / "merged" / "config.json").read_text()
    name = "model.layers.0.mlp.up_proj.weight"
    *_, newest = list_checkpoints(whole / "checkpoints").values()
    own = load_directory(newest).tensors["model"]
    path = "layers.0.feed_forward.up.adapter"
    a, b = (as_placed(own[f"{path}.{each}"], torch.empty(0)) for each in "ab")
    expected = dense[name].float() + b @ a * 8
    torch.testing.assert_close(exported[name].float(), expected, rtol=0.01, atol=1e-3)
    assert not torch.allclose(exported[name].float(), dense[name].float(), rtol=0.01, atol=1e-3)


NAMES = {
    "attention.query": "self_attn.q_proj", "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj", "attention.output": "self_attn.o_proj",
}  # fmt: skip


def theirs_of(ours: str, experts: int) -> list[str]:
    layer, part = ours[: len("layers.0")], ours[len("layers.0.") :]
    if ".experts." in part:
        own = part.rpartition(".")[2]
        return [f"model.{layer}.mlp.experts.{e}.{own}_proj" for e in range(experts)]
    return [f"model.{layer}.{NAMES[part]}"]


@pytest.mark.usefixtures("small_pieces")
def test_a_transformer_of_ours_reads_files_of_gpt_oss(tmp_path: Path) -> None:
    """With the logits of transformers for the weights that its own integration makes of them."""
    from transformers import AutoModelForCausalLM
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 16}
    folder = gpt_oss(tmp_path / "mxfp4", {**sizes, "num_experts_per_tok": 2})
    ours = load_pretrained(folder, dtype="fp32")
    held = load_file(folder / "model.safetensors")
    dense = {n: t for n, t in held.items() if not n.endswith(("_blocks", "_scales"))}
    for name in held:
        if name.endswith("_blocks"):
            base = name.removesuffix("_blocks")
            dense[base] = convert_moe_packed_tensors(held[name], held[f"{base}_scales"])
    plain = tmp_path / "dense"
    plain.mkdir()
    save_file({n: t.contiguous() for n, t in dense.items()}, plain / "model.safetensors")
    keys = json.loads((folder / "config.json").read_text())
    del keys["quantization_config"]
    (plain / "config.json").write_text(json.dumps(keys))
    theirs = AutoModelForCausalLM.from_pretrained(
        plain, dtype=torch.float32, attn_implementation="eager"
    )
    torch.testing.assert_close(logits(ours), logits(theirs), rtol=1e-5, atol=1e-5)
    section = as_transformers(folder)
    model: Any = section.build(vocab_size=20)
    start_from(section, model)
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(model.model.state_dict()[name], tensor), name
    draft = config_from_pretrained(folder).evolve()
    draft.pretrained, draft.moe.packed = str(folder), False
    apart = resolve(draft)
    with refused():
        start_from(apart, apart.build(vocab_size=apart.vocab_size))
    scales = "model.layers.0.mlp.experts.down_proj_scales"
    rewrite(folder, {scales: torch.zeros(1, dtype=torch.uint8)})
    with refused():
        start_from(section, model)
