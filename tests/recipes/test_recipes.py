"""Recipes of other systems, written from their keys: checked at full size, and trained in small."""

import json
import re
from pathlib import Path

import pytest

import setpoint.presets  # noqa: F401 - registers the presets
from setpoint.config import compose, verify
from setpoint.infer.adopt import adopt
from setpoint.infer.config import Inference
from setpoint.train.config import Job

from ..support.forks import forked
from .recipe_ranks import FOLDER, RECIPES, write_data

FILES = sorted(FOLDER.glob("*.toml"))
QUICK = "danling_hybrid"
QWEN3 = {
    "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288, "vocab_size": 151936,
    "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    "tie_word_embeddings": False, "hidden_act": "silu", "attention_bias": False,
}  # fmt: skip


def test_each_passes_check_at_its_own_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_data()
    Path("weights").mkdir()
    Path("weights/config.json").write_text(json.dumps(QWEN3))
    for file in FILES:
        text = file.read_text()
        found = re.search(r"(\d+) ranks", text)
        assert found is not None, file
        flags = [f"parallel.world_size={found[1]}"]
        if "[weights]" in text:
            inference = compose(Inference, str(file), flags=flags)
            inference.problems.extend(adopt(inference.draft))
            report = verify(inference.resolve(), ("files",))
        else:
            report = verify(compose(Job, str(file), flags=flags).resolve(), ("files",))
        assert not report.problems, f"{file.name}: {report.problems[0].render()}"
        assert {caution.code for caution in report.cautions} <= {"wandb-without-login"}, file
    assert {file.stem for file in FILES} == {*RECIPES, "d9d_perplexity"}


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.slow] * (each != QUICK)) for each in RECIPES]
)
def test_ranks_train_a_recipe_in_small_as_one_does(name: str) -> None:
    ranks = str(RECIPES[name].ranks)
    assert f"{name}: equal" in forked("tests.recipes.recipe_ranks", ranks, name)
