"""Exported weights say the same in transformers, and here again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from setpoint.config import SetpointError
from setpoint.data.sources.config import Random
from setpoint.data.tokenizers.vocabulary import read_vocabulary
from setpoint.infer.config import Inference, InferenceWeights
from setpoint.infer.exporting import export, require_empty
from setpoint.infer.inference import infer
from setpoint.infer.loaded_model import LoadedModel
from setpoint.infer.tasks import DataSet, EvaluationTask, ExportTask
from setpoint.train.config import Job
from setpoint.train.run import train

from ..data.tokenizers_here import BEGIN, byte_level
from ..train.small import small_job
from .small import folder_of

SET = DataSet(name="set", sources=(Random(documents=9, length=90, alphabet=8),))


def exported(run: Path, folder: Path, **fields: Any) -> Path:
    job = Inference(
        weights=InferenceWeights(path=str(run)), export=ExportTask(path=folder, **fields)
    )
    found = infer(job).exported
    assert found is not None
    return found


def test_transformers_says_the_same(
    trained: tuple[Job, Path], loaded: LoadedModel, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    folder = exported(trained[1], tmp_path / "hf")
    theirs = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokens = torch.tensor([[256, *b'!"#$%']])
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, loaded.model(tokens), rtol=0, atol=1e-4)


def test_the_tokenizer_goes_along(tmp_path: Path) -> None:
    folder = byte_level(tmp_path / "tokenizer")
    flags = (f"tokenizer={{type=huggingface, path={folder}}}", "duration=2 steps")
    run = train(small_job(tmp_path, *flags)).directory
    found = exported(run, tmp_path / "hf", dtype="bf16", max_shard_size=20_000)
    names = set(folder_of(found))
    assert {"config.json", "tokenizer.json", "tokenizer_config.json"} <= names
    assert sum(name.endswith(".safetensors") for name in names) > 1
    assert (found / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()


def test_the_dtype_is_that_of_the_last_checkpoint(tmp_path: Path) -> None:
    flags = ("checkpoint.last=weights", "checkpoint.last_dtype=bf16", "duration=1 steps")
    run = train(small_job(tmp_path, *flags)).directory
    for given, expected in (({}, "bfloat16"), ({"dtype": "fp32"}, "float32")):
        found = exported(run, tmp_path / expected, **given)
        assert json.loads((found / "config.json").read_text())["dtype"] == expected


@pytest.mark.slow
def test_the_token_that_ended_documents_goes_along(tmp_path: Path) -> None:
    folder = byte_level(tmp_path / "tokenizer")
    flags = (f"tokenizer={{type=huggingface, path={folder}, separator='{BEGIN}'}}",)
    run = train(small_job(tmp_path, *flags, "duration=2 steps")).directory
    found = exported(run, tmp_path / "hf")
    settings = json.loads((found / "tokenizer_config.json").read_text())
    number = json.loads((found / "config.json").read_text())["eos_token_id"]
    assert settings["eos_token"] == BEGIN
    assert number == read_vocabulary(str(folder)).ids[BEGIN]
    # What is evaluated there has the same separators as here.
    scores = [
        infer(
            Inference(
                weights=InferenceWeights(path=str(path)), evaluation=EvaluationTask(sets=(SET,))
            )
        )
        for path in (run, found)
    ]
    ours, again = (result.scores["set"].bits_per_byte for result in scores)
    assert ours == pytest.approx(again, rel=1e-5)


def test_what_no_family_can_say(tmp_path: Path) -> None:
    run = train(small_job(tmp_path, "duration=2 steps", "model.activation=relu_squared")).directory
    with pytest.raises(SetpointError, match="activation"):
        exported(run, tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_a_family_by_name(trained: tuple[Job, Path], loaded: LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(SetpointError, match="gpt2"):
        export(loaded.model, loaded.tokenizer, tmp_path / "hf", family="gpt2")


def test_a_place_that_holds_something(trained: tuple[Job, Path], tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    require_empty(ExportTask(path=tmp_path / "hf"))
    (tmp_path / "hf" / "notes").write_text("mine")
    with pytest.raises(SetpointError, match=r"export.path: .*hf is not empty"):
        exported(trained[1], tmp_path / "hf")
    with pytest.raises(SetpointError, match=r"notes is a file"):
        exported(trained[1], tmp_path / "hf" / "notes")
    assert list((tmp_path / "hf").iterdir()) == [tmp_path / "hf" / "notes"]
