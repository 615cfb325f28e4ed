"""Exported weights say the same in transformers, and here again."""

import json
from pathlib import Path
from typing import Any

from setpoint.infer.exporting import require_empty
from setpoint.infer.inference import infer
from setpoint.infer.tasks import ExportTask
from setpoint.train.config import Job
from setpoint.train.run import train

from ..data.tokenizers_here import byte_level
from ..support.snapshots import refused
from ..train.small import small_job
from .small import folder_of, inference


def exported(run: Path, folder: Path, **fields: Any) -> Path:
    job = inference(run, export=ExportTask(path=folder, **fields))
    found = infer(job).exported
    assert found is not None
    return found


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


def test_a_model_outside_all_families_is_not_exported(tmp_path: Path) -> None:
    run = train(small_job(tmp_path, "duration=2 steps", "model.activation=relu_squared")).directory
    with refused():
        exported(run, tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_a_folder_that_is_not_empty_is_refused(trained: tuple[Job, Path], tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    require_empty(ExportTask(path=tmp_path / "hf"))
    (tmp_path / "hf" / "notes").write_text("mine")
    with refused():
        exported(trained[1], tmp_path / "hf")
    with refused():
        exported(trained[1], tmp_path / "hf" / "notes")
    assert list((tmp_path / "hf").iterdir()) == [tmp_path / "hf" / "notes"]
