"""`setpoint launch`: the script that Slurm runs, and a PyTorchJob or JobSet of Kubernetes."""

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from setpoint.cli.main import main
from setpoint.cluster.job_script import JobRequest, batch_script, manifest, name_of, seconds_of

from ..support.snapshots import compare, compare_message

REQUEST = JobRequest(
    name="exp-3fa94c21",
    words=["exp.toml", "--data.sources", "[{type: text, paths: ['a b']}]"],
    variables="SETPOINT__SEED=7 ",
    nodes=4,
    ranks=8,
    has_gpus=True,
    cpus=12,
    image="nvcr.io/torch:1",
    volumes=[("/data", "/data")],
    setup=["module load cuda"],
    restarts=2,
    grace=30.5,
)


def fake(folder: Path, name: str, script: str) -> None:
    """Put a command on PATH that says in `called` how it was called."""
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/bash\necho "{name} $*" >> {folder}/called\n{script}\n')
    path.chmod(0o755)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to submit from, with the commands of a Slurm that runs nothing."""
    fake(tmp_path, "sbatch", 'echo "4711;main"')
    fake(tmp_path, "scontrol", "printf 'node-0\\nnode-1\\n'")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_script_of_slurm() -> None:
    limits = {"time": "24:00:00", "partition": "gpu", "account": "lab", "qos": "high"}
    text = batch_script(REQUEST, "/home/ada/my runs", "/runs/exp.%j.out", limits, ["--mem=0"])
    compare("cluster/slurm", text)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_a_checked_job_is_submitted(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["launch", "tiny", "--slurm", "--nproc", "2", "--workspace", "runs"]
    assert main(words) == 0
    (script,) = (cluster / "runs").glob("*.sbatch")
    assert (cluster / "called").read_text() == f"sbatch --parsable runs/{script.name}\n"
    assert "submitted job 4711: runs/tiny-" in capsys.readouterr().out
    assert "-m setpoint train tiny --workspace=runs --nproc 2" in script.read_text()


def test_what_check_refuses_is_not_submitted(
    cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", "tiny", "--slurm", "--nnodes", "3", "--workspace", "runs"]) == 2
    assert "8 sequences cannot be divided by 3 ranks" in capsys.readouterr().err
    assert sorted(path.name for path in cluster.iterdir()) == ["bin"]


def test_what_sbatch_refuses_is_said(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake(cluster, "sbatch", "echo 'sbatch: error: invalid partition: gpux' >&2; exit 1")
    words = ["launch", "tiny", "--slurm", "--partition", "gpux", "--workspace", "runs"]
    assert main(words) == 1
    assert "invalid partition: gpux" in capsys.readouterr().err


def test_without_slurm_the_script_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path)
    assert main(["launch", "tiny", "--slurm", "--workspace", "runs"]) == 2
    assert "there is no command sbatch on this machine; runs/tiny-" in capsys.readouterr().err
    assert list((tmp_path / "runs").glob("*.sbatch"))


@pytest.mark.parametrize(("status", "requeued"), [(0, False), (1, False), (75, True)])
def test_a_job_is_queued_again_where_everything_is_saved(
    cluster: Path, status: int, requeued: bool
) -> None:
    """Runs the script: each task is a shell that says what it would run."""
    fake(cluster, "srun", f'shift; eval "${{@: -1}}"; exit {status}')
    fake(cluster, "python", 'echo "$SETPOINT__SEED" >> called')
    script = batch_script(REQUEST._replace(image=None, setup=[]), str(cluster), "out", {})
    script = script.replace("exec env", "env")
    slurm = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "node-[0-1]"}
    done = subprocess.run(["bash"], input=script, text=True, env={**os.environ, **slurm})
    assert done.returncode == status
    called = (cluster / "called").read_text()
    assert ("scontrol requeue 4711" in called) is requeued
    expected = "--nnodes 4 --rdzv-endpoint node-0:24711 --rdzv-id 4711-0 --max-restarts 2\n7\n"
    assert re.search(r"python -m setpoint train exp.toml .*\['a b'\]\}\] --nproc 8 ", called)
    assert expected in called


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("0", 0), ("5", 300), ("5:30", 330), ("1:00:00", 3600), ("2-12", 216_000),
     ("1-0:30", 88_200), ("1-1:1:1", 90_061)],
)  # fmt: skip
def test_times_are_those_of_slurm(time: str, seconds: int) -> None:
    assert seconds_of(time) == seconds


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--slurm --kubernetes",
        "--slurm --kind jobset",
        "--kubernetes --image a --time 10",
        "--kubernetes",
        "--kubernetes --image a --kind job",
        "--slurm --time '1 day'",
        "--slurm --nproc 2 --time 2",
        "--slurm --volume /a:/b",
        "--slurm --image a --volume b",
        "--slurm --nproc 0",
    ],
)
def test_wrong_options_are_refused(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "tiny", *shlex.split(words)]) == 2
    compare_message(capsys.readouterr().err)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, dict[str, Any]]:
    common = ["--nnodes", "4", "--nproc", "2", "--image", "train:1", "--volume", "data:/data"]
    assert main(["launch", "tiny", "--kubernetes", *common, *words]) == 0
    text = capsys.readouterr().out
    return text, YAML(typ="safe").load(text)


@pytest.mark.parametrize("kind", ["pytorchjob", "jobset"])
def test_the_manifests_of_kubernetes(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_names_of_jobs_are_those_that_kubernetes_allows() -> None:
    assert name_of("My_Exp-3fa94c21") == "my-exp-3fa94c21"
    assert name_of("7b-3fa94c21") == "run-7b-3fa94c21"
    long = name_of("x" * 80 + "-3fa94c21")
    assert len(long) == 40 and long.endswith("x-3fa94c21")
