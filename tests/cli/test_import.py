"""`setpoint import`: models of Hugging Face as configurations."""

import json

import pytest

from ..model.pretrained.ours import change_config, directory
from ..support.snapshots import compare
from .conftest import CommandLine


def test_the_configuration_of_a_model_is_printed_or_written(cli: CommandLine) -> None:
    from setpoint.model.attention.config import Llama3Scaling
    from setpoint.model.moe.config import MoE

    directory(cli.folder / "llama", rope_scaling=Llama3Scaling(factor=8.0, original_length=16))
    directory(cli.folder / "moe", qk_norm=True, ffn_dim=None, moe=MoE(experts=4, expert_dim=8))
    cli.file("llama/tokenizer.json", "{}")
    lines = ["import llama", "import moe"]
    text = "\n".join(f"$ setpoint {line}\n{cli.ok(line)}" for line in lines)
    compare("cli/import", text)
    assert cli.ok("import llama --output llama.toml") == "llama.toml is written\n"
    assert (cli.folder / "llama.toml").read_text() == cli.ok("import llama")


def test_what_is_written_is_a_source_and_part_of_one(cli: CommandLine) -> None:
    directory(cli.folder / "models/llama", vocab_size=257)
    cli.ok("import models/llama --output llama.toml")
    # Sequences of the usual length would not fit its 32 positions.
    assert "llama.toml: ok" in cli.ok("check llama.toml")
    assert json.loads(cli.ok("show llama.toml --json"))["batch"]["sequence_length"] == 32
    cli.file("job.toml", 'extends = ["small.toml", "llama.toml"]\n')
    shown = json.loads(cli.ok("show job.toml --json"))
    assert (shown["model"]["dim"], shown["model"]["pretrained"]) == (16, "models/llama")
    # The architecture that the weights ask for is held against what is configured.
    answer = cli("check llama.toml --model.layers 3")
    assert answer.status == 2
    assert "the pretrained weights have 2" in answer.err


def test_a_run_is_imported_as_well(cli: CommandLine, run: str) -> None:
    text = cli.ok(f"import {run}")
    assert f'pretrained = "{run}"' in text
    assert "dim = 32" in text
    assert '[tokenizer]\ntype = "bytes"' in text


def test_folders_that_are_no_models_are_refused(cli: CommandLine) -> None:
    directory(cli.folder / "llama")
    directory(cli.folder / "mamba")
    change_config(cli.folder / "mamba", model_type="mamba")
    cli.file("runs/.keep", "")
    lines = [
        "import", "import llama llama", "import lama", "import mamba", "import small.toml",
        "import runs/nothing", "import llama --output runs", "import llama --output small.toml",
        "check llama", "import llama --model.dim 3", "import llama --ouput x",
    ]  # fmt: skip
    for line in lines:
        cli.refused(line)


def test_the_hub_is_asked_for_no_weights(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    from setpoint.model.pretrained import locate

    folder = directory(cli.folder / "cache")
    asked: list[tuple[str, bool]] = []

    def fetch(name: str, *, weights: bool) -> object:
        asked.append((name, weights))
        return folder

    monkeypatch.setattr(locate, "fetch", fetch)
    assert 'pretrained = "org/name@v1"' in cli.ok("import org/name@v1")
    assert asked == [("org/name@v1", False)]


def test_the_file_stands_above_any_preset(cli: CommandLine) -> None:
    """Which tie embeddings, have other angles, windows, norms, biases and experts."""
    directory(cli.folder / "llama", vocab_size=257, tie_embeddings=False)
    cli.ok("import llama --output llama.toml")
    for preset in ("gpt2-tiny", "deepseek-tiny"):
        cli.file("job.toml", f'extends = ["{preset}", "llama.toml"]\nevaluation = "null"\n')
        assert "job.toml: ok" in cli.ok("check job.toml")


def test_an_export_that_transformers_would_tokenize_otherwise_is_a_caution(
    cli: CommandLine,
) -> None:
    from setpoint.infer.exporting import tokenizer_caution

    folder = cli.folder / "out"
    folder.mkdir()
    split = {"Regex": r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"}
    for kind, pattern, cautions in (
        ("qwen2", {"Regex": r" ?\p{L}+"}, True),
        ("qwen2", split, False),
        ("llama", {"Regex": r" ?\p{L}+"}, False),
    ):
        (folder / "config.json").write_text(json.dumps({"model_type": kind}))
        (folder / "tokenizer.json").write_text(json.dumps({"pre_tokenizer": {"pattern": pattern}}))
        assert bool(tokenizer_caution(folder)) is cautions
