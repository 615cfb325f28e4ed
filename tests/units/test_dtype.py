"""Number formats."""

import pickle

import pytest
import torch

from setpoint.config import Config, Invalid, SetpointError, resolve
from setpoint.units import DType
from setpoint.units.dtype import ALIASES, NAMES

from ..support.snapshots import refused


class Formats(Config):
    """Number formats."""

    compute: DType = DType("bf16")
    reduce: DType | None = None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("bf16", "bfloat16"), ("bfloat16", "bfloat16"), ("FP32", "float32"),
        ("torch.float16", "float16"), ("half", "float16"), ("float8-e4m3fn", "float8_e4m3fn"),
        ("fp8_e5m2", "float8_e5m2"), ("long", "int64"),
    ],
)  # fmt: skip
def test_names_and_aliases_are_read(text: str, name: str) -> None:
    assert DType(text) == DType(name)
    assert DType(text).dump() == str(DType(text)) == name
    assert DType(text).torch() is getattr(torch, name)


def test_every_name_is_one_of_torch() -> None:
    for name in ALIASES:
        assert isinstance(DType(name).torch(), torch.dtype), name
    assert set(NAMES.values()) == set(ALIASES)


def test_torch_objects_are_taken() -> None:
    assert DType.read(torch.bfloat16) == DType("bf16")
    config = resolve(Formats(compute=torch.float32))
    assert config.compute.name == "float32"
    assert pickle.loads(pickle.dumps(config)) == config
    assert len({DType("fp32"), DType("float")}) == 1


@pytest.mark.parametrize(
    "text",
    [
        "fp8",
        "tf32",
        "bfloat17",
        3,
    ],
)
def test_names_that_are_no_formats_are_refused(text: object) -> None:
    with refused(Invalid):
        DType.read(text)


def test_a_format_that_torch_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, "float8_e8m0fnu")
    with pytest.raises(SetpointError, match="has no dtype float8_e8m0fnu"):
        DType("e8m0").torch()
