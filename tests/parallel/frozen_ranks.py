"""Run by train/test_run_state.py: ranks go on from a checkpoint without frozen parameters.

Its arguments are axes of two ranks; all without any. One rank has saved it; they save one more,
which leaves out the same, and from which one rank goes on. Nothing is lost on the way. With
`quantized` among them an adapter trains on a quantized base.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import torch

from setpoint.checkpoint.folder import list_checkpoints
from setpoint.checkpoint.loading import load_directory
from setpoint.checkpoint.manifest import BASE, read_manifest
from setpoint.infer.loaded_model import add_adapter
from setpoint.model import load_pretrained, save_pretrained
from setpoint.model.pretrained.load import frozen_of
from setpoint.shapes.placed import as_placed
from setpoint.train.run import train

from ..support.ranks import fork, group_of
from ..train.small import small_job

COMMON = ("model.dropout=0", "model.layers=2", "evaluation=null", "schedule.horizon=6 steps",
          "batch.global_size=4", "batch.micro_size=1", "checkpoint.every=2 steps")  # fmt: skip
FROZEN = ("optimizer.frozen=['^(?!output|layers\\.1)']", "checkpoint.save_frozen=false")
if "quantized" in sys.argv:
    ADAPTER = "{type: qlora, rank: 2, b_std: 0.1, quantize: {type: nf4, group_size: 8}}"
    FROZEN = (f"adapter={ADAPTER}", FROZEN[1])
AXES = ("shard", "tensor", "pipeline", "replicate")


def trained(
    folder: Path, run: str, steps: int, *flags: str, store: str = "", rank: int = 0
) -> None:
    """Train or go on, on two ranks where there is a store that they meet at."""
    given = (*COMMON, *FROZEN, f"workspace={folder}", f"model.pretrained={folder / 'hf'}", *flags)
    job = small_job(
        folder / f"jobs-{rank}", *given, f"duration={steps} steps", without=("accumulation",)
    )
    with group_of(rank, 2 if store else 1, store):
        train(job, directory=folder / run)


def prepare(folder: Path) -> None:
    job = small_job(folder / "jobs", *COMMON, "duration=1 steps", without=("accumulation",))
    save_pretrained(
        load_pretrained(train(job, directory=folder / "first").directory), folder / "hf"
    )
    trained(folder, "one", 2)


def weights(run: Path) -> dict[str, torch.Tensor]:
    """The weights of the newest checkpoint, with what it leaves out."""
    *_, newest = list_checkpoints(run / "checkpoints").values()
    held = {**load_directory(newest).tensors["model"], **frozen_of(newest, add_adapter)}
    return {name: as_placed(each, torch.empty(0)) for name, each in held.items()}


def compare(folder: Path, axis: str) -> None:
    checkpoint = folder / axis / "checkpoints" / "step-00000004"
    files = read_manifest(checkpoint).files
    assert BASE in files and "model.index.json" in files, sorted(files)
    assert '"embedding.weight"' not in (checkpoint / "model.index.json").read_text()
    one, two = (weights(folder / run) for run in ("one", axis))
    if "quantized" in sys.argv:
        assert ".codes" not in (checkpoint / "model.index.json").read_text()
        for name, tensor in one.items():
            atol = 1e-5 if ".adapter." in name else 0.0
            torch.testing.assert_close(two[name], tensor, rtol=1e2 * atol, atol=atol)
        print(f"{axis}: equal")
        return
    for name, tensor in load_pretrained(folder / "hf").state_dict().items():
        if name.startswith(("output", "layers.1")):
            torch.testing.assert_close(two[name], one[name], rtol=1e-4, atol=1e-5)
        else:
            assert torch.equal(two[name], tensor) and torch.equal(one[name], tensor), name
    print(f"{axis}: equal")


def main(axes: list[str]) -> int:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)

        def begins(rank: int, store: str) -> None:
            prepare(folder)

        def goes_on(rank: int, store: str) -> None:
            for axis in axes:
                flags = ("parallel.world_size=2", f"parallel.{axis}=2")
                trained(folder, axis, 4, *flags, store=f"{store}-{axis}", rank=rank)

        def ends(rank: int, store: str) -> None:
            trained(folder, "one", 6)
            for axis in axes:
                trained(folder, axis, 6)
                compare(folder, axis)

        status = fork(begins, 1)
        for axis in axes:
            shutil.copytree(folder / "one", folder / axis)
        return status or fork(goes_on, 2) or fork(ends, 1)


if __name__ == "__main__":
    sys.exit(main([each for each in sys.argv[1:] if each in AXES] or [*AXES]))
