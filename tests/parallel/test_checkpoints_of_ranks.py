"""Checkpoints of several ranks: each writes its parts, and any division reads them."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from setpoint.checkpoint import loading, staging
from setpoint.checkpoint.staging import HostMemory
from setpoint.checkpoint.store import CheckpointStore
from setpoint.config import RunError, SetpointError
from setpoint.files import tensor_file
from setpoint.model import load_pretrained, save_pretrained
from setpoint.model.pretrained import fill
from setpoint.model.pretrained.fill import block, common
from setpoint.model.pretrained.weight_names import Part, Piece
from setpoint.parallel.config import AXES
from setpoint.parallel.world import RemoteRankError, World
from setpoint.shapes.placed import as_placed, local_part, whole_of
from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.run import train

from ..checkpoint.stored import load as load_stored
from ..conftest import ROOT
from ..support.forks import forked
from ..support.ranks import run_on_ranks
from ..train.small import small_job

DEGREES = {**dict.fromkeys(AXES, 1), "shard": 2}
# Rows that do not divide, one row for two ranks, none, a scalar.
SHAPES = {"odd": (5, 3), "row": (1, 4), "none": (0, 2), "scalar": (), "columns": (2, 6)}
WHOLE = {
    name: torch.arange(float(torch.Size(shape).numel())).reshape(shape).mul(1.5)
    for name, shape in SHAPES.items()
}
PLACED: dict[str, dict[str, Placement]] = {
    "rows": {name: Shard(0) for name in ("odd", "row", "none", "columns")},
    "columns": {"columns": Shard(1), "odd": Shard(1), "row": Replicate()},
    "copies": {name: Replicate() for name in ("odd", "columns")},
    "plain": {},
}


def two_ranks() -> tuple[World, DeviceMesh]:
    """The world of this rank, and a mesh of both."""
    rank = dist.get_rank()
    at: Mapping[str, int] = {**dict.fromkeys(AXES, 0), "shard": rank}
    world = World(torch.device("cpu"), rank, 2, degrees=DEGREES, coordinates=at)
    return world, DeviceMesh("cpu", [0, 1])


def placed(mesh: DeviceMesh, how: str) -> dict[str, Tensor]:
    """The tensors, as DTensors or plain."""
    return {
        name: distribute_tensor(whole.clone(), mesh, [PLACED[how][name]], src_data_rank=None)
        if name in PLACED[how]
        else whole.clone()
        for name, whole in WHOLE.items()
    }


def equal_in_any_other_division(folder: Path) -> None:
    (world, mesh), folder = two_ranks(), folder.parent
    for before in PLACED:
        store = CheckpointStore(folder / before, keep=None, world=world)
        store.save(1, {"model": placed(mesh, before), "half": half()}, {"a": [1]}, texts={"t": "x"})
        for after in PLACED:
            found = store.load_newest()
            assert found is not None and found.state == {"a": [1]}
            for name, like in placed(mesh, after).items():
                back = as_placed(found.tensors["model"][name], like)
                assert torch.equal(whole_of(back), WHOLE[name]), (before, after, name)
                assert isinstance(back, DTensor) == isinstance(like, DTensor)
        # One process without a group reads them as well.
        alone = load_stored(folder / before)
        for name, whole in WHOLE.items():
            assert torch.equal(as_placed(alone.tensors["model"][name], torch.empty(0)), whole)
        assert as_placed(alone.tensors["half"]["h"], torch.empty(0)).dtype == torch.bfloat16
        # Every element is written once, whoever holds it.
        index = json.loads((folder / before / "step-00000001" / "model.index.json").read_text())
        for name, entry in index["tensors"].items():
            written = sum(math.prod(part["shape"]) for part in entry["parts"])
            assert written == WHOLE[name].numel(), (before, name)


def half() -> dict[str, Tensor]:
    return {"h": torch.ones(3, dtype=torch.bfloat16)}


def what_one_rank_cannot_save_all_hear_of(folder: Path) -> None:
    (world, mesh), folder = two_ranks(), folder.parent / "run"
    store = CheckpointStore(folder, world=world)
    with pytest.MonkeyPatch.context() as patch:
        if world.rank == 1:

            def refusing(tensors: Mapping[str, Tensor], into: HostMemory | None = None) -> Any:
                raise SetpointError(f"tensor {next(iter(tensors))} cannot be saved")

            patch.setattr(staging, "encode_tensors", refusing)
        error = SetpointError if world.rank == 1 else RemoteRankError
        with pytest.raises(error, match="rank 1: tensor"):
            store.save(1, {"model": placed(mesh, "rows")}, {})
    dist.barrier()
    assert not list(folder.iterdir())


def the_reader_of_the_docs_reads_them(folder: Path) -> None:
    """The program of docs/reference/checkpoint-format.md reads checkpoints of 1 and 2 ranks."""
    (world, mesh), folder = two_ranks(), folder.parent
    tensors = placed(mesh, "rows") | half()
    CheckpointStore(folder / "two", world=world).save(1, {"model": tensors}, {})
    if not world.is_main:
        return
    tied = {**WHOLE, **half(), "tied": WHOLE["odd"]}
    CheckpointStore(folder / "one").save(1, {"model": tied}, {})
    page = ROOT / "docs" / "reference" / "checkpoint-format.md"
    (program,) = re.findall("```python\n(# read_.*?)```", page.read_text(), re.DOTALL)
    assert "setpoint" not in program and len(program.splitlines()) <= 31
    names: dict[str, Any] = {"__name__": "reader"}
    exec(compile(program, str(page), "exec"), names)
    for which, expected in (("one", tied), ("two", {**WHOLE, **half()})):
        path = folder / which / "step-00000001"
        found = names["read"](path)
        assert found.keys() == expected.keys(), which
        for name, tensor in expected.items():
            assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name
        file = next(path.glob("model*.safetensors"))
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
        with pytest.raises(ValueError, match="is damaged"):
            names["read"](path)


def test_parts_are_written_once_and_read_by_any_division() -> None:
    run_on_ranks(
        2,
        equal_in_any_other_division,
        what_one_rank_cannot_save_all_hear_of,
        the_reader_of_the_docs_reads_them,
    )


# Which ranks read the weights that all start from.
COMMON = ("model.dropout=0", "model.layers=2", "evaluation=null", "batch.micro_size=1")
RANKS = ("parallel.world_size=2", "batch.global_size=4")
EXPERTS = ("model.qk_norm=true", "model.moe={experts: 4, expert_dim: 24}")
FAMILIES = (("model.tie_embeddings=true", "model.kv_heads=1"), EXPERTS)
BROADCASTS = "parallel.load_weights=broadcast"


class Begun(NamedTuple):
    """The weights that a job starts with, whole; the bytes that this rank has read and holds."""

    weights: dict[str, torch.Tensor]
    read: int
    held: int


def begun(job: Job, world: World | None = None) -> Begun:
    read: list[int] = []

    real = fill._read_stored

    def count(*given: Any) -> torch.Tensor:
        tensor = real(*given)
        read.append(tensor.nbytes)
        return tensor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensor_file, "ROW", 0)  # rows of these matrices are short
        patch.setattr(fill, "_read_stored", count)
        model = build_components(job, world=world).model
    weights = {name: whole_of(value) for name, value in model.state_dict().items()}
    held = sum(local_part(each).nbytes for each in model.parameters())
    return Begun(weights, sum(read), held)


def each_reads_what_it_is_to(folder: Path, files: Path) -> None:
    one = World(torch.device("cpu"))
    for number, family in enumerate(FAMILIES):
        small = (*COMMON, *family)
        source = build_components(small_job(folder, *small, "seed=5"), world=one).model
        path = files / f"weights-{number}"
        if dist.get_rank() == 0:
            save_pretrained(source, path)
        dist.barrier()
        starts = (*small, f"model.pretrained={path}")
        expected, whole, _ = begun(small_job(folder, *starts), one)
        divisions = ["shard=1", "shard=2", "tensor=2"]
        divisions += ["shard=2,expert=2"] if family is EXPERTS else []
        divisions += [] if "model.tie_embeddings=true" in family else ["pipeline=2"]
        for division in divisions:
            degrees = [f"parallel.{each}" for each in division.split(",")]
            job = small_job(folder, *starts, *RANKS, *degrees, without=("accumulation",))
            found, read, held = begun(job)
            if division != "pipeline=2":
                assert found.keys() == expected.keys()
            assert all(torch.equal(each, expected[name]) for name, each in found.items())
            # Of what two ranks hold each, both read all.
            assert read == pytest.approx(held, rel=0.02), (division, read, held, whole)
            assert division == "shard=1" or held < 0.8 * whole, (division, held, whole)
        for shard in (1, 2):
            flags = (*RANKS, f"parallel.shard={shard}", BROADCASTS)
            found, read, _ = begun(small_job(folder, *starts, *flags, without=("accumulation",)))
            assert all(torch.equal(found[name], expected[name]) for name in expected)
            share = (1.0, 0.0)[dist.get_rank()]
            assert read == pytest.approx(share * whole, rel=0.02), (shard, read, whole)


def a_divided_checkpoint_is_sent(folder: Path, files: Path) -> None:
    """The first rank reads the parts of all ranks, and the others none."""
    flags = (*COMMON, *RANKS, "parallel.shard=2")
    run = files / "run"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("WORLD_SIZE", 2), ("RANK", dist.get_rank())):
            patch.setenv(name, str(value))
            patch.setenv(f"LOCAL_{name}", str(value))
        train(
            small_job(folder, *flags, "duration=1 step", without=("accumulation",)), directory=run
        )
    assert [*run.glob("checkpoints/*/model.index.json")]
    expected = load_pretrained(run).state_dict()
    sizes: list[int] = []
    real = loading.read_box

    def count(descriptor: int, info: Any, box: Any, into: torch.Tensor) -> None:
        sizes.append(into.nbytes)
        real(descriptor, info, box, into)

    for option in (BROADCASTS, "parallel.load_weights=every_rank"):
        sizes.clear()
        job = small_job(
            folder, *flags, f"model.pretrained={run}", option, without=("accumulation",)
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loading, "read_box", count)
            model = build_components(job).model
        weights = {name: whole_of(value) for name, value in model.state_dict().items()}
        assert all(torch.equal(tensor, expected[name]) for name, tensor in weights.items())
        assert bool(sizes) == (option != BROADCASTS or dist.get_rank() == 0)


def all_hear_of_what_cannot_be_read(folder: Path, files: Path) -> None:
    path = files / "weights-0" / "model.safetensors"
    flags = (*COMMON, *FAMILIES[0], *RANKS, BROADCASTS, f"model.pretrained={path.parent}")
    job = small_job(folder, *flags, without=("accumulation",))

    def gone(*given: Any) -> torch.Tensor:
        raise SetpointError(f"{path} cannot be read: Input/output error")

    rank = dist.get_rank()
    with pytest.MonkeyPatch.context() as patch:
        if rank == 0:
            patch.setattr(fill, "_read_stored", gone)
        error = SetpointError if rank == 0 else RunError
        with pytest.raises(error, match=r"model.safetensors cannot be read: Input/output error"):
            build_components(job)


def weights_are_read_by_those_that_are_to(folder: Path) -> None:
    files = folder.parent
    each_reads_what_it_is_to(folder, files)
    a_divided_checkpoint_is_sent(folder, files)
    all_hear_of_what_cannot_be_read(folder, files)


def test_ranks_read_their_parts_or_what_the_first_one_sends() -> None:
    run_on_ranks(2, weights_are_read_by_those_that_are_to)


PAIRS = (
    "fp32:replicated2:tensor2", "masters:expert2:tensor2", "adapter:expert2:one",
    "tied:interleaved2:one",
)  # fmt: skip
IN_PART = 2


def test_some_pairs_of_divisions() -> None:
    lines = forked("tests.parallel.resharding", *PAIRS)
    assert len(lines.splitlines()) == len(PAIRS) + IN_PART


@pytest.mark.slow
def test_all_pairs_of_divisions() -> None:
    lines = forked("tests.parallel.resharding").splitlines()
    assert len(lines) == 2 * 11**2 + 3**2 + 2 * 2**2 + IN_PART


@pytest.mark.parametrize(
    ("piece", "theirs"),
    [
        (Piece("a", "b"), (6, 8)),
        (Piece("a", "b", transposed=True), (8, 6)),
        (Piece("a", "b", block=Part(0, 1, 4)), (4, 8)),
        (Piece("a", "b", block=Part(1, 2, 5), transposed=True), (5, 6)),
        (Piece("a", "b", hf_block=Part(0, 3, 6)), (9, 8)),
        (Piece("a", "b", hf_block=Part(1, 2, 6), transposed=True), (8, 8)),
        (Piece("a", "b", block=Part(0, 2)), (8,)),
    ],
)
@pytest.mark.parametrize(
    "box", [((0, 6), (0, 8)), ((2, 4), (0, 8)), ((4, 6), (3, 5)), ((0, 2), (6, 8))]
)
def test_a_part_of_a_piece_is_the_piece_cut(
    piece: Piece, theirs: tuple[int, ...], box: tuple[tuple[int, int], ...]
) -> None:
    source = torch.arange(1.0, 1 + torch.Size(theirs).numel()).view(theirs)
    whole = torch.zeros(6, 8)
    taken = block(source, piece.hf_block)
    block(whole, piece.block).copy_(taken.T if piece.transposed else taken)
    (top, bottom), (left, right) = box
    part = torch.zeros(bottom - top, right - left)
    if found := common(piece, (6, 8), box):
        within, ranges = found
        cut = source[tuple(slice(*each) for each in ranges)]
        part[within] = cut.T if piece.transposed else cut
    assert torch.equal(part, whole[top:bottom, left:right])


def test_ranks_fetch_their_share_and_go_on_exactly() -> None:
    assert forked("tests.parallel.remote_ranks").split() == ["equal"]


@pytest.mark.parametrize(
    ("ranks", "story", "kills"),
    [(2, "shard", 1), pytest.param(4, "shard, replicate", 4, marks=pytest.mark.slow)],
)
def test_killed_anywhere_it_equals_the_undisturbed_run(
    tmp_path: Path, ranks: int, story: str, kills: int
) -> None:
    words = map(str, (tmp_path, ranks, kills, story))
    printed = forked("tests.parallel.killed_ranks", *words).splitlines()[-1]
    found: dict[str, int] = json.loads(printed)
    assert sum(found.values()) >= kills
