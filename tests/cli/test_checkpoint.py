"""`setpoint checkpoint ...`: what there is, whether it is as it was written, and what may go."""

import json
import math
import os
import re
import shutil
import time
from pathlib import Path

import pytest
import torch

from setpoint.checkpoint.manifest import read_manifest
from setpoint.checkpoint.store import CheckpointStore
from setpoint.files.lock import RunLock
from setpoint.model import load_pretrained, save_pretrained
from setpoint.model.pretrained import save_pretrained as save
from setpoint.ops.remote_run import RemoteRun

from ..support.snapshots import compare
from ..train.small import small_job
from .conftest import CommandLine
from .test_diff import record


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
    assert (best["ranks"], best["tensors"]) == (1, ["model", "optimizer"])
    assert best["bytes"] == sum(p.stat().st_size for p in (folder / "step-00000200").iterdir())
    assert rows["step-00000300"]["damage"] == "model.safetensors is missing"
    assert rows["step-00000300"]["metric"] is None


def test_a_list_says_what_pointers_name_that_is_gone(cli: CommandLine, run: Path) -> None:
    (run / "checkpoints" / "best").write_text("step-00000900\n")
    answer = cli("checkpoint list run")
    assert answer.status == 0
    assert answer.err == "note: run/checkpoints/best names step 900, which does not exist\n"
    assert "checkpoints/best names step 900" in cli("checkpoint verify run").out


def test_a_list_of_nothing(cli: CommandLine) -> None:
    (cli.folder / "run" / "checkpoints").mkdir(parents=True)
    assert cli.ok("checkpoint list run") == "no checkpoints in run/checkpoints\n"
    cli.refused("checkpoint verify run")


def test_a_checkpoint_that_ranks_wrote_in_parts(cli: CommandLine, run: Path) -> None:
    folder = run / "checkpoints" / "step-00000100"
    for file in ("manifest.json", "model.safetensors"):
        (folder / file).unlink()
    from setpoint.checkpoint.manifest import Manifest
    from setpoint.files.atomic import Written

    names = ("model.index.json", "model-00001-of-00002.safetensors",
             "model-00002-of-00002.safetensors")  # fmt: skip
    for name in names:
        (folder / name).write_bytes(b"x")
    text = Manifest(100, None, {name: Written.of(b"x") for name in names}).render()
    (folder / "manifest.json").write_bytes(text)
    found = json.loads(cli.ok("checkpoint list run/checkpoints/step-00000100 --json"))
    [row] = found["checkpoints"]
    assert (row["ranks"], row["tensors"]) == (2, ["model"])


def test_whole_checkpoints_are_verified(cli: CommandLine, run: Path) -> None:
    text = cli.ok("checkpoint verify run")
    assert re.findall(
        r"^(\S+): ok, 3 files, [\d.]+ B$|^(\S+): ok, 3 files, [\d.]+ KiB$", text, re.M
    )
    assert text.count(": ok") == 3
    one = json.loads(cli.ok("checkpoint verify run/checkpoints/best --json"))
    assert one["ok"] and [each["step"] for each in one["checkpoints"]] == [200]


@pytest.mark.parametrize("name", ["model.safetensors", "state.json"])
def test_a_byte_that_is_not_as_it_was_written(cli: CommandLine, run: Path, name: str) -> None:
    break_byte(run / "checkpoints" / "step-00000200" / name)
    answer = cli("checkpoint verify run")
    assert answer.status == 1
    assert f"step-00000200: damaged\n  {name} has the BLAKE3 " in answer.out
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


def test_pruning_removes_only_when_asked_to(cli: CommandLine, run: Path) -> None:
    folder = run / "checkpoints"
    before = sorted(folder.iterdir())
    compare("cli/checkpoint_prune", cli.ok("checkpoint prune run --keep 1 --keep-every none"))
    assert sorted(folder.iterdir()) == before
    facts = json.loads(cli.ok("checkpoint prune run --keep 1 --yes --json"))
    stays = {row["step"]: row["reasons"] for row in facts["checkpoints"]}
    assert stays == {100: [], 200: ["best"], 300: ["latest", "newest 1"]}
    assert facts["removed"] and [p.name for p in sorted(folder.glob("step-*"))] == [
        "step-00000200", "step-00000300"
    ]  # fmt: skip
    assert cli.ok("checkpoint verify run").count(": ok") == 2


