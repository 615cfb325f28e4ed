"""`setpoint checkpoint ...`: what there is, whether it is as it was written, and what may go."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from setpoint.checkpoint.store import CheckpointStore

from ..snapshots import compare
from .conftest import CommandLine


def make(root: Path, metrics: list[float | None], keep: int | None = None) -> CheckpointStore:
    """A folder of checkpoints, one for each metric, from step 100 on."""
    store = CheckpointStore(root, keep=keep)
    for number, metric in enumerate(metrics, 1):
        tensors = {
            "model": {"w": torch.arange(6.0).reshape(2, 3) * number, "tied": torch.ones(2)},
            "optimizer": {"w/step": torch.tensor(float(number))},
        }
        step = 100 * number
        state = {"position": {"step": step, "tokens": 10 * step, "epochs": number / 4}}
        store.save(step, tensors, state, metric)
    for path in root.glob("step-*/manifest.json"):
        os.utime(path, (1_790_000_000, 1_790_000_000))
    return store


def break_byte(path: Path, at: int = -1) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.fixture
def run(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with three checkpoints, of which the second is the best."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    run = cli.folder / "run"
    make(run / "checkpoints", [2.5, 1.25, float("nan")])
    return run


def test_a_list_names_everything_that_lies_there(cli: CommandLine, run: Path) -> None:
    folder = run / "checkpoints"
    (folder / "step-00000100").rename(folder / "step-00000100.damaged-1")
    (folder / "step-00000300" / "model.safetensors").unlink()
    (folder / "step-00000400.tmp-99999999").mkdir()
    compare("cli/checkpoint_list", cli.ok("checkpoint list run"))
    facts = json.loads(cli.ok("checkpoint list run/checkpoints --json"))
    rows = {row["checkpoint"]: row for row in facts["checkpoints"]}
    assert [row["kind"] for row in rows.values()] == [
        "checkpoint", "checkpoint", "set aside", "unfinished"
    ]  # fmt: skip
    best = rows["step-00000200"]
    assert (best["step"], best["metric"], best["named_by"]) == (200, 1.25, ["best"])
    assert (best["format"], best["ranks"], best["tensors"]) == (2, 1, ["model", "optimizer"])
    assert best["bytes"] == sum(p.stat().st_size for p in (folder / "step-00000200").iterdir())
    assert rows["step-00000300"]["damage"] == "model.safetensors is missing"
    assert rows["step-00000300"]["metric"] is None


def test_a_list_says_what_pointers_name_that_is_gone(cli: CommandLine, run: Path) -> None:
    (run / "checkpoints" / "best").write_text("step-00000900\n")
    answer = cli("checkpoint list run")
    assert answer.status == 0
    assert answer.err == "note: run/checkpoints/best names step 900, which is not there\n"
    assert "checkpoints/best names step 900" in cli("checkpoint verify run").out


def test_a_list_of_nothing(cli: CommandLine) -> None:
    (cli.folder / "run" / "checkpoints").mkdir(parents=True)
    assert cli.ok("checkpoint list run") == "no checkpoints in run/checkpoints\n"
    assert "there are no checkpoints in run/checkpoints" in cli.refused("checkpoint verify run")


def test_a_checkpoint_that_ranks_wrote_in_parts(cli: CommandLine, run: Path) -> None:
    folder = run / "checkpoints" / "step-00000100"
    for file in ("manifest.json", "model.safetensors"):
        (folder / file).unlink()
    from setpoint.checkpoint.durable import Written
    from setpoint.checkpoint.manifest import Manifest

    names = ("model.index.json", "model-00001-of-00002.safetensors",
             "model-00002-of-00002.safetensors")  # fmt: skip
    for name in names:
        (folder / name).write_bytes(b"x")
    text = Manifest(100, None, {name: Written.of(b"x") for name in names}).render()
    (folder / "manifest.json").write_bytes(text)
    found = json.loads(cli.ok("checkpoint list run/checkpoints/step-00000100 --json"))
    [row] = found["checkpoints"]
    assert (row["ranks"], row["format"], row["tensors"]) == (2, 3, ["model"])


def test_what_is_as_it_was_written(cli: CommandLine, run: Path) -> None:
    text = cli.ok("checkpoint verify run")
    assert re.findall(
        r"^(\S+): ok, 3 files, [\d.]+ B$|^(\S+): ok, 3 files, [\d.]+ KiB$", text, re.M
    )
    assert text.count(": ok") == 3
    one = json.loads(cli.ok("checkpoint verify run/checkpoints/best --json"))
    assert one["ok"] and [each["step"] for each in one["checkpoints"]] == [200]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_byte_that_is_not_as_it_was_written(cli: CommandLine, run: Path, name: str) -> None:
    break_byte(run / "checkpoints" / "step-00000200" / name)
    answer = cli("checkpoint verify run")
    assert answer.status == 1
    assert f"step-00000200: damaged\n  {name} has the SHA-256 " in answer.out
    assert answer.out.count(": ok") == 2
    facts = json.loads(cli("checkpoint verify run --json").out)
    wrong = [f["name"] for c in facts["checkpoints"] for f in c["files"] if f["problem"]]
    assert (facts["ok"], wrong) == (False, [name])
    # What nothing was asked of does not count.
    assert cli("checkpoint verify run/checkpoints/step-00000300").status == 0


def test_all_that_can_be_wrong_is_said_at_once(cli: CommandLine, run: Path) -> None:
    folder = run / "checkpoints"
    break_byte(folder / "step-00000100" / "manifest.json", 20)
    (folder / "step-00000200" / "model.safetensors").unlink()
    with (folder / "step-00000200" / "state.json").open("a") as file:
        file.write(" ")
    (folder / "step-00000300").rename(folder / "step-00000400")
    answer = cli("checkpoint verify run")
    assert answer.status == 1
    compare("cli/checkpoint_verify", answer.out)


def test_what_holds_no_checkpoints_is_refused(cli: CommandLine, run: Path) -> None:
    said = [
        cli.refused(f"checkpoint {words}")
        for words in (
            "list small.toml",
            "list nothing",
            "verify run/checkpoints/step-00000900",
            "verify run --checkpoint.keep 3",
            "list",
            "verfy run",
        )
    ]
    compare("cli/checkpoint_wrong", "\n".join(said))


def test_lists_and_checksums_need_no_torch(run: Path) -> None:
    program = (
        "import sys; from setpoint.cli.main import main;"
        "assert main(['checkpoint', 'list', 'run']) == 0;"
        "assert main(['checkpoint', 'verify', 'run']) == 0;"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=run.parent)
