"""`setpoint checkpoint convert`: layouts of a checkpoint, and the format of Hugging Face."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from setpoint.model import load_pretrained, save_pretrained
from setpoint.model.pretrained import save

from ..train.small import small_job
from .conftest import CommandLine


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from setpoint.train.run import train

    folder = tmp_path_factory.mktemp("converted")
    small = ("duration=2 steps", "evaluation=null", "model.merge_qkv=true", "model.layers=2")
    return train(small_job(folder, *small), folder / "run").directory


def test_layouts(cli: CommandLine, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = cli.ok(f"checkpoint convert {run} parts --to divided --ranks 3")
    assert said.strip().endswith("step-00000002 is written to parts")
    cli.ok("checkpoint convert parts one --to whole")
    source = run / "checkpoints" / "step-00000002"
    for each in source.iterdir():
        assert (cli.folder / "one" / each.name).read_bytes() == each.read_bytes()
    # The weights are never all in memory, whoever has written them.
    whole = save_pretrained(load_pretrained(run), cli.folder / "whole")
    monkeypatch.setattr(save, "load_pretrained", None)
    for name in ("parts", "one"):
        cli.ok(f"checkpoint convert {name} {name}-hf --to huggingface")
        for file in ("model.safetensors", "config.json"):
            assert (cli.folder / f"{name}-hf" / file).read_bytes() == (whole / file).read_bytes()
    cli.ok("checkpoint convert parts hf --to huggingface --dtype bf16 --max-shard-size 9000")
    index = json.loads((cli.folder / "hf" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    weights = load_pretrained(cli.folder / "whole").state_dict()
    for name, tensor in load_pretrained(cli.folder / "hf").state_dict().items():
        assert torch.equal(tensor, weights[name].bfloat16())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("one", "--to is missing: one of whole, divided, huggingface"),
        ("one --to wole", "got 'wole'. Did you mean whole?"),
        ("one --to divided", "--to divided needs --ranks N"),
        ("one --to whole --dtype bf16", "--dtype needs --to huggingface"),
        ("one --to huggingface --dtype f8", "--dtype is one of fp32, bf16, fp16"),
        ("taken --to whole", "taken is not empty"),
        ("file:///tmp/one --to whole", "file:///tmp/one is a URL"),
        ("{run}/checkpoints/one --to whole", "checkpoints holds the checkpoints of a run"),
        ("{run}/checkpoints/one --to huggingface", "checkpoints holds the checkpoints of a run"),
    ],
)
def test_what_is_refused(cli: CommandLine, run: Path, words: str, said: str) -> None:
    (cli.folder / "taken").mkdir()
    (cli.folder / "taken" / "file").touch()
    assert said in cli.refused(f"checkpoint convert {run} {words.format(run=run)}")
    assert not (cli.folder / "one").exists()
