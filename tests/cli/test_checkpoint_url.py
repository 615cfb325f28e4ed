"""`setpoint checkpoint list` and `verify` on a URL."""

from __future__ import annotations

import json
from pathlib import Path

from setpoint.checkpoint.manifest import read_manifest
from setpoint.ops.remote_run import RemoteRun

from .conftest import CommandLine
from .test_checkpoint import break_byte, make


def uploaded(cli: CommandLine) -> str:
    make(cli.folder / "run" / "checkpoints", [2.5, 1.25, 2.0])
    url = f"file://{cli.folder}/bucket/run"
    run = RemoteRun(url)
    for path in sorted((cli.folder / "run" / "checkpoints").glob("step-*")):
        run.send(path, read_manifest(path), best=200)
    return url


def test_the_list_is_that_of_the_folder(cli: CommandLine) -> None:
    url = uploaded(cli)
    here = json.loads(cli.ok("checkpoint list run --json"))
    there = json.loads(cli.ok(f"checkpoint list {url} --json"))
    assert there["folder"] == "file://HERE/bucket/run/checkpoints"
    for rows in (here, there):
        for row in rows["checkpoints"]:
            assert row.pop("written") > 1e9
    assert there["checkpoints"] == here["checkpoints"]
    assert "3 in file://" in cli.ok(f"checkpoint list {url}")
    only = json.loads(cli.ok(f"checkpoint list {url}/checkpoints/best --json"))
    assert [row["step"] for row in only["checkpoints"]] == [200]


def test_what_is_damaged_set_aside_or_unfinished_is_named(cli: CommandLine) -> None:
    url = uploaded(cli)
    assert "step-00000200: ok, 3 files" in cli.ok(f"checkpoint verify {url}")
    folder = cli.folder / "bucket" / "run" / "checkpoints"
    break_byte(folder / "step-00000200" / "model.safetensors")
    RemoteRun(url).set_aside_after(200)
    (folder / "step-00000100" / "manifest.json").unlink()
    answer = cli(f"checkpoint verify {url}")
    assert answer.status == 1
    assert "model.safetensors has the BLAKE3" in answer.out
    kinds = [
        row["kind"] for row in json.loads(cli.ok(f"checkpoint list {url} --json"))["checkpoints"]
    ]
    assert kinds == ["unfinished", "checkpoint", "set aside"]


def test_a_url_with_nothing_or_of_no_service(cli: CommandLine, tmp_path: Path) -> None:
    answer = cli(f"checkpoint list file://{tmp_path}/nothing")
    assert (answer.status, "nothing holds no checkpoints" in answer.err) == (2, True)
    answer = cli("checkpoint list nonsense://bucket/run")
    assert (answer.status, "unknown protocol, nonsense" in answer.err) == (2, True)


def test_a_folder_of_runs_is_listed(cli: CommandLine) -> None:
    above = uploaded(cli).rpartition("/")[0]
    assert "1 runs in file://" in cli.ok(f"checkpoint list {above}")
    (row,) = json.loads(cli.ok(f"checkpoint list {above} --json"))["runs"]
    assert (row["run"], row["checkpoints"], row["latest"], row["best"]) == ("run", 3, 300, 200)


def test_what_has_no_reason_to_stay_is_removed(cli: CommandLine) -> None:
    url = uploaded(cli)
    assert "--keep N" in cli(f"checkpoint prune {url}").err
    wide = json.loads(cli.ok(f"checkpoint prune {url} --keep 1 --keep-every '0.25 epochs' --json"))
    reasons = {row["step"]: row["reasons"] for row in wide["checkpoints"]}
    assert reasons[100] == ["every 0.25 epochs"] and reasons[300][0] == "latest"
    folder = cli.folder / "bucket" / "run" / "checkpoints"
    (folder / "step-00000050").mkdir()
    said = cli.ok(f"checkpoint prune {url} --keep 1")
    assert "would be removed: 1 of 3" in said and len(list(folder.glob("step-*"))) == 4
    assert "removed: 1 of 3" in cli.ok(f"checkpoint prune {url} --keep 1 --yes")
    left = sorted(path.name for path in folder.glob("step-*"))
    assert left == ["step-00000050", "step-00000200", "step-00000300"]
    assert "is one checkpoint" in cli(f"checkpoint prune {url}/checkpoints/latest --yes").err
