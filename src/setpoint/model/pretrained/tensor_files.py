"""Safetensors files in a directory, single or sharded with an index, quantized or not.

Quantized weights are presented as dense tensors that are dequantized when they are read.
`quantization_config` of config.json (modelopt: hf_quant_config.json) names the method. The parts of
each quantized tensor are found by the method's naming scheme, and their shapes are checked before
anything is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from setpoint.config import RunError, SetpointError
from setpoint.files.tensor_header import Encoding, Shape, TensorInfo, read_header
from setpoint.model.pretrained.locate import CONFIG, read_keys

SINGLE: Final = "model.safetensors"
"""Name of a single file."""

INDEX: Final = "model.safetensors.index.json"
"""Index of several files."""

_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth")
_SHOWN = 3


def list_tensors(directory: Path) -> dict[str, TensorInfo]:
    """List all tensors of a directory; their data is not read.

    Raises:
        SetpointError: there are no readable tensors, a file of the index is missing, or its tensors
            differ from the index.
        DamagedFile: a file is truncated.
    """
    if (directory / SINGLE).is_file():
        return read_header(directory / SINGLE)
    if (directory / INDEX).is_file():
        return _list_shards(directory)
    pickles = [name for name in _PICKLES if (directory / name).is_file()]
    if pickles:
        raise SetpointError(
            f"{directory} has its weights in {pickles[0]}, a pickle file, which is not loaded "
            f"because it can run arbitrary code. If you trust it, convert it to safetensors: "
            f"transformers.AutoModelForCausalLM.from_pretrained({str(directory)!r})"
            f".save_pretrained(...)"
        )
    names = sorted(path.name for path in directory.glob("*.safetensors"))
    hint = f"; it has {', '.join(names[:_SHOWN])}" if names else ""
    raise SetpointError(f"{directory} has no weights: neither {SINGLE} nor {INDEX}{hint}")


def _list_shards(directory: Path) -> dict[str, TensorInfo]:
    index = directory / INDEX
    try:
        content: Any = json.loads(index.read_bytes())
        shards = {str(k): str(v) for k, v in cast(dict[str, Any], content["weight_map"]).items()}
    except OSError as error:
        raise SetpointError(f"{index} cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunError(f"{index} is damaged: it has no valid weight_map") from error
    tensors: dict[str, list[str]] = {}
    for tensor, name in shards.items():
        tensors.setdefault(name, []).append(tensor)
    names = list(tensors)
    outside = [name for name in names if Path(name).name != name]
    if outside:
        raise RunError(f"{index} refers to {outside[0]!r}, which is not in its directory")
    missing = [name for name in names if not (directory / name).is_file()]
    if missing:
        raise SetpointError(
            f"{directory} lacks {len(missing)} of the {len(names)} files of {INDEX}: "
            f"{_listed(missing)}. Copy or download them."
        )
    infos: dict[str, TensorInfo] = {}
    for name in names:
        header = read_header(directory / name)
        absent = [tensor for tensor in tensors[name] if tensor not in header]
        if absent:
            raise RunError(
                f"{directory / name} lacks {len(absent)} tensors that {INDEX} assigns to it: "
                f"{_listed(absent)}"
            )
        # A tensor outside the index is reported as surplus, like any other.
        infos.update(header)
    return infos


def _listed(words: list[str]) -> str:
    """The first few words, and the number of the others: `a, b, c and 5 more`."""
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return ", ".join(words[:_SHOWN]) + more


KEY: Final = "quantization_config"
MODELOPT: Final = "hf_quant_config.json"
"""modelopt's file next to config.json."""

_COMPRESSED: Final = (
    "float-quantized", "int-quantized", "naive-quantized", "pack-quantized",
    "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mixed-precision",
)  # fmt: skip
_FP8: Final = {"e4m3": "F8_E4M3", "e5m2": "F8_E5M2"}
"""Float8 dtypes of files by `fmt`."""
_PARTS: Final[Mapping[str, str]] = {
    "_scale_inv": "fp8", "_blocks": "mxfp4", "_scales": "mxfp4",
    ".weight_packed": "compressed-tensors", ".weight_global_scale": "compressed-tensors",
    ".weight_zero_point": "compressed-tensors", ".weight_scale_2": "modelopt",
    ".weight_scale": "compressed-tensors or modelopt", ".absmax": "bitsandbytes",
    ".quant_map": "bitsandbytes",
}  # fmt: skip
"""Suffixes of the parts of quantized weights, with the methods that use them."""
_ACTIVATIONS: Final = (
    "input_scale", "activation_scale", "input_global_scale", "weight_shape", "k_scale", "v_scale",
    "q_scale", "output_scale",
)  # fmt: skip
"""Suffixes of tensors that do not concern weights."""
_BITS: Final = ("nf4", "fp4")
_STATE: Final = ".quant_state.bitsandbytes__"


