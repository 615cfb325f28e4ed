"""Adapters of PEFT that adapt or save embeddings and output matrices, with and without ties."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from setpoint.config import SetpointError, resolve
from setpoint.model import load_pretrained
from setpoint.model.config import PretrainedAdapter, TransformerConfig
from setpoint.model.pretrained.peft import fold_adapters
from setpoint.model.pretrained.peft_files import adapter_file_problems
from setpoint.model.pretrained.save_pretrained import save_pretrained

TOKENS = torch.randint(0, 97, (2, 16), generator=torch.Generator().manual_seed(0))
E, H, BOTH = ["embed_tokens"], ["lm_head"], ["embed_tokens", "lm_head"]
TIE = {"ensure_weight_tying": True}
KINDS: dict[str, dict[str, Any]] = {
    "save embedding": {"modules_to_save": E},
    "save output": {"modules_to_save": H},
    "save both": {"modules_to_save": BOTH},
    "save both tied": {"modules_to_save": E, **TIE},
    "adapt embedding": {"target_modules": ["q_proj", *E]},
    "adapt output": {"target_modules": ["q_proj", *H]},
    "adapt both tied": {"target_modules": ["q_proj", *E], **TIE},
    "dora embedding": {"target_modules": ["q_proj", *E], "use_dora": True},
}
FOLDED_WHERE_TIED = ("save both tied", "adapt both tied")


def base_of(folder: Path, tied: bool) -> Path:
    section = TransformerConfig(
        dim=32,
        layers=2,
        heads=4,
        kv_heads=2,
        ffn_dim=64,
        vocab_size=97,
        max_sequence_length=64,
        tie_embeddings=tied,
    )
    model = resolve(section).build(vocab_size=97)
    return save_pretrained(model, folder / "base")


def adapted(base: Path, path: Path, **kind: Any) -> torch.Tensor:
    """Logits of PEFT's model with a random adapter, which is saved."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    config = LoraConfig(r=2, lora_alpha=4, **{"target_modules": ["q_proj"], **kind})
    model: Any = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
        logits = model.eval()(TOKENS).logits
    model.save_pretrained(str(path))
    return logits


def folded(base: Path, *paths: Path) -> torch.Tensor:
    """Logits of our model with adapters folded in, by the section that `check` sees, too."""
    model: Any = load_pretrained(base)
    adapters = tuple(PretrainedAdapter(path=str(path)) for path in paths)
    config = model.config.evolve(pretrained=str(base), adapters=adapters)
    problems = list(adapter_file_problems(config))
    try:
        fold_adapters(config, model, model, base)
    except SetpointError as error:
        assert len(problems) == 1
        assert problems[0].message in str(error)
        raise
    assert not problems
    with torch.no_grad():
        return model.eval()(TOKENS)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_adapters_of_embeddings_equal_peft_or_are_refused(tmp_path: Path, kind: str) -> None:
    base = base_of(tmp_path / "untied", tied=False)
    wanted = adapted(base, tmp_path / "adapter", **KINDS[kind])
    torch.testing.assert_close(folded(base, tmp_path / "adapter"), wanted, rtol=1e-5, atol=1e-5)
    base = base_of(tmp_path / "tied", tied=True)
    wanted = adapted(base, tmp_path / "adapter-tied", **KINDS[kind])
    if kind in FOLDED_WHERE_TIED:
        found = folded(base, tmp_path / "adapter-tied")
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        return
    reason = "changes (embed_tokens|lm_head) and not the (output matrix|embedding), which are tied"
    if kind == "save both":
        # Both are saved, so that only their values tell.
        model: Any = load_pretrained(base)
        adapter = PretrainedAdapter(path=str(tmp_path / "adapter-tied"))
        config = model.config.evolve(pretrained=str(base), adapters=(adapter,))
        with pytest.raises(SetpointError, match="changes model.embed_tokens and lm_head.weight di"):
            fold_adapters(config, model, model, base)
        return
    with pytest.raises(SetpointError, match=reason):
        folded(base, tmp_path / "adapter-tied")


@pytest.mark.filterwarnings("ignore")
def test_two_adapters_that_save_one_matrix_are_refused(tmp_path: Path) -> None:
    base = base_of(tmp_path, tied=False)
    for name in "ab":
        adapted(base, tmp_path / name, modules_to_save=H)
    adapted(base, tmp_path / "c", modules_to_save=E)
    folded(base, tmp_path / "a", tmp_path / "c")
    with pytest.raises(SetpointError, match=r"b replaces lm_head.weight, as .*/a does; only one"):
        folded(base, tmp_path / "a", tmp_path / "b")
    # Matrices of the base, which PEFT writes beside adapters of embeddings, are none that count.
    for name in "de":
        adapted(base, tmp_path / name, **KINDS["adapt embedding"])
    folded(base, tmp_path / "d", tmp_path / "e")
