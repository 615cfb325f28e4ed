"""`setpoint launch --kubernetes`: a PyTorchJob or a JobSet."""

from __future__ import annotations

from typing import Any

import pytest
from ruamel.yaml import YAML

from setpoint.cli.main import main
from setpoint.cluster.job_script import manifest, name_of

from ..support.snapshots import compare
from .test_slurm import REQUEST


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, dict[str, Any]]:
    common = ["--nnodes", "4", "--nproc", "2", "--image", "train:1", "--volume", "data:/data"]
    assert main(["launch", "tiny", "--kubernetes", *common, *words]) == 0
    text = capsys.readouterr().out
    return text, YAML(typ="safe").load(text)


@pytest.mark.parametrize("kind", ["pytorchjob", "jobset"])
def test_the_manifest(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    text, read = printed(capsys, "--kind", kind, "--cpus", "3", "--namespace", "lab")
    compare(f"cluster/{kind}", text)
    assert read["metadata"]["namespace"] == "lab"


def test_ranks_on_the_cpu_ask_for_no_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert "nvidia.com/gpu" in printed(capsys)[0]
    assert "nvidia.com/gpu" not in printed(capsys, "--parallel.device", "cpu")[0]


def test_restarts_are_those_of_the_operator() -> None:
    spec = manifest(REQUEST, "pytorchjob")["spec"]
    (container,) = spec["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert spec["runPolicy"]["backoffLimit"] == 2
    assert "--max-restarts" not in container["command"][-1]
    # The operator's variables of pods are not those of ranks.
    assert container["command"][-1].startswith("unset RANK WORLD_SIZE\nmodule load cuda\nexec env")


def test_names() -> None:
    assert name_of("My_Exp-3fa94c21") == "my-exp-3fa94c21"
    assert name_of("7b-3fa94c21") == "run-7b-3fa94c21"
    long = name_of("x" * 80 + "-3fa94c21")
    assert len(long) == 40 and long.endswith("x-3fa94c21")
