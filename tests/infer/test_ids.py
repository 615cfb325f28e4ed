"""Weights trained on token ids alone: evaluated on token files and rows, and continued by ids."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from setpoint.cli.main import main
from setpoint.train.run import train

from ..model.huggingface_families import FAMILIES, family_job
from ..support.cases import few
from ..train.small import small_job

V, S = 64, 16
IDS = np.arange(1500) * 7919 % 61
HELD_OUT = IDS[1000:1100]
Say = Callable[..., str]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """Run a command, and give what it prints."""

    def run(*words: object, status: int = 0) -> str:
        capsys.readouterr()
        assert main([str(word) for word in words]) == status
        output = capsys.readouterr()
        return output.err if status else output.out

    return run


def loss_of(said: str, name: str) -> float:
    return json.loads(said)["evaluation"][name]["loss"]


def plain_loss(model: Any, tokens: np.ndarray, length: int) -> float:
    """The mean loss on tokens in windows, by transformers alone."""
    total, whole = 0.0, torch.tensor(tokens.astype(np.int64))
    with torch.no_grad():
        for start in range(0, len(whole) - 1, length):
            row = whole[start : start + length + 1]
            logits = model(input_ids=row[None, :-1], use_cache=False).logits[0]
            total += cross_entropy(logits, row[1:], reduction="sum").item()
    return total / (len(whole) - 1)


def plain_text(model: Any, prompt: list[int], count: int) -> list[int]:
    """Greedy continuation, by transformers alone."""
    found = model.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False)
    return found[0, len(prompt) :].tolist()


def test_a_run_on_ids(tmp_path: Path, say: Say) -> None:
    import transformers

    IDS[:1000].astype(np.uint16).tofile(tmp_path / "a.bin")
    np.save(tmp_path / "held.npy", HELD_OUT)
    HELD_OUT.astype(np.uint16).tofile(tmp_path / "held-16.bin")
    rows = [HELD_OUT[at : at + S + 1].tolist() for at in range(0, 99, S)]
    lines = [json.dumps({"input_ids": row[:-1], "labels": row[1:]}) for row in rows]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    files = f"{{type: tokens, paths: [{tmp_path}/a.bin], token_dtype: uint16}}"
    data = f"data={{held_out: 0, sources: [{files}]}}"
    model = ("model={dim: 32, layers: 1, heads: 2, init_std: 0.3, dropout: 0}",)
    shape = ("tokenizer=ids", f"model.vocab_size={V}", f"batch.sequence_length={S}")
    job = small_job(tmp_path, *model, *shape, data, "evaluation=null", "duration=2 steps")
    run, exported = train(job).directory, tmp_path / "hf"
    assert json.loads(say("export", run, exported, "--json"))["export"] == str(exported)
    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(exported)
    wanted = plain_loss(theirs, HELD_OUT, S)

    given = ("--tokenizer", "ids", "--batch.sequence_length", S)
    for source in ((run,), (exported, *given)):
        said = say("evaluate", *source, "--text", tmp_path / "held.npy", "--json")
        assert loss_of(said, "held") == pytest.approx(wanted, rel=1e-5)
    said = say("evaluate", run, "--text", tmp_path / "rows.jsonl", "--json")
    assert loss_of(said, "rows") == pytest.approx(wanted, rel=1e-5)
    bare = ("--text", tmp_path / "held-16.bin")
    said = say("evaluate", run, *bare, "--json")  # in the dtype of the run's own files
    assert loss_of(said, "held-16") == pytest.approx(wanted, rel=1e-5)
    said = say("evaluate", exported, *given, *bare, status=2)
    assert "Set it with --token-dtype DTYPE." in said

    greedy = ("--temperature", 0, "--max-tokens", 5)
    text = [5, 9, 12, *plain_text(theirs, [5, 9, 12], 5)]
    assert say("generate", run, "--prompt", "5 9\t12", *greedy).split() == [*map(str, text)]
    said = say("generate", exported, "--tokenizer", "ids", "--prompt", "5 9 12", *greedy)
    assert said.split() == [*map(str, text)]
    facts = json.loads(say("generate", run, "--prompt", "5 9\t12", *greedy, "--json"))
    (part,) = facts["texts"]
    assert (part["prompt"] + part["text"]).split() == [*map(str, text)]
    assert "'a' is not a token id" in say("generate", run, "--prompt", "5 a", status=2)
    assert "'64' is not a token id" in say("generate", run, "--prompt", "64", status=2)
    assert "no id to continue" in say("generate", run, status=2)
    said = say("evaluate", exported, "--text", tmp_path / "held.npy", status=2)
    assert "--tokenizer ids, for token files and prompts of ids" in said


@pytest.mark.parametrize("kind", few(FAMILIES, ["gpt_oss"]))
def test_a_model_of_transformers_that_was_not_trained_here(
    tmp_path: Path, say: Say, kind: str
) -> None:
    import transformers

    torch.manual_seed(0)
    made: Any = family_job(tmp_path, kind).model.build(vocab_size=257)
    made.model.save_pretrained(tmp_path / "hf")
    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "hf", attn_implementation="eager"
    )
    np.save(tmp_path / "held.npy", HELD_OUT)
    given = ("--tokenizer", "ids", "--batch.sequence_length", S)
    said = say("evaluate", tmp_path / "hf", *given, "--text", tmp_path / "held.npy", "--json")
    assert loss_of(said, "held") == pytest.approx(plain_loss(theirs, HELD_OUT, S), rel=1e-5)
    greedy = ("--temperature", 0, "--max-tokens", 5)
    said = say("generate", tmp_path / "hf", *given[:2], "--prompt", "5 9 12", *greedy)
    assert said.split() == [*map(str, [5, 9, 12, *plain_text(theirs, [5, 9, 12], 5)])]
    if kind != "gpt_oss":
        return
    config = tmp_path / "hf" / "config.json"
    keys = json.loads(config.read_text())
    config.write_text(json.dumps({**keys, "model_type": "own", "auto_map": {"AutoConfig": "a.B"}}))
    said = say("generate", tmp_path / "hf", *given[:2], "--prompt", "5", status=2)
    assert "trust_remote_code) is not run" in said


def test_the_default_data_is_not_taken_for_the_data_of_the_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import transformers

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(intermediate_size=16, vocab_size=257, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "hf")
    (tmp_path / "t.txt").write_text("words of one's own. " * 99)
    words = ["evaluate", str(tmp_path / "hf"), "--tokenizer", "bytes"]
    words += ["--evaluation.sequences", "1", "--batch.sequence_length", "16"]
    said = "the default of data.sources is read"
    assert main(words) == 0
    printed = capsys.readouterr()
    assert said in printed.err and "stdlib:held_out" in printed.out
    named = f"--data.sources=[{{type: text, paths: [{tmp_path}/t.txt]}}]"
    assert main([*words, named]) == 0
    printed = capsys.readouterr()
    assert said not in printed.err and printed.out.splitlines()[1].split()[0] == "held_out"
