"""`verify` and `rerun`: what is trained again equals the record, and what is edited is found."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from setpoint.checkpoint.manifest import Manifest, read_manifest
from setpoint.cli.main import main
from setpoint.config import fingerprint, record_files
from setpoint.files.atomic import digest_file
from setpoint.ops.proof import verify_chain
from setpoint.runs.reproduction import choose_steps, environment_differences, recorded_job
from setpoint.train.run import train

from ..support.snapshots import refused
from ..train.small import rows, small_job, write_config

FLAGS = ("duration=12 steps", "checkpoint.keep=null", "evaluation.every=3 steps")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 steps in two sessions, with checkpoints of every fourth."""
    folder = tmp_path_factory.mktemp("again")
    job = small_job(folder, *FLAGS)
    train(job, directory=folder / "run", until=7)
    return train(job, directory=folder / "run").directory


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def call(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main([str(word) for word in words])
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


Call = Callable[..., tuple[int, str, str]]


def edit(run: Path, step: int, **values: Any) -> None:
    """Change metrics of a step."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for row in lines:
        if row["step"] == step and row["kind"] == "train":
            row |= values
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))


def test_what_is_as_recorded_is_equal_to_the_bit(run: Path, command: Call) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    status, said, _ = command("verify", run)
    digest = read_manifest(run / "checkpoints/step-00000012").files["model.safetensors"].digest
    assert (status, said) == (
        0,
        f"{run}: steps 8 to 12 trained again: 6 rows of metrics and the weights are equal bit for "
        f"bit, BLAKE3 {digest}\n",
    )
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    status, said, _ = command("verify", run, "--steps", "0:10", "--json")
    answer = json.loads(said)
    assert status == 0 and answer["equal"] and answer["rows"] == 13
    assert answer["weights"] is None and "has no checkpoint of step 10" in answer["notes"][0]


def test_an_edited_row_is_found(run: Path, command: Call) -> None:
    edit(run, 10, loss=1.5)
    status, said, _ = command("verify", run)
    assert status == 1
    lines = said.splitlines()
    assert lines[0] == f"{run}: steps 8 to 12 trained again: not equal bit for bit"
    assert lines[1].startswith("  step 10: train.loss is 1.5 in the record and ")
    assert lines[2].startswith("  metrics.jsonl:13: the row (train, step 10) was changed")
    assert len(lines) == 3
    status, said, _ = command("verify", run, "--json")
    (difference,) = json.loads(said)["differences"]
    assert (difference["step"], difference["metric"], difference["recorded"]) == (10, "loss", 1.5)


def test_a_row_under_another_step_is_missing(run: Path, command: Call) -> None:
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(text.replace('"step": 10', '"step": 11', 1))
    status, said, _ = command("verify", run)
    assert status == 1
    assert "step 10: only what was trained again has a row of train" in said


def test_numbers_may_differ_within_a_tolerance(run: Path, command: Call) -> None:
    loss = next(row for row in rows(run) if row["step"] == 10)["loss"]
    edit(run, 10, loss=loss * (1 + 1e-6))
    assert "not equal bit for bit" in command("verify", run)[1]
    _, said, _ = command("verify", run, "--tolerance", "1e-4")
    assert "are equal within 0.0001" in said and "weights" in said


def test_weights_that_were_exchanged_are_found(run: Path, command: Call) -> None:
    place = run / "checkpoints/step-00000012"
    weights = load_file(place / "model.safetensors")
    name = max(weights)
    weights[name] = weights[name] * 1.01
    save_file(weights, place / "model.safetensors")
    manifest = read_manifest(place)
    files = manifest.files | {"model.safetensors": digest_file(place / "model.safetensors")}
    (place / "manifest.json").write_bytes(Manifest(12, manifest.metric, files).render())
    status, said, _ = command("verify", run)
    assert status == 1
    assert f"model/{name} differs by 0.0099 of its norm" in said
    assert "step-00000012: its manifest differs from the sealed one" in said


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ("3:8", "RUN has no checkpoint of step 3 to continue training from.\n"
                "Valid: 0, 4, 7, 8; 0 is the start of the run"),
        ("8:13", "RUN has no steps 8 to 13: its record ends at step 12.\n"
                 "Valid: a first step of 0, 4, 7, 8, and a later last step up to 12"),
        ("8:8", "RUN has no steps 8 to 8"),
        ("8", "--steps 8 is not a range of steps.\nValid: A:B, such as 100:200"),
    ],
)  # fmt: skip
def test_stretches_that_are_not_there(run: Path, command: Call, steps: str, said: str) -> None:
    status, _, error = command("verify", run, "--steps", steps)
    assert status == 2 and said.replace("RUN", str(run)) in error


def test_a_stretch_of_two_configurations_is_refused(run: Path) -> None:
    resumed = {"event": "resume", "step": 8, "accepted": [{"path": "optimizer.lr"}]}
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps(resumed) + "\n")
    with refused():
        choose_steps(run, (4, 12))
    assert choose_steps(run, (4, 8)).record == run / "checkpoints/step-00000008"
    assert choose_steps(run, (8, 10)).record == run / "checkpoints/step-00000012"


def test_other_data_is_refused_in_words(run: Path, command: Call) -> None:
    path = run / "environment.json"
    facts = json.loads(path.read_text())
    facts["data"]["train"]["digest"] = "0" * 64
    path.write_text(json.dumps(facts))
    status, _, error = command("verify", run)
    assert status == 2 and f"{run} cannot be trained again: {run} cannot be resumed: its" in error
    assert "setpoint-verify-" not in error and "--accept" not in error


def test_a_hostile_record_runs_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Call
) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('evil code ran')\n")
    monkeypatch.syspath_prepend(tmp_path)
    job = small_job(
        tmp_path,
        "tracking.trackers.append={type=wandb}",
        "resilience.heartbeat={}",
        f"tracking.alerts=[{{type=command, command=[touch, {tmp_path}/ran]}}]",
        "tracking.trackers.append={type=prometheus}",
        f"checkpoint.remote.url=file://{tmp_path}/elsewhere",
        "profiling={}",
    )
    for name, text in record_files(job).items():
        (run / name).write_text(text)
    cleaned, _ = recorded_job(run)
    assert [type(each).__name__ for each in cleaned.tracking.trackers] == ["Jsonl"]
    assert cleaned.checkpoint.remote is cleaned.profiling is cleaned.resilience.heartbeat is None
    assert cleaned.tracking.alerts == ()
    shutil.rmtree(run / "checkpoints")
    monkeypatch.setenv("SETPOINT_IMPORTS", "evil")
    job = small_job(tmp_path, "model.norm={type=import, target=evil.Norm}")
    for name, text in record_files(job).items():
        (run / name).write_text(text)
    monkeypatch.delenv("SETPOINT_IMPORTS")
    for words in (("verify", run), ("rerun", run, "--output", tmp_path / "out")):
        status, said, error = command(*words)
        assert status == 2 and not said and "evil.Norm must not be imported" in error, error
    assert "evil" not in sys.modules and not (tmp_path / "out").exists()


def test_a_run_is_trained_again_in_a_directory_of_its_own(
    run: Path, tmp_path: Path, command: Call
) -> None:
    output = tmp_path / "again"
    status, said, error = command("rerun", run, "--output", run)
    assert status == 2 and "is the run itself" in error
    status, said, _ = command("rerun", run, "--output", output, "--json")
    answer = json.loads(said[said.index("{") :])
    assert status == 0 and answer["equal"] and answer["rows"] == len(rows(run))
    assert rows(output) == rows(run)
    edit(run, 3, lr=7.0)
    status, said, _ = command("rerun", run, "--output", output)
    assert status == 1 and "step 3: train.lr is 7.0 in the record and 0.0" in said


def test_another_environment_is_printed_and_refused(
    run: Path, tmp_path: Path, command: Call
) -> None:
    path, output = run / "environment.json", tmp_path / "again"
    facts = json.loads(path.read_text())
    facts["packages"]["torch"] = "1.0"
    facts["code"]["user"]["revision"] = "abc"
    path.write_text(json.dumps(facts))
    status, _, error = command("rerun", run, "--output", output)
    assert status == 2 and not output.exists()
    assert "packages.torch: 1.0 in the record, 2." in error
    assert "code.user.revision: abc in the record" in error and "--allow-differences" in error
    words = ("rerun", run, "--output", output, "--allow-differences")
    status, said, _ = command(*words)
    assert status == 0 and "note: packages.torch: 1.0 in the record" in said
    # The new directory says with what it was trained.
    assert json.loads((output / "environment.json").read_text())["packages"]["torch"] != "1.0"
    status, said, _ = command("verify", run)
    assert status == 0 and "note: packages.torch: 1.0 in the record" in said


def test_a_rerun_goes_on_with_its_own_directory_alone(
    run: Path, tmp_path: Path, command: Call
) -> None:
    """A copy of the run, or a file, is nothing that was trained again."""
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    status, said, error = command("rerun", run, "--output", copy)
    assert (status, said) == (2, "") and f"{copy} is a run that this command did not train" in error
    (tmp_path / "file").touch()
    status, _, error = command("rerun", run, "--output", tmp_path / "file")
    assert status == 2 and "file is a file; give a directory" in error


def test_another_configuration_is_found(run: Path, tmp_path: Path, command: Call) -> None:
    """Of one value, and a whole record of another run in place of this one's."""
    path, text = run / "config.json", (run / "config.json").read_text()
    record = json.loads(text)
    record["optimizer"]["lr"] *= 2
    path.write_text(json.dumps(record))
    status, said, _ = command("verify", run)
    assert status == 1 and "the record was changed after it was written: optimizer.lr is" in said
    status, _, error = command("rerun", run, "--output", tmp_path / "new")
    assert status == 2 and "the record was changed after it was written" in error
    path.write_text("{")
    status, said, _ = command("verify", run)
    assert status == 1 and "config.json:1:2" in said
    status, _, error = command("rerun", run, "--output", tmp_path / "new")
    assert status == 2 and "config.json:1:2" in error
    other = small_job(tmp_path, *FLAGS, "optimizer.lr=0.5")
    for name, text in record_files(other).items():
        (run / name).write_text(text)
    status, said, _ = command("runs", "verify", run)
    wanted = f"no sealed session has its fingerprint, {fingerprint(other)}"
    assert status == 1 and f"  config.json: {wanted}\n" in said
    assert wanted in "".join(verify_chain(run).problems)


@pytest.mark.parametrize("facts", [5, {"threads": {"torch": 10**9}}, {"threads": {"torch": "2"}}])
def test_a_damaged_environment_is_said(run: Path, command: Call, facts: Any) -> None:
    (run / "environment.json").write_text(json.dumps(facts))
    status, _, error = command("verify", run)
    assert status == 2 and "environment.json: " in error


def test_a_run_that_has_not_trained_is_said(run: Path, command: Call) -> None:
    (run / "metrics.jsonl").unlink()
    shutil.rmtree(run / "checkpoints")
    for name in ("verify", "rerun"):
        status, _, error = command(name, run)
        assert status == 2 and "has not trained a step yet" in error


def test_environments_are_compared_by_what_decides_the_bits() -> None:
    facts = {
        "code": {"user": {"root": "/a", "revision": "x", "diff": "a\n"}, "setpoint": "the same"},
        "python": {"version": "3.11", "executable": "/a"},
        "packages": {"remote": "1", "torch": "2"},
        "processor": {"model": "A", "cores": 2},
        "torch": {"version": "2", "devices": []},
        "system": {"host": "a"},
    }
    other = json.loads(json.dumps(facts))
    other["code"]["user"] |= {"root": "/b", "diff": {"sha256": "0" * 64, "characters": 9}}
    other["python"]["executable"] = other["system"]["host"] = "/b"
    other["packages"] = {"remote": "2", "torch": "2", "numpy": "1"}
    other["processor"] = {"model": "B", "cores": 3}
    assert environment_differences(facts, facts) == []
    assert environment_differences(facts, other) == [
        "code.user.diff: uncommitted changes 87428fc52280 in the record, uncommitted changes "
        "000000000000 here",
        "packages.remote: 1 in the record, 2 here",
        "processor.model: A in the record, B here",
        "packages.numpy: none in the record, 1 here",
    ]


@pytest.mark.slow
def test_a_run_of_two_ranks(tmp_path: Path) -> None:
    def setpoint(*words: str) -> str:
        command = [sys.executable, "-m", "setpoint", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    job = str(write_config(tmp_path))
    flags = [f"--{flag}" for flag in (*FLAGS, "parallel.shard=2", "tracking.progress=none")]
    setpoint("train", job, "--nproc", "2", *flags)
    (run,) = (tmp_path / "runs").iterdir()
    said = setpoint("verify", str(run))
    assert "steps 8 to 12 trained again: 6 rows of metrics and the weights are equal" in said
    assert "no single checksum" in said and "step-00000012/manifest.json has one" in said
    said = setpoint("rerun", str(run))
    assert "steps 0 to 12 trained again: 16 rows of metrics and the weights are equal" in said
