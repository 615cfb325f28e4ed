"""Models of transformers give the same logits here, and ours give them there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch

from setpoint.model import load_pretrained, save_pretrained
from setpoint.model.parameters import count_parameters_of
from setpoint.model.pretrained.families import FAMILIES

from .theirs import CASES, VOCAB, fp64_angles, logits, make


@pytest.mark.parametrize("case", CASES)
def test_logits_and_weights_both_ways(case: str, tmp_path: Path) -> None:
    import transformers

    kind, keys = CASES[case]
    theirs = make(kind, keys)
    theirs.save_pretrained(tmp_path / "theirs")
    wanted = logits(theirs)
    assert wanted.std() > 0.05
    ours = load_pretrained(tmp_path / "theirs")
    assert not ours.training
    counts = count_parameters_of(cast(Any, ours).config, VOCAB)
    assert counts.parameters == theirs.num_parameters()
    exact = wanted
    if case == "llama 3.1":  # whose scaling shows the rounding of angles most, on some CPUs more
        with fp64_angles():
            exact = logits(make(kind, keys))
        assert not torch.equal(exact, wanted)
    torch.testing.assert_close(logits(ours), exact, rtol=1e-5, atol=1e-5)

    save_pretrained(ours, tmp_path / "back", family=kind)
    back = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "back", attn_implementation="eager"
    )
    assert type(back) is type(theirs)
    assert torch.equal(logits(back.eval()), wanted)
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(tensor, back.state_dict()[name]), name
    # Of what the configuration says, only how it is written may differ.
    again = load_pretrained(tmp_path / "back")
    assert again.config == ours.config
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


def test_every_family_is_compared() -> None:
    assert {kind for kind, _ in CASES.values()} == set(FAMILIES)


@pytest.mark.parametrize("case", ["llama 3.1", "qwen3 moe", "gpt2"])
def test_merged_and_unpacked_parameters_hold_the_same(case: str, tmp_path: Path) -> None:
    from setpoint.config import resolve
    from setpoint.model.pretrained.load import start_from

    kind, keys = CASES[case]
    make(kind, keys).save_pretrained(tmp_path / "theirs")
    plain = load_pretrained(tmp_path / "theirs")
    draft: Any = cast(Any, plain).config.evolve()
    draft.pretrained, draft.merge_qkv = str(tmp_path / "theirs"), True
    if draft.moe is not None:
        draft.moe.packed = False
    config = resolve(draft)
    other = config.build(vocab_size=config.vocab_size)
    start_from(config, other)
    assert "layers.0.attention.query_key_value.weight" in other.state_dict()
    torch.testing.assert_close(logits(other.eval()), logits(plain), rtol=0, atol=1e-5)
    for name, model in (("a", plain), ("b", other)):
        save_pretrained(model, tmp_path / name)
    first, second = (tmp_path / name / "model.safetensors" for name in "ab")
    assert first.read_bytes() == second.read_bytes()