def unread_quantization(keys: Any) -> str | None:
    """Reason why a quantization is not supported, or None."""
    if not isinstance(keys, dict):
        return f"is {keys!r}, but must be a table with quant_method"
    method = keys.get("quant_method")
    if not isinstance(method, str) or method not in _VIEWS:
        return f"quant_method = {method!r} is not supported. Valid: {', '.join(_VIEWS)}"
    if method == "fp8" and str(keys.get("fmt", "e4m3")) not in _FP8:
        return f"fmt = {keys['fmt']!r} is not supported. Valid: {', '.join(_FP8)}"
    block = keys.get("weight_block_size")
    sides = block if isinstance(block, list) else ()
    if block is not None and (len(sides) != 2 or any(type(n) is not int or n < 1 for n in sides)):
        return (
            f"weight_block_size = {block!r} is invalid. Valid: [rows, columns], such as [128, 128]"
        )
    form, bits = keys.get("format", "dense"), keys.get("load_in_8bit")
    if method == "compressed-tensors" and form not in _COMPRESSED:
        return f"format = {form!r} is not supported. Valid: {', '.join(_COMPRESSED)}"
    sparsity = keys.get("sparsity_config") or {}
    if sparsity and sparsity.get("format", "dense") != "dense":
        return f"sparsity_config.format = {sparsity['format']!r} cannot be read. Valid: dense"
    if method == "bitsandbytes" and bits:
        return "load_in_8bit = true cannot be read. Valid: load_in_4bit"
    groups: Any = keys.get("config_groups") or {}
    bits = {(group.get("weights") or {}).get("num_bits", 4) for group in groups.values()}
    if method == "compressed-tensors" and form == "pack-quantized" and bits - {4}:
        return f"weights.num_bits = {max(bits - {4})} cannot be unpacked. Valid: 4"
    algorithm = keys.get("quant_algo")
    if method == "modelopt" and algorithm not in (None, "NVFP4", "FP8"):
        return f"quant_algo = {algorithm!r} is not supported. Valid: NVFP4, FP8"
    return None


def dense_tensors(directory: Path) -> dict[str, TensorInfo]:
    """List the tensors of a directory, with dense tensors in place of quantized ones.

    Raises:
        SetpointError: see `list_tensors`; or the method is unknown, or not named.
        RunError: parts of a quantized tensor are missing, surplus, or of the wrong shape.
    """
    infos = list_tensors(directory)
    quantization = _quantization(directory)
    if quantization is None:
        _require_dense(directory, infos)
        return infos
    file, keys, dtype = quantization
    if reason := unread_quantization(keys):
        raise SetpointError(f"{file}: {KEY}: {reason}")
    problems: list[str] = []
    dense: dict[str, TensorInfo] = {}
    parts: set[str] = set()
    for name, codes in infos.items():
        try:
            view = _VIEWS[keys["quant_method"]](_QuantizedFiles(infos, keys), name, codes)
        except _PartMismatch as error:
            problems.append(str(error))
            parts.add(name)
            continue
        if view is None:
            continue
        dense_name, shape, encoding = view
        parts |= {name, *encoding.names}
        dense[dense_name] = TensorInfo(codes.file, dtype, shape, codes.start, 0, encoding)
    unquantized = {
        name: info
        for name, info in infos.items()
        if name not in parts and name.rpartition(".")[2] not in _ACTIVATIONS
    }
    # Leftover parts of a misfit would add no information.
    for name, info in unquantized.items() if not problems else ():
        if _part_of(name, info) is not None:
            problems.append(f"{name} ({info.dtype}) is not part of a quantized weight")
    if problems:
        more = f"; and {len(problems) - 1} more like it" if len(problems) > 1 else ""
        raise RunError(
            f"{directory} has weights whose quantization does not match {file} (quant_method = "
            f"{keys['quant_method']}), and nothing was loaded:\n  {problems[0]}{more}"
        )
    return {**unquantized, **dense}


def _require_dense(directory: Path, infos: Mapping[str, TensorInfo]) -> None:
    """Refuse quantized weights that are not described by a config.json."""
    parts = {n: method for n, info in infos.items() if (method := _part_of(n, info)) is not None}
    if parts:
        name = next(iter(parts))
        more = f", and {len(parts) - 1} others" if len(parts) > 1 else ""
        method = next(filter(None, parts.values()), "fp8")
        raise SetpointError(
            f"{directory} has quantized weights ({name} is {infos[name].dtype}{more}), but "
            f"{directory / CONFIG} has no {KEY}; the names of scales suggest quant_method = "
            f"{method}. Valid: {', '.join(_VIEWS)}"
        )


