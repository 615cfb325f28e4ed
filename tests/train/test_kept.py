"""A run goes on without the files that it began with."""

from __future__ import annotations

from pathlib import Path

import pytest

from setpoint.cli.main import main
from setpoint.train.run import train

from ..data.tokenizers_here import byte_level
from .small import rows, small_job


def test_a_run_goes_on_without_the_directory_of_its_tokenizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = byte_level(tmp_path / "files")
    flags = [f"tokenizer={{type=huggingface, path={files}}}", "schedule=constant"]
    short = small_job(tmp_path, *flags, "duration=4 steps")
    longer = small_job(tmp_path, *flags, "duration=6 steps")
    whole = train(longer, tmp_path / "whole").directory
    run = train(short).directory
    files.rename(tmp_path / "elsewhere")
    words = ["train", str(run), "--duration", "6 steps", "--tracking.progress", "lines"]
    assert main([*words, "--dry-run"]) == 0
    assert main(words) == 0
    kept = f"{files} is gone; the one in {run}/checkpoints/step-00000004 is used"
    assert capsys.readouterr().out.count(kept) == 2
    assert rows(run)[-1] == rows(whole)[-1]


def test_a_run_without_its_tokenizer_is_refused(tmp_path: Path) -> None:
    """A run without a whole checkpoint keeps none."""
    files = byte_level(tmp_path / "files")
    job = small_job(tmp_path, f"tokenizer={{type=huggingface, path={files}}}", "duration=4 steps")
    run = train(job).directory
    for checkpoint in (run / "checkpoints").glob("step-*"):
        (checkpoint / "manifest.json").write_text("")
    files.rename(tmp_path / "elsewhere")
    assert main(["train", str(run)]) == 2
