"""Tensors of all kinds through a safetensors file, bit for bit."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load as library_load
from safetensors.torch import save_file as library_save

from setpoint.files import tensor_file
from setpoint.files.atomic import write_file
from setpoint.files.tensor_file import DTYPES, encode_tensors, read_box, read_tensors
from setpoint.files.tensor_header import DamagedFile, read_header

from ..support.snapshots import refused


def round_trip(folder: Path, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    path = folder / "tensors.safetensors"
    path.unlink(missing_ok=True)
    write_file(path, encode_tensors(tensors))
    return read_tensors(path)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal in type, shape and every bit, NaN and -0.0 included."""
    flat = [t.detach().resolve_conj().contiguous().reshape(-1) for t in (one, other)]
    alike = one.dtype == other.dtype and one.shape == other.shape
    return alike and torch.equal(flat[0].view(torch.uint8), flat[1].view(torch.uint8))


def of(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Random bits as a tensor."""
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    count = torch.empty(shape, dtype=dtype).numel() * dtype.itemsize
    return torch.randint(0, 256, (count,), dtype=torch.uint8).view(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_types_and_shapes_are_kept(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {"0-dim": of(dtype), "matrix": of(dtype, 3, 5), "empty": of(dtype, 0, 4)}
    loaded = round_trip(tmp_path, tensors)
    for name, tensor in tensors.items():
        assert same(loaded[name], tensor), name


@settings(max_examples=40, deadline=None)
@given(
    entries=st.lists(
        st.tuples(
            st.sampled_from(list(DTYPES)), st.lists(st.integers(0, 4), max_size=4), st.text()
        ),
        max_size=6,
        unique_by=lambda entry: entry[2],
    )
)
def test_any_mixture_of_tensors_is_kept(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[torch.dtype, list[int], str]]
) -> None:
    tensors = {name: of(dtype, *shape) for dtype, shape, name in entries}
    loaded = round_trip(tmp_path_factory.mktemp("mixture"), tensors)
    assert set(loaded) == set(tensors)
    assert all(same(loaded[name], tensor) for name, tensor in tensors.items())


def test_safetensors_reads_and_writes_the_same(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 4).bfloat16(), "b": torch.tensor(2.0), "c": torch.arange(3)}
    theirs = library_load(b"".join(encode_tensors(tensors)))
    assert all(same(theirs[name], tensor) for name, tensor in tensors.items())
    library_save(tensors, tmp_path / "theirs.safetensors")
    ours = read_tensors(tmp_path / "theirs.safetensors")
    assert all(same(ours[name], tensor) for name, tensor in tensors.items())


def test_strides_and_views_become_contiguous(tmp_path: Path) -> None:
    base = torch.randn(4, 6)
    tensors = {
        "transposed": base.t(),
        "row": base[1],
        "column": base[:, 2],
        "overlapping": base[1:],
        "expanded": torch.tensor([1.0, 2.0])[:, None].expand(2, 3),
        "channels_last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
        "leaf": torch.nn.Parameter(torch.randn(2)),
    }
    loaded = round_trip(tmp_path, tensors)
    for name, tensor in tensors.items():
        assert same(loaded[name], tensor.detach()), name
        assert loaded[name].is_contiguous()


def test_tied_tensors_stay_tied(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.randn(50, 8))
    free = weight.detach().clone()
    tensors = {"embedding": weight, "head": weight.data, "free": free, "t": weight.t()}
    loaded = round_trip(tmp_path, tensors)
    assert loaded["embedding"] is loaded["head"]
    assert loaded["free"] is not loaded["head"]
    assert same(loaded["t"], weight.detach().t())
    once = (tmp_path / "tensors.safetensors").stat().st_size
    assert 3 * 1600 < once < 3 * 1600 + 500


def test_the_same_bytes_for_the_same_tensors() -> None:
    tensors = {"b": torch.ones(2), "a": torch.zeros(3, dtype=torch.int64)}
    swapped = dict(reversed(tensors.items()))
    assert b"".join(encode_tensors(tensors)) == b"".join(encode_tensors(swapped))


def test_what_cannot_be_saved_is_named() -> None:
    for tensor in (
        torch.empty(2, device="meta"),
        torch.eye(2).to_sparse(),
        torch.zeros(2, dtype=torch.complex128),
    ):
        with refused():
            list(encode_tensors({"layers.w": tensor}))


@pytest.mark.parametrize("row", [1, 4096])
def test_boxes_are_those_of_slices(
    tmp_path: Path, row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_file, "ROW", row)
    monkeypatch.setattr(tensor_file, "CHUNK", 64)
    tensors = {"matrix": torch.randn(9, 7), "cube": torch.randn(5, 3, 4), "row": torch.arange(8)}
    library_save(tensors, tmp_path / "file")
    boxes = {"matrix": (slice(2, 9), slice(1, 5)), "cube": (slice(1, 4), slice(0, 2), slice(3, 4)),
             "row": (slice(3, 8),)}  # fmt: skip
    infos = read_header(tmp_path / "file")
    with (tmp_path / "file").open("rb") as file:
        for name, box in boxes.items():
            for dtype in (tensors[name].dtype, torch.float64):
                into = torch.empty(tensors[name][box].shape, dtype=dtype)
                read_box(file.fileno(), infos[name], box, into)
                assert torch.equal(into, tensors[name][box].to(dtype)), name


def test_a_file_that_git_lfs_has_not_fetched_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 99\n")
    with refused(DamagedFile):
        read_header(path)
