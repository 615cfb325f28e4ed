"""Ranks that die and come back as fewer or more: the run is that of one rank."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch

from setpoint.checkpoint.store import CheckpointStore
from setpoint.cli.main import main
from setpoint.ops.heartbeat import read_heartbeats
from setpoint.shapes.placed import as_placed

from ..support.forks import forked
from ..support.ranks import free_port
from ..support.snapshots import compare_message
from ..train.small import events, rows
from .test_faults import saved_step
from .test_launch import Launched, folder, processes_of, the_run, words

__all__ = ["folder"]


@pytest.mark.parametrize(
    "shapes",
    [
        [(2, 3), (1, None)],
        pytest.param([(2, 3), (4, 5), (1, 7), (2, None)], marks=pytest.mark.slow),
    ],
    ids=lambda shapes: ", ".join(str(ranks) for ranks, _ in shapes),
)
def test_numbers_of_ranks_that_follow_one_another_are_one_run(
    tmp_path: Path, shapes: list[tuple[int, int | None]]
) -> None:
    """Each time one of them is killed between two checkpoints."""
    forked("tests.parallel.elastic_ranks", str(tmp_path), json.dumps(shapes))
    (changed,), (alone,) = ((tmp_path / "runs").glob(f"{name}-*") for name in ("elastic", "alone"))
    begun = [event["step"] for event in events(changed) if event["event"] in ("start", "resume")]
    assert begun == [0, *(dies // 2 * 2 for _, dies in shapes if dies is not None)]
    seen, expected = ([row["loss"] for row in rows(each)] for each in (changed, alone))
    assert len(seen) == 2 + 2 * len(shapes) and seen == pytest.approx(expected, rel=1e-5)
    weights = [CheckpointStore(each / "checkpoints").load_newest() for each in (changed, alone)]
    ours, theirs = (each.tensors["model"] for each in weights if each is not None)
    for name, tensor in theirs.items():
        whole = as_placed(ours[name], torch.empty(0))
        torch.testing.assert_close(whole, as_placed(tensor, torch.empty(0)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("nodes", ["1:4", "4:1", "1:"])
def test_a_range_of_machines_that_the_batch_cannot_follow_is_refused(
    nodes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ("--nnodes", nodes, "--rdzv-endpoint", "localhost:1", "--rdzv-id", "a")
    assert main(["train", "tiny", "--nproc", "1", *place]) == 2
    compare_message(capsys.readouterr().err)


@pytest.mark.slow
def test_machines_that_come_and_go(folder: Path) -> None:
    """Two, then one rank alone, then two: a stop of one ends all at the same step."""
    place = ("--rdzv-endpoint", f"localhost:{free_port()}", "--rdzv-id", "job", "--nnodes", "1:2")
    given = (*words("--evaluation=null", duration=10**6), "--batch.global_size=4",
             "--parallel.shard=-1", "--resilience.heartbeat.every=0.2", "--nproc", "1",
             "--max-restarts", "3", *place)  # fmt: skip
    first = Launched(folder, *given, name="node-0")
    first.until("step 5/")
    # The second comes to a run that is under way.
    second = Launched(folder, *given, name="node-1")
    run = the_run(folder)

    def trains_with(ranks: int) -> bool:
        beats = read_heartbeats(run)
        return [beat.world_size for beat in beats] == [ranks] * ranks and all(
            beat.phase != "start" and (beat.step or 0) > at for beat in beats
        )

    at = saved_step(run)
    second.wait_for(lambda: trains_with(2))
    at = saved_step(run)
    (rank,) = [pid for pid in processes_of(folder) if _parent(pid) == second.process.pid]
    second.process.kill()
    second.end()
    os.kill(rank, signal.SIGKILL)
    first.wait_for(lambda: trains_with(1))
    assert "starting the ranks again: restart 1 of 3" in first.text
    first.process.send_signal(signal.SIGTERM)
    assert first.end() == 75, first.text
    end = events(run, "end")[-1]
    assert (end["status"], end["step"]) == (75, saved_step(run))


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
