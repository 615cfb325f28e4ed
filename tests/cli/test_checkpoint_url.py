"""`setpoint checkpoint list` and `verify` on a URL."""

from __future__ import annotations

import json
from pathlib import Path

from setpoint.checkpoint.manifest import read_manifest
from setpoint.checkpoint.remote import RemoteRun

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
    assert "model.safetensors has the SHA-256" in answer.out
    kinds = [
        row["kind"] for row in json.loads(cli.ok(f"checkpoint list {url} --json"))["checkpoints"]
    ]
    assert kinds == ["unfinished", "checkpoint", "set aside"]


def test_a_url_with_nothing_or_of_no_service(cli: CommandLine, tmp_path: Path) -> None:
    assert "no checkpoints in file://" in cli.ok(f"checkpoint list file://{tmp_path}/nothing")
    answer = cli("checkpoint list nonsense://bucket/run")
    assert (answer.status, "unknown protocol, nonsense" in answer.err) == (2, True)
