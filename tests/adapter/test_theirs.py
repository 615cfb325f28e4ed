"""Models of transformers on bases that files hold quantized: kept, they are those made dense."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from setpoint.adapter.config import FP8, MXFP4, NF4, NVFP4, Int8, LoRA, Quantization
from setpoint.adapter.low_rank import adapter_parameters, merge_all
from setpoint.adapter.targets import LEFT_DENSE, ROUNDED_AGAIN, form_problems
from setpoint.config import Caution, resolve
from setpoint.infer.loaded_model import add_adapter
from setpoint.model.pretrained.config_json import read_config
from setpoint.model.pretrained.load import start_from
from setpoint.model.pretrained.tensor_files import dense_tensors
from setpoint.shapes.parameter import Form
from setpoint.shapes.stored import stored_weights
from setpoint.train.rules.model_rules import base_problems, built_adapter_problems

from ..model.pretrained.ours import as_transformers, change_config, rewrite
from ..model.pretrained.quantized_files import FORMATS, KEPT, fp8_squares, gpt_oss, quantize_files
from ..model.pretrained.theirs import make
from ..support.snapshots import refused
from ..train.small import small_job

WIDTHS: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 64, "head_dim": 16, "num_hidden_layers": 1,
    "num_experts_per_tok": 2, "vocab_size": 257,
}  # fmt: skip


def qwen3_moe(folder: Path, form: str) -> Path:
    """Linear layers and experts, each of which is a module of its own in the files."""
    make("qwen3_moe", {**WIDTHS, "num_experts": 3, "moe_intermediate_size": 64}).save_pretrained(
        folder
    )
    quantize_files(folder, (FORMATS | KEPT)[form])
    change_config(folder, dtype="float32")
    return folder


def started(folder: Path, quantize: Quantization | None) -> Any:
    """A model with an adapter, whose parameters are the same in all."""
    section = as_transformers(folder)
    model: Any = section.build(vocab_size=20)
    start_from(section, model)
    add_adapter(resolve(LoRA(rank=2, quantize=quantize)), section, model)
    generator = torch.Generator().manual_seed(3)
    for _, parameter in sorted(adapter_parameters(model).items()):
        parameter.data = 0.05 * torch.randn(parameter.shape, generator=generator)
    return model


def loss_and_gradients(model: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    tokens = torch.arange(24).view(2, 12) % 20
    found = model(tokens)
    logits = getattr(found, "result", found)
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    return loss.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


CASES = {"gpt_oss": MXFP4(exclude=("self_attn",)), "fp8": FP8(group_size=16), "nvfp4": NVFP4()}


@pytest.mark.parametrize("name", CASES)
def test_kept_numbers_compute_what_dense_ones_do(name: str, tmp_path: Path) -> None:
    """Losses and gradients, bytes of files, memory, and merged weights."""
    folder = gpt_oss(tmp_path, WIDTHS) if name == "gpt_oss" else qwen3_moe(tmp_path, name)
    kept, dense = started(folder, resolve(CASES[name])), started(folder, None)
    (loss, grads), (expected, others) = loss_and_gradients(kept), loss_and_gradients(dense)
    assert torch.equal(loss, expected) and grads.keys() == others.keys()
    for own, grad in others.items():
        torch.testing.assert_close(grads[own], grad, rtol=1e-5, atol=1e-6 * float(grad.abs().max()))
    stored = dict(stored_weights(kept))
    assert {"gate_up_proj", "down_proj"} <= {own.rpartition(".")[2] for own in stored}
    held = load_file(folder / "model.safetensors")
    files = [t for n, t in held.items() if n.endswith(("_blocks", "weight_packed")) or (
        n.endswith("_proj.weight") and t.element_size() == 1)]  # fmt: skip
    codes = torch.cat([each.codes.flatten() for each in stored.values()])
    assert torch.equal(
        codes.sort().values, torch.cat([t.view(torch.uint8).flatten() for t in files]).sort().values
    )
    size = [sum(p.nbytes for p in model.parameters()) for model in (kept, dense)]
    assert size[0] < 0.6 * size[1]
    with torch.no_grad():
        merge_all(kept)
        merge_all(dense)
    assert kept.state_dict().keys() == dense.state_dict().keys()
    for own, tensor in dense.state_dict().items():
        assert torch.equal(kept.state_dict()[own], tensor), own
    assert [type(m).__mro__ for m in kept.modules()] == [type(m).__mro__ for m in dense.modules()]


def test_matrices_whose_scales_differ_are_not_kept_as_one(tmp_path: Path) -> None:
    folder = qwen3_moe(tmp_path, "nvfp4")
    name = "model.layers.0.mlp.experts.1.up_proj.weight_global_scale"
    rewrite(folder, {name: torch.tensor([900.0])})
    said = "gate_up_proj consists of 2 matrices in the files, whose scales"
    with refused():
        started(folder, resolve(NVFP4()))
    job = small_job(
        tmp_path, "model.type=huggingface", f"model.pretrained={folder}",
        "adapter={type: lora, rank: 2, quantize: nvfp4}",
    )  # fmt: skip
    (found,) = built_adapter_problems(job)
    assert said in found.message
    started(folder, resolve(FP8(group_size=16)))  # which rounds them once more


@pytest.mark.parametrize(
    ("config", "files", "path", "valid"),
    [
        (FP8(), "fp8", "group_size", ("16",)),
        (NF4(double=False), "nf4", "double", ("true",)),
        (NF4(), "fp8", "", ()),  # a caution
        (FP8(), "fp8 of 32 x 16", "", ()),
        (Int8(), "integers", "", ()),
        (FP8(group_size=16), "fp8", None, ()),
        (MXFP4(), "mxfp4", None, ()),
    ],
)
def test_sections_are_held_against_the_forms_of_files(
    config: Quantization, files: str, path: str | None, valid: tuple[str, ...]
) -> None:
    forms = {
        "fp8": Form("e4m3", (16, 16)),
        "fp8 of 32 x 16": Form("e4m3", (32, 16)),
        "nf4": Form("nf4", (1, 64), nested=256),
        "integers": Form("int8", (1, 32), zeros=True),
        "mxfp4": Form("e2m1", (1, 32), "exponent"),
    }
    found = [*form_problems(resolve(config), {"up": (forms[files], 64)})]
    assert [each.path for each in found] == ([] if path is None else [path])
    assert [each.valid for each in found] == ([] if path is None else [valid])
    other = isinstance(config, NF4) and files == "fp8"
    assert [isinstance(each, Caution) and each.code == ROUNDED_AGAIN for each in found] == (
        [other] if found else []
    )


def test_forms_are_those_of_files(tmp_path: Path) -> None:
    """By headers alone, as check has them."""
    wanted = {
        "fp8": Form("e4m3", (32, 16)), "nvfp4": Form("e2m1", (1, 16), "e4m3"),
        "mxfp4": Form("e2m1", (1, 32), "exponent"), "nf4": Form("nf4", (1, 64), nested=8),
        "integers": Form("int8", (1, 32), zeros=True), "e5m2": Form("e5m2", (32, 32)),
    }  # fmt: skip
    make("qwen3", {**WIDTHS, "num_attention_heads": 4}).save_pretrained(tmp_path / "files")
    before = (tmp_path / "files" / "model.safetensors").read_bytes()
    for name, form in wanted.items():
        (tmp_path / "files" / "model.safetensors").write_bytes(before)
        quantize_files(tmp_path / "files", FORMATS[name])
        infos = dense_tensors(tmp_path / "files").values()
        assert {info.encoding.form for info in infos if info.encoding is not None} == {form}


@pytest.mark.parametrize("kind", ["transformer", "huggingface"])
def test_layers_that_files_leave_dense_are_named(tmp_path: Path, kind: str) -> None:
    """With the value of exclude that leaves them dense: the list of the files by our names."""

    def in_part(base: str, shape: tuple[int, int], seed: int) -> tuple[Any, torch.Tensor]:
        if "down_proj" in base or base.endswith("layers.1.self_attn.q_proj"):
            return {f"{base}.weight": (dense := torch.randn(shape).bfloat16())}, dense
        return fp8_squares(base, shape, seed)

    keys = {**WIDTHS, "num_attention_heads": 4, "num_hidden_layers": 2}
    del keys["num_experts_per_tok"]  # of dense models unknown
    make("qwen3", keys).save_pretrained(tmp_path / "files")
    quantize_files(tmp_path / "files", (in_part, KEPT["fp8"][1]))
    flags = (
        "model.type=huggingface", f"model.pretrained={tmp_path / 'files'}",
        "adapter={type: lora, rank: 2, quantize: {type: fp8, group_size: 16}}",
    )  # fmt: skip

    def found(*more: str) -> list[Any]:
        job = small_job(tmp_path, *flags, *more)
        if kind == "huggingface":
            return [*built_adapter_problems(job)]
        model = read_config(tmp_path / "files")[0]
        pretrained = job.model.pretrained
        return [*base_problems(resolve(job.evolve(model=model.evolve(pretrained=pretrained))))]

    (caution,) = found()
    assert isinstance(caution, Caution) and caution.code == LEFT_DENSE
    (value,) = caution.valid
    assert not found(f"adapter.quantize.exclude={value}")
