"""Run by test_checkpoints_of_ranks.py: two ranks go on from a URL in another place."""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from setpoint.ops.remote_run import RemoteRun
from setpoint.train.run import train

from ..support.ranks import fork, group_of
from ..train.small import assert_same_run, events, small_job

FLAGS = (
    "model.dropout=0", "schedule=constant", "batch.global_size=4", "batch.accumulation=1",
    "parallel.device=cpu", "parallel.world_size=2", "parallel.shard=2", "evaluation.sequences=8",
    "evaluation.every=2 steps",
)  # fmt: skip


def run(folder: Path, steps: int, *flags: str) -> int:
    folder.mkdir(exist_ok=True)
    job = small_job(folder, *FLAGS, *flags, f"duration={steps} steps", without=("micro_size",))

    def one_rank(rank: int, store: str) -> None:
        real = RemoteRun.download

        def download(self: RemoteRun, found: Any, names: Any, into: Path) -> None:
            with (folder / f"files-of-rank-{rank}").open("a") as file:
                file.writelines(f"{found.step} {name}\n" for name in names)
            real(self, found, names, into)

        RemoteRun.download = download
        with group_of(rank, 2, store):
            train(job)

    return fork(one_rank, 2)


def main() -> int:
    with tempfile.TemporaryDirectory() as place:
        whole, first, second = (Path(place) / name for name in ("whole", "first", "second"))
        remote = f"checkpoint.remote.url=file://{place}/bucket"
        status = run(whole, 8) or run(first, 4, remote)
        shutil.move(first, Path(place) / "gone")
        status = status or run(second, 8, remote)
        if status:
            return status
        (oracle,), (found,) = ((folder / "runs").iterdir() for folder in (whole, second))
        assert [row["step"] for row in events(found, "resume")] == [4]
        shares = [(second / f"files-of-rank-{rank}").read_text().split("\n") for rank in (0, 1)]
        assert min(map(len, shares)) >= 4, shares
        assert not {*shares[0]} & {*shares[1]} - {""}, shares
        assert_same_run(found, oracle)
    print("equal")
    return 0


if __name__ == "__main__":
    sys.exit(main())
