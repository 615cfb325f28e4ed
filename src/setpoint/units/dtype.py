"""`DType`: a dtype by name, resolved to torch's object only where it is used."""

from __future__ import annotations

from typing import Any, Self

from setpoint.config import Invalid, SetpointError, for_error, nearest
from setpoint.config.values.scalar import Scalar

# The canonical names are torch's own, each with its other common names.
ALIASES: dict[str, tuple[str, ...]] = {
    "float64": ("fp64", "f64", "double"),
    "float32": ("fp32", "f32", "float"),
    "float16": ("fp16", "f16", "half"),
    "bfloat16": ("bf16",),
    "float8_e4m3fn": ("fp8_e4m3fn", "fp8_e4m3", "float8_e4m3", "e4m3fn", "e4m3"),
    "float8_e4m3fnuz": ("fp8_e4m3fnuz", "e4m3fnuz"),
    "float8_e5m2": ("fp8_e5m2", "e5m2"),
    "float8_e5m2fnuz": ("fp8_e5m2fnuz", "e5m2fnuz"),
    "float8_e8m0fnu": ("fp8_e8m0fnu", "fp8_e8m0", "float8_e8m0", "e8m0fnu", "e8m0"),
    "float4_e2m1fn_x2": ("fp4_e2m1fn_x2",),
    "complex32": ("chalf",),
    "complex64": ("cfloat",),
    "complex128": ("cdouble",),
    "int8": ("i8",),
    "int16": ("i16", "short"),
    "int32": ("i32", "int"),
    "int64": ("i64", "long"),
    "uint8": ("u8",),
    "uint16": ("u16",),
    "uint32": ("u32",),
    "uint64": ("u64",),
    "bool": (),
}
NAMES = {alias: name for name, aliases in ALIASES.items() for alias in (name, *aliases)}
# Words that do not determine how numbers are stored.
UNCLEAR = {
    "fp8": ("float8_e4m3fn", "float8_e5m2"),
    "float8": ("float8_e4m3fn", "float8_e5m2"),
    "tf32": ("float32",),
    "auto": ("bfloat16", "float32"),
    "mixed": ("bfloat16", "float16"),
}

# For JSON Schema, whose expressions cannot ignore case.
SPELLINGS = r"^\s*([tT][oO][rR][cC][hH]\.)?({})\s*$".format(
    "|".join(
        "".join(f"[{c}{c.upper()}]" if c.isalpha() else "[-_]" if c == "_" else c for c in name)
        for name in NAMES
    )
)


class DType(Scalar):
    """A dtype such as `bfloat16`.

    Arguments:
        name: torch's name, or a common short form: `"bf16"`, `"fp32"`, `"torch.float16"`; or a
            `torch.dtype`.

    Raises:
        Invalid: there is no such format.
    """

    __slots__ = ("name",)
    __setpoint_scalar__ = "a dtype such as bfloat16, float32 or float8_e4m3fn"
    __setpoint_candidates__ = tuple(ALIASES)
    __setpoint_json_schema__ = {  # noqa: RUF012 - read only
        "anyOf": [{"enum": list(ALIASES)}, {"type": "string", "pattern": SPELLINGS}]
    }

    name: str

    def __init__(self, name: str) -> None:
        try:
            self.name = _canonical(name)
        except Invalid as error:
            raise error.called("DType", name) from None

    @classmethod
    def read(cls, value: object) -> Self:
        """Make a value from a format, its name, or a `torch.dtype`.

        Raises:
            Invalid: the value cannot be read.
        """
        return value if isinstance(value, cls) else cls(_text(value))

    def dump(self) -> str:
        """The format as plain data."""
        return self.name

    def __setpoint_build__(self) -> Any:
        """The object that the format stands for as an argument of an imported component."""
        return self.torch()

    def torch(self) -> Any:
        """The `torch.dtype`; imports torch if necessary.

        Raises:
            SetpointError: torch is not installed, or this version lacks the format.
        """
        try:
            import torch
        except ModuleNotFoundError:
            raise SetpointError(
                f"the dtype {self.name} needs torch, which is not installed; install "
                f"setpoint[train]"
            ) from None
        dtype = getattr(torch, self.name, None)
        if dtype is None:
            raise SetpointError(f"torch {torch.__version__} has no dtype {self.name}")
        return dtype


def _canonical(name: object) -> str:
    text = _text(name)
    word = text.strip().lower().removeprefix("torch.").replace("-", "_")
    found = NAMES.get(word)
    if found is None:
        raise _unknown(text, word)
    return found


def _text(value: object) -> str:
    """The name of a format; a `torch.dtype` is recognized by its class, without importing torch."""
    if isinstance(value, str):
        return str(value)
    kind = type(value)
    if kind.__module__ == "torch" and kind.__name__ == "dtype":
        return str(value)
    raise Invalid(f"is not a dtype: got {for_error(value)}", tuple(ALIASES))


def _unknown(text: str, word: str) -> Invalid:
    if word in UNCLEAR:
        return Invalid(f"is not a dtype: got {for_error(text)}", UNCLEAR[word])
    close = nearest(word, NAMES, 1)
    hint = f"Did you mean {NAMES[close[0]]}?" if close else ""
    return Invalid(f"is not a known dtype: got {for_error(text)}", tuple(ALIASES), hint=hint)
