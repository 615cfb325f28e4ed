"""Runs whose checkpoints are of older formats are resumed for ever.

Each file in `old/` holds a run that the version of its day stopped at step 2, and in
`expected.safetensors` the weights that this version had two steps later.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
import torch

from setpoint.checkpoint.loading import load_directory
from setpoint.checkpoint.manifest import CHUNKED, DIVIDED, FORMAT, PARTIAL, WHOLE
from setpoint.checkpoint.tensor_file import decode_tensors
from setpoint.config import read_record, resolve
from setpoint.shapes.placed import in_memory
from setpoint.train.config import Job
from setpoint.train.run import train

OLD = Path(__file__).with_name("old")


@pytest.mark.parametrize("version", range(1, WHOLE + 1))
def test_a_run_of_an_older_format_goes_on(tmp_path: Path, version: int) -> None:
    with tarfile.open(OLD / f"format-{version}.tar.xz") as packed:
        packed.extractall(tmp_path, filter="data")
    run = tmp_path / "run"
    assert f'"format": {version}' in (run / "checkpoints/step-00000002/manifest.json").read_text()
    job = read_record(Job, str(run))[0]
    job.data.held_out = 0.1  # the share that holds out the documents of that day
    outcome = train(resolve(job), run, accept=["data.held_out", "precision.tf32"])
    assert (outcome.started.step, outcome.ended.step) == (2, 4)
    found = load_directory(run / "checkpoints" / "step-00000004").tensors["model"]
    expected = decode_tensors(bytearray((tmp_path / "expected.safetensors").read_bytes()))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(in_memory(found[name]), tensor, rtol=1e-5, atol=1e-6)


def test_there_is_a_checkpoint_of_each_older_format() -> None:
    """The newest is written by the tests of today; keep one of it here before it changes."""
    assert FORMAT == CHUNKED + 1 == PARTIAL + 2 == DIVIDED + 3 == WHOLE + 4
    assert len(list(OLD.iterdir())) == WHOLE