def test_rules_of_the_record_and_of_the_command_line(cli: CommandLine) -> None:
    folder = record(cli.folder / "run", "small.toml", "checkpoint.keep=1", "checkpoint.at=[100]")
    make(Path(folder) / "checkpoints", [None] * 6)

    def stay(words: str = "") -> list[int]:
        facts = json.loads(cli.ok(f"checkpoint prune run --json {words}"))
        return [row["step"] for row in facts["checkpoints"] if row["stays"]]

    assert stay() == [100, 600]
    assert stay("--keep 2") == [100, 500, 600]
    assert stay("--keep all") == [100, 200, 300, 400, 500, 600]
    assert stay("--keep-every '300 steps'") == [100, 300, 600]
    assert stay("--keep-every '1 epochs'") == [100, 400, 600]  # 0.25 epochs in 100 steps
    (Path(folder) / "checkpoints" / "step-00000200" / "manifest.json").unlink()
    (Path(folder) / "checkpoints" / "step-00000300" / "state.json").write_text("cut")
    assert stay() == [100, 200, 300, 600]
    assert " B  stays: damaged" in cli.ok("checkpoint prune run --yes")
    assert [p.name[-3:] for p in sorted((cli.folder / "run/checkpoints").glob("step-*"))] == [
        "100", "200", "300", "600"
    ]  # fmt: skip
    log = [json.loads(line) for line in (cli.folder / "run/events.jsonl").read_text().splitlines()]
    assert log[-1]["event"] == "prune"
    assert log[-1]["checkpoints"] == ["step-00000400", "step-00000500"]


def test_what_cannot_be_pruned_is_refused(cli: CommandLine, run: Path) -> None:
    record(cli.folder / "own", "small.toml")
    make(cli.folder / "own" / "checkpoints", [None] * 4)
    lock = RunLock(cli.folder / "own" / ".lock")
    try:
        assert f"is in use by process {os.getpid()}" in cli("checkpoint prune own --yes").err
    finally:
        lock.release()
    (run / "checkpoints" / "best").unlink()
    (run / "checkpoints" / "best").mkdir()
    cli.refused("checkpoint prune run --keep 1", status=1)
    for words in (
        "run", "run/checkpoints/step-00000100", "own --keep none", "own --keep-every often",
        "own --keep-every last_step",
    ):  # fmt: skip
        cli.refused(f"checkpoint prune {words}")


def test_two_checkpoints_are_compared(cli: CommandLine, run: Path) -> None:
    store = CheckpointStore(run / "checkpoints", keep=None)
    tensors = {
        "model": {"w": torch.arange(6.0).reshape(3, 2), "tied": torch.ones(2).bfloat16() * 1.5},
        "optimizer": {"w/step": torch.tensor(3.0), "new": torch.tensor([1])},
    }
    store.save(400, tensors, {"position": {"step": 400}, "more": [1, {"a": math.nan}]})
    answer = cli("checkpoint diff run/checkpoints/step-00000300 run")
    assert answer.status == 1
    compare("cli/checkpoint_diff", answer.out)
    a, b = "run/checkpoints/step-00000100", "run/checkpoints/step-00000200"
    facts = json.loads(cli(f"checkpoint diff {a} {b} --json").out)
    by_name = {each["name"]: each for each in facts["tensors"]}
    assert by_name.keys() == {"model/w", "optimizer/w/step"}
    whole = torch.arange(6.0).double()
    found = by_name["model/w"]
    norm = whole.norm().item()
    assert found["norm"] == pytest.approx(norm) == pytest.approx(found["difference"])
    assert (found["relative"], found["largest"]) == (pytest.approx(1), 5)
    assert {each["path"] for each in facts["state"]} == {
        "position.step", "position.tokens", "position.epochs"
    }  # fmt: skip


def test_a_checkpoint_is_equal_to_itself(cli: CommandLine, run: Path) -> None:
    record(cli.folder / "own", "small.toml")
    shutil.copytree(run / "checkpoints", cli.folder / "own" / "checkpoints", dirs_exist_ok=True)
    answer = cli("checkpoint diff own own/checkpoints/latest")
    assert answer.status == 0
    assert "tensors: 0 of 3 differ\nstate: 0 values" in answer.out
    break_byte(run / "checkpoints" / "step-00000300" / "model.safetensors")
    answer = cli("checkpoint diff run own")
    assert (answer.status, answer.out) == (1, "")
    assert "checkpoint run/checkpoints/step-00000300 is damaged: model.safetensors" in answer.err