def _part_of(name: str, info: TensorInfo) -> str | None:
    """Quantization method of a tensor, by its name, or empty if unknown; None for dense tensors."""
    method = next((method for last, method in _PARTS.items() if name.endswith(last)), "")
    if method == "mxfp4" and info.dtype != "U8":
        return None
    return method if method or info.dtype.startswith("F8_") else None


def _quantization(directory: Path) -> tuple[Path, Any, str] | None:
    """The file, its keys, and the dtype of dense weights; None without quantization."""
    config = read_keys(directory, optional=True)
    named = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    words = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}
    dtype = words.get(named, "BF16")
    if config.get(KEY):
        quantization: Any = config[KEY]
        if isinstance(quantization, dict):  # modelopt nests its keys
            quantization = {**quantization, **quantization.get("quantization", {})}
        return directory / CONFIG, quantization, dtype
    keys = read_keys(directory, MODELOPT, optional=True)
    if keys.get("quantization"):
        return directory / MODELOPT, {"quant_method": "modelopt", **keys["quantization"]}, dtype
    return None


class _PartMismatch(Exception):
    """A part is missing, or has the wrong shape."""


class _QuantizedFiles(NamedTuple):
    infos: Mapping[str, TensorInfo]
    keys: Mapping[str, Any]

    def part(self, name: str, codes: str) -> TensorInfo:
        """A required part."""
        if name not in self.infos:
            raise _PartMismatch(f"{codes} ({self.infos[codes].dtype}) has no {name} next to it")
        return self.infos[name]

    def squares(self) -> tuple[int, int]:
        """Block size for scales whose shapes do not determine it."""
        groups: Any = self.keys.get("config_groups") or {}
        weights = [group.get("weights") or {} for group in groups.values()]
        sizes = [self.keys.get("weight_block_size"), *(w.get("block_structure") for w in weights)]
        rows, columns = next((size for size in sizes if size), (128, 128))
        return int(rows), int(columns)


View = tuple[str, Shape, Encoding]


