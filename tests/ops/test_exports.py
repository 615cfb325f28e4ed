"""Exports in training: checkpoints as Hugging Face models, whole or not at all."""

import errno
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from setpoint.config import ConfigError, RunError
from setpoint.model.pretrained.load import load_pretrained
from setpoint.train.run import train

from ..support.snapshots import refused
from ..train.small import events, small_job


def setpoint(folder: Path, *words: str) -> None:
    command = [sys.executable, "-m", "setpoint", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_sharded_ranks_export_each_checkpoint_for_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    words = [
        "train", "llama3-tiny", "--with", "smoke(steps=4)", "--checkpoint.every", "2",
        "--checkpoint.export.when", "each_save", "--nproc", "2", "--parallel.shard", "2",
    ]  # fmt: skip
    setpoint(tmp_path, *words)
    (run,) = (tmp_path / "runs").iterdir()
    names = ["step-00000002", "step-00000004"]
    assert sorted(path.name for path in (run / "exports").iterdir()) == names
    tokens = torch.arange(40).view(2, 20)
    for name in names:
        theirs = transformers.AutoModelForCausalLM.from_pretrained(run / "exports" / name)
        ours = load_pretrained(run / "checkpoints" / name)
        with torch.no_grad():
            assert (theirs(tokens).logits - ours(tokens)).abs().max() < 1e-4
    # One that was killed has left its own behind, and is made up for.
    shutil.rmtree(run / "exports" / names[1])
    (run / "exports" / f".{names[1]}.tmp-1").mkdir()
    setpoint(tmp_path, *words)
    assert sorted(path.name for path in (run / "exports").iterdir()) == names


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_checkpoint_before_the_first_step_is_exported_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    program = tmp_path / "copies"
    program.write_text('#!/bin/sh\nsleep 0.2\nexec cp -r "$4" "$5"\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    flags = ("checkpoint.export.when=each_save", "checkpoint.at_start=true", "checkpoint.keep=1")
    job = small_job(
        tmp_path, *flags, "duration=2 steps", "evaluation=null", f"checkpoint.mode={mode}"
    )
    run = train(job).directory
    names = ["step-00000000", "step-00000002"]
    assert sorted(path.name for path in (run / "exports").iterdir()) == names
    assert all((run / "exports" / name / "model.safetensors").is_file() for name in names)
    assert [row["step"] for row in events(run, "export")] == [0, 2]
    assert [path.name for path in (run / "checkpoints").glob("step-*")] == names[1:]


def test_an_export_that_fails_says_so_when_the_run_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    job = small_job(tmp_path, "checkpoint.export={}", "duration=2 steps", "evaluation=null")
    with refused(RunError):
        train(job)
    program = tmp_path / "fails"
    program.write_text("#!/bin/sh\necho 'a warning of a library\nerror: no\nValid: yes'\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with refused(RunError):
        train(job)
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "checkpoints" / "step-00000002").is_dir() and not list(run.glob("exports/*"))
    assert [row["event"] for row in events(run)].count("fault") >= 1


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_checkpoint_that_cannot_be_copied_for_its_export_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    def fail(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", target)

    monkeypatch.setattr("setpoint.ops.exports._linked", fail)
    flags = ("checkpoint.export.when=each_save", "checkpoint.every=1", "checkpoint.keep=1")
    job = small_job(
        tmp_path, *flags, "duration=2 steps", "evaluation=null", f"checkpoint.mode={mode}"
    )
    failure = "step-0000000[12] was saved but cannot be exported: [^;]*No space left on device[^;]*"
    with pytest.raises(RunError, match=f"^{failure}; {failure}$"):
        train(job)
    (run,) = (tmp_path / "runs").iterdir()
    assert [row["step"] for row in events(run, "save")] == [1, 2]
    assert [path.name for path in (run / "checkpoints").glob("step-*")] == ["step-00000002"]
    assert not list((run / "exports").glob("*"))


def test_a_model_that_cannot_be_exported_is_refused_before_it_is_trained(tmp_path: Path) -> None:
    with refused(ConfigError):
        small_job(
            tmp_path, "checkpoint.export={}", "model.norm={type=import, target=torch.nn.RMSNorm}"
        )
    with refused(ConfigError):
        small_job(tmp_path, "checkpoint.export={}", "checkpoint.last=none")