@pytest.mark.parametrize(
    "words",
    [
        "list small.toml", "list nothing", "list .", "list rum", "list run/checkpoints/bset",
        "diff run s3://bucket/run", "verify run/checkpoints/step-00000900",
        "verify run --checkpoint.keep 3", "list", "verfy run",
    ],
)  # fmt: skip
@pytest.mark.usefixtures("run")
def test_what_holds_no_checkpoints_is_refused(cli: CommandLine, words: str) -> None:
    cli.refused(f"checkpoint {words}")


# `setpoint checkpoint convert`: layouts of a checkpoint, and the format of Hugging Face.


@pytest.fixture(scope="module")
def parts_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from setpoint.train.run import train

    folder = tmp_path_factory.mktemp("converted")
    small = ("duration=2 steps", "evaluation=null", "model.merge_qkv=true", "model.layers=2")
    return train(small_job(folder, *small), directory=folder / "run").directory


def test_layouts(cli: CommandLine, parts_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = cli.ok(f"checkpoint convert {parts_run} parts --to divided --ranks 3")
    assert said.strip().endswith("step-00000002 is written to parts")
    facts = json.loads(cli.ok("checkpoint convert parts one --to whole --json"))
    assert facts == {"checkpoint": "parts", "directory": "one"}
    source = parts_run / "checkpoints" / "step-00000002"
    for each in source.iterdir():
        assert (cli.folder / "one" / each.name).read_bytes() == each.read_bytes()
    # The weights are never all in memory, whoever has written them.
    whole = save_pretrained(load_pretrained(parts_run), cli.folder / "whole")
    monkeypatch.setattr(save, "load_pretrained", None)
    for name in ("parts", "one"):
        cli.ok(f"checkpoint convert {name} {name}-hf --to huggingface")
        for file in ("model.safetensors", "config.json"):
            assert (cli.folder / f"{name}-hf" / file).read_bytes() == (whole / file).read_bytes()
    cli.ok("checkpoint convert parts hf --to huggingface --dtype bf16 --max-shard-size 9000")
    index = json.loads((cli.folder / "hf" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    weights = load_pretrained(cli.folder / "whole").state_dict()
    for name, tensor in load_pretrained(cli.folder / "hf").state_dict().items():
        assert torch.equal(tensor, weights[name].bfloat16())


@pytest.mark.parametrize(
    "words",
    [
        "one", "one --to wole", "one --to divided", "one --to whole --dtype bf16",
        "one --to huggingface --dtype f8", "taken --to whole", "file:///tmp/one --to whole",
        "{run}/checkpoints/one --to whole", "{run}/checkpoints/one --to huggingface",
    ],
)  # fmt: skip
def test_wrong_conversions_are_refused(cli: CommandLine, parts_run: Path, words: str) -> None:
    (cli.folder / "taken").mkdir()
    (cli.folder / "taken" / "file").touch()
    cli.refused(f"checkpoint convert {parts_run} {words.format(run=parts_run)}")
    assert not (cli.folder / "one").exists()


# `setpoint checkpoint list` and `verify` on a URL.


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
    cli.refused(f"checkpoint list file://{tmp_path}/nothing")
    answer = cli("checkpoint list nonsense://bucket/run")
    assert (answer.status, "unknown protocol, nonsense" in answer.err) == (2, True)


def test_a_folder_of_runs_is_listed(cli: CommandLine) -> None:
    above = uploaded(cli).rpartition("/")[0]
    assert "1 run in file://" in cli.ok(f"checkpoint list {above}")
    (row,) = json.loads(cli.ok(f"checkpoint list {above} --json"))["runs"]
    assert (row["run"], row["checkpoints"], row["latest"], row["best"]) == ("run", 3, 300, 200)


def test_what_has_no_reason_to_stay_is_removed(cli: CommandLine) -> None:
    url = uploaded(cli)
    cli.refused(f"checkpoint prune {url}")
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
    cli.refused(f"checkpoint prune {url}/checkpoints/latest --yes")