def _scaled(
    files: _QuantizedFiles,
    name: str,
    values: str,
    scales: str,
    *,
    dense: str | None = None,
    factor: str | None = None,
    divides: bool = False,
    zeros: str | None = None,
    block: int | None = None,
) -> View:
    """A tensor in blocks with one scale each.

    Arguments:
        values: type of the codes; see `Encoding`.
        block: columns of a block; None: determined by the shape of the scales.
    """
    codes, scale_info = files.infos[name], files.part(scales, name)
    if len(codes.shape) < 2:
        raise _PartMismatch(f"{name} {codes.shape} is not a matrix")
    width = {"e2m1": 2, "int4": 8}.get(values, 1)
    shape = (*codes.shape[:-1], codes.shape[-1] * width)
    sizes = scale_info.shape if len(scale_info.shape) >= 2 else (*scale_info.shape, 1)
    sizes = (1, 1) if sizes in ((1,), (1, 1)) or not scale_info.shape else sizes
    squares = (1, block) if block else files.squares()
    sides: list[int] = []
    for count, size, default in zip(sizes[-2:], shape[-2:], squares, strict=True):
        exact = count and not size % count and (count in (1, size) or sizes[-2] == shape[-2])
        side = default if block else (size // count if exact else default)
        if -(-size // side) != count:
            blocks = f"{squares[0]} x {squares[1]}"
            needed = tuple(-(-n // b) for n, b in zip(shape[-2:], squares, strict=True))
            raise _PartMismatch(
                f"{scales} is {scale_info.shape}, which does not fit {name} {shape}; blocks of "
                f"{blocks} need {needed}"
            )
        sides.append(side)
    parts = {"codes": name, "scales": scales}
    if factor is not None:
        parts["factor"] = factor
        if sum(files.part(factor, name).shape) > 1:
            raise _PartMismatch(
                f"{factor} is {files.infos[factor].shape}, but must be a single number"
            )
    if zeros is not None and zeros in files.infos:
        parts["zeros"] = zeros
        if files.infos[zeros].shape != scale_info.shape:
            raise _PartMismatch(
                f"{zeros} is {files.infos[zeros].shape}, not {scale_info.shape} as scales"
            )
    infos = {part: files.infos[tensor] for part, tensor in parts.items()}
    encoding = Encoding(
        values, (sides[0], sides[1]), tuple(infos.items()), tuple(parts.values()), divides
    )
    return dense or name, shape, encoding


def _fp8(files: _QuantizedFiles, name: str, codes: TensorInfo) -> View | None:
    if codes.dtype not in _FP8.values() or len(codes.shape) < 2:
        return None
    fmt = files.keys.get("fmt")
    if fmt is not None and codes.dtype != _FP8[fmt]:
        raise _PartMismatch(f"{name} is {codes.dtype}, and fmt = {fmt!r} means {_FP8[fmt]}")
    return _scaled(files, name, "float8", f"{name}_scale_inv")


def _mxfp4(files: _QuantizedFiles, name: str, codes: TensorInfo) -> View | None:
    if not name.endswith("_blocks") or codes.dtype != "U8":
        return None
    base = name.removesuffix("_blocks")
    scales = files.part(f"{base}_scales", name)
    count, rows, groups, size = codes.shape if len(codes.shape) == 4 else (0, 0, 0, 0)
    if scales.shape != codes.shape[:-1] or size != 16:
        raise _PartMismatch(f"{base}_scales is {scales.shape}, and {name} is {codes.shape}")
    parts = (("codes", codes), ("scales", scales))
    names = (name, f"{base}_scales")
    # Stored (experts, outputs, inputs), and computed with as (experts, inputs, outputs).
    encoding = Encoding("e2m1", (1, 32), parts, names, transposed=True)
    return base, (count, groups * 32, rows), encoding


def _compressed(files: _QuantizedFiles, name: str, codes: TensorInfo) -> View | None:
    base, _, last = name.rpartition(".")
    scales, zeros = f"{base}.weight_scale", f"{base}.weight_zero_point"
    if f"{base}.weight_g_idx" in files.infos and last in ("weight", "weight_packed"):
        raise _PartMismatch(f"{base}.weight_g_idx reorders columns, which is not supported")
    if last == "weight_packed":
        dense = f"{base}.weight"
        if codes.dtype == "I32":
            if zeros in files.infos:
                raise _PartMismatch(
                    f"{zeros} packs zero points, which is not supported: symmetric is"
                )
            return _scaled(files, name, "int4", scales, dense=dense)
        if f"{base}.weight_global_scale" in files.infos:
            factor = f"{base}.weight_global_scale"
            return _scaled(
                files, name, "e2m1", scales, dense=dense, factor=factor, divides=True, block=16
            )
        return _scaled(files, name, "e2m1", scales, dense=dense, block=32)
    if last == "weight" and codes.dtype in (*_FP8.values(), "I8"):
        values = "int8" if codes.dtype == "I8" else "float8"
        return _scaled(files, name, values, scales, zeros=zeros)
    return None


def _modelopt(files: _QuantizedFiles, name: str, codes: TensorInfo) -> View | None:
    base, _, last = name.rpartition(".")
    if f"{base}.pre_quant_scale" in files.infos:
        raise _PartMismatch(f"{base}.pre_quant_scale scales inputs (AWQ), which is not supported")
    if last != "weight" or codes.dtype not in (*_FP8.values(), "U8"):
        return None
    if codes.dtype == "U8":
        factor = f"{base}.weight_scale_2"
        return _scaled(files, name, "e2m1", f"{base}.weight_scale", factor=factor, block=16)
    return _scaled(files, name, "float8", f"{base}.weight_scale")


def _bitsandbytes(files: _QuantizedFiles, name: str, codes: TensorInfo) -> View | None:
    if codes.dtype != "U8" or not name.endswith(".weight"):
        return None
    state = next((f"{name}{_STATE}{b}" for b in _BITS if f"{name}{_STATE}{b}" in files.infos), None)
    if state is None:
        raise _PartMismatch(f"{name} (U8) has no {name}{_STATE}nf4 next to it")
    info = files.infos[state]
    with info.file.open("rb") as file:
        file.seek(info.start)
        keys: Any = json.loads(file.read(info.size))
    names = {"codes": name, "absmax": f"{name}.absmax", "levels": f"{name}.quant_map"}
    if "nested_blocksize" in keys:
        names |= {
            "nested_absmax": f"{name}.nested_absmax",
            "nested_levels": f"{name}.nested_quant_map",
        }
    parts = tuple((part, files.part(tensor, name)) for part, tensor in names.items())
    shape = tuple(int(size) for size in keys["shape"])
    numbers = 1
    for size in shape:
        numbers *= size
    blocks = -(-numbers // int(keys["blocksize"]))
    if sum(codes.shape[:-1]) * 2 != numbers or dict(parts)["absmax"].shape != (blocks,):
        raise _PartMismatch(
            f"{name}.absmax is {dict(parts)['absmax'].shape} and {name} {codes.shape}, which is "
            f"not {shape} in blocks of {keys['blocksize']}"
        )
    nested = (int(keys.get("nested_blocksize", 0)), float(keys.get("nested_offset", 0.0)))
    encoding = Encoding(
        "levels", (1, int(keys["blocksize"])), parts, (*names.values(), state), nested=nested
    )
    return name, shape, encoding


_VIEWS: Final[Mapping[str, Callable[[_QuantizedFiles, str, TensorInfo], View | None]]] = {
    "fp8": _fp8,
    "mxfp4": _mxfp4,
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
    "bitsandbytes": _bitsandbytes,
}
