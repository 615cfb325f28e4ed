"""Directories whose weights are quantized, in the formats that others write; and the dense ones.

Numbers and scales are drawn, and made dense by the formats' public definitions, value by value or
block by block: scales are not those that a quantizer would choose.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from setpoint.adapter.formats import NF4_LEVELS, SCALE_LEVELS

from .ours import change_config, rewrite
from .theirs import make

Parts = dict[str, Tensor]
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
E2M1 += [-each for each in E2M1]
NF4 = [-1.0, -0.7, -0.5, -0.4, -0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.3, 0.35, 0.45, 0.6, 0.8, 1.0]


def draw(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def e4m3(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    return (30 * torch.randn(shape, generator=draw(seed))).to(dtype)


def scales(shape: tuple[int, ...], seed: int) -> Tensor:
    return 0.001 + 0.004 * torch.rand(shape, generator=draw(seed))


def squares(values: Tensor, of_blocks: Tensor, rows: int, columns: int) -> Tensor:
    """Multiply block by block."""
    dense = values.float().clone()
    for i, row in enumerate(of_blocks.tolist()):
        for j, scale in enumerate(row):
            dense[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns] *= scale
    return dense


def nibbles(codes: Tensor, levels: list[float], high_first: bool = False) -> Tensor:
    """Look up two numbers of each byte."""
    table = torch.tensor(levels)
    low, high = table[(codes % 16).int()], table[(codes // 16).int()]
    pairs = (high, low) if high_first else (low, high)
    return torch.stack(pairs, -1).flatten(-2)


def packed(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randint(0, 256, shape, generator=draw(seed), dtype=torch.uint8)


def fp8(name: str, shape: tuple[int, int], seed: int) -> tuple[Parts, Tensor]:
    """Blocks of 32 x 16 that do not divide the matrix, as DeepSeek-V3 has them of 128 x 128."""
    codes = e4m3(shape, seed)
    of_blocks = scales((-(-shape[0] // 32), -(-shape[1] // 16)), seed + 1)
    parts = {f"{name}.weight": codes, f"{name}.weight_scale_inv": of_blocks}
    return parts, squares(codes, of_blocks, 32, 16)


def fp8_squares(name: str, shape: tuple[int, int], seed: int) -> tuple[Parts, Tensor]:
    codes, of_blocks = e4m3(shape, seed), scales((shape[0] // 16, shape[1] // 16), seed + 1)
    parts = {f"{name}.weight": codes, f"{name}.weight_scale_inv": of_blocks}
    return parts, squares(codes, of_blocks, 16, 16)


def e5m2(name: str, shape: tuple[int, int], seed: int) -> tuple[Parts, Tensor]:
    codes = e4m3(shape, seed, torch.float8_e5m2)
    of_blocks = scales((shape[0] // 32, shape[1] // 32), seed + 1)
    parts = {f"{name}.weight": codes, f"{name}.weight_scale_inv": of_blocks}
    return parts, squares(codes, of_blocks, 32, 32)


def fp8_scalar(name: str, shape: tuple[int, int], seed: int) -> tuple[Parts, Tensor]:
    codes = e4m3(shape, seed)
    parts = {
        f"{name}.weight": codes,
        f"{name}.weight_scale_inv": torch.tensor(0.003),
        f"{name}.activation_scale": torch.tensor(2.0),
    }
    return parts, codes.float() * 0.003


def nvfp4(name: str, shape: tuple[int, int], seed: int) -> tuple[Parts, Tensor]:
    """compressed-tensors: the scale of all divides."""
    codes = packed((shape[0], shape[1] // 2), seed)
    of_blocks = e4m3((shape[0], shape[1] // 16), seed + 1).abs()
    parts = {
        f"{name}.weight_packed": codes,
        f"{name}.weight_scale": of_blocks,
        f"{name}.weight_global_scale": torch.tensor([1700.0]),
        f"{name}.input_global_scale": torch.tensor([3.0]),
    }
    return parts, squares(nibbles(codes, E2M1), of_blocks.float() / 1700, 1, 16)


def modelopt(name: str, shape: tuple[int, int], seed: int) -> tuple[Parts, Tensor]:
    codes = packed((shape[0], shape[1] // 2), seed)
    of_blocks = e4m3((shape[0], shape[1] // 16), seed + 1).abs()
    parts = {
        f"{name}.weight": codes,
        f"{name}.weight_scale": of_blocks,
        f"{name}.weight_scale_2": torch.tensor(0.0007),
        f"{name}.input_scale": torch.tensor(3.0),
    }
    return parts, squares(nibbles(codes, E2M1), of_blocks.float() * 0.0007, 1, 16)


def mxfp4(name: str, shape: tuple[int, int], seed: int) -> tuple[Parts, Tensor]:
    """compressed-tensors: scales are exponents of two."""
    codes = packed((shape[0], shape[1] // 2), seed)
    exponents = torch.randint(
        115, 124, (shape[0], shape[1] // 32), generator=draw(seed), dtype=torch.uint8
    )
    parts = {f"{name}.weight_packed": codes, f"{name}.weight_scale": exponents}
    return parts, squares(nibbles(codes, E2M1), 2.0 ** (exponents.float() - 127), 1, 32)


def channels(name: str, shape: tuple[int, int], seed: int) -> tuple[Parts, Tensor]:
    codes, of_rows = e4m3(shape, seed), scales((shape[0], 1), seed)
    parts = {f"{name}.weight": codes, f"{name}.weight_scale": of_rows}
    return parts, squares(codes, of_rows, 1, shape[1])


def integers(name: str, shape: tuple[int, int], seed: int) -> tuple[Parts, Tensor]:
    """Groups of a row, with zero points."""
    codes = torch.randint(-128, 128, shape, generator=draw(seed), dtype=torch.int8)
    groups = (shape[0], shape[1] // 32)
    of_blocks = scales(groups, seed).bfloat16()
    zeros = torch.randint(-9, 9, groups, generator=draw(seed), dtype=torch.int8)
    parts = {
        f"{name}.weight": codes,
        f"{name}.weight_scale": of_blocks,
        f"{name}.weight_zero_point": zeros,
    }
    shifted = codes.float() - zeros.float().repeat_interleave(32, 1)
    return parts, squares(shifted, of_blocks.float(), 1, 32)


def int4(name: str, shape: tuple[int, int], seed: int) -> tuple[Parts, Tensor]:
    """compressed-tensors: eight numbers from -8 on in an int32, the first in its lowest bits."""
    numbers = torch.randint(0, 16, shape, generator=draw(seed))
    words = (numbers.unflatten(1, (-1, 8)) << (4 * torch.arange(8))).sum(2)
    of_blocks = scales((shape[0], shape[1] // 32), seed).bfloat16()
    parts = {
        f"{name}.weight_packed": (words - (words >= 2**31) * 2**32).int(),
        f"{name}.weight_scale": of_blocks,
        f"{name}.weight_shape": torch.tensor(shape),
    }
    return parts, squares(numbers - 8, of_blocks.float(), 1, 32)


def nf4(
    name: str,
    shape: tuple[int, int],
    seed: int,
    map4: tuple[float, ...] = (*NF4,),
    map8: tuple[float, ...] = (*torch.linspace(-1, 1, 256).tolist(),),
    size: int = 8,
) -> tuple[Parts, Tensor]:
    """bitsandbytes: blocks of 64 of the flattened matrix, the first number in the high half.

    Arguments:
        size: of groups of scales that are quantized themselves; 0: they are not.
    """
    codes = packed((shape[0] * shape[1] // 2, 1), seed)
    count = -(-shape[0] * shape[1] // 64)
    state: dict[str, Any] = {"shape": [*shape], "blocksize": 64, "dtype": "bfloat16"}
    parts = {f"{name}.weight": codes, f"{name}.weight.quant_map": torch.tensor(map4)}
    if size:
        places, outer = packed((count,), seed + 1), scales((-(-count // size),), seed)
        levels = torch.tensor(map8)
        parts |= {
            f"{name}.weight.absmax": places,
            f"{name}.weight.nested_absmax": outer,
            f"{name}.weight.nested_quant_map": levels,
        }
        state |= {"nested_blocksize": size, "nested_offset": 0.2, "nested_dtype": "float32"}
        absmax = [float(levels[p] * outer[i // size]) + 0.2 for i, p in enumerate(places.tolist())]
    else:
        parts[f"{name}.weight.absmax"] = of_blocks = scales((count,), seed)
        absmax = of_blocks.tolist()
    text = json.dumps(state).encode()
    key = f"{name}.weight.quant_state.bitsandbytes__nf4"
    parts[key] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    flat = nibbles(codes.flatten(), [*map4], high_first=True)
    for block, largest in enumerate(absmax):
        flat[block * 64 : (block + 1) * 64] *= largest
    return parts, flat.view(shape)


Quantize = Callable[[str, tuple[int, int], int], tuple[Parts, Tensor]]
COMPRESSED = {"quant_method": "compressed-tensors", "ignore": ["lm_head"]}
FORMATS: dict[str, tuple[Quantize, dict[str, Any]]] = {
    "fp8": (fp8, {"quant_method": "fp8", "weight_block_size": [32, 16]}),
    "e5m2": (e5m2, {"quant_method": "fp8", "fmt": "e5m2", "weight_block_size": [32, 32]}),
    "fp8 with one scale": (fp8_scalar, {"quant_method": "fp8", "activation_scheme": "static"}),
    "nvfp4": (nvfp4, {**COMPRESSED, "format": "nvfp4-pack-quantized"}),
    "mxfp4": (mxfp4, {**COMPRESSED, "format": "mxfp4-pack-quantized"}),
    "channels": (channels, {**COMPRESSED, "format": "float-quantized"}),
    "integers": (integers, {**COMPRESSED, "format": "int-quantized"}),
    "int4": (int4, {**COMPRESSED, "format": "pack-quantized"}),
    "modelopt": (modelopt, {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "nf4": (nf4, {"quant_method": "bitsandbytes", "load_in_4bit": True}),
}
LEVELS = {"map4": NF4_LEVELS, "map8": SCALE_LEVELS, "size": 256}
KEPT: dict[str, tuple[Quantize, dict[str, Any]]] = {
    "fp8": (fp8_squares, {"quant_method": "fp8", "weight_block_size": [16, 16]}),
    "nvfp4": FORMATS["nvfp4"],
    "modelopt": FORMATS["modelopt"],
    "mxfp4": FORMATS["mxfp4"],
    "nf4": (partial(nf4, **LEVELS), FORMATS["nf4"][1]),
    "nf4 with plain scales": (partial(nf4, map4=NF4_LEVELS, size=0), FORMATS["nf4"][1]),
}
"""Those that an adapter's base may stay in."""


def quantize_files(folder: Path, form: tuple[Quantize, dict[str, Any]]) -> dict[str, Tensor]:
    """Replace the matrices of layers in a directory of one file.

    Arguments:
        form: of `FORMATS` or `KEPT`.

    Returns:
        the dense tensors, in bf16 as its config.json then says.
    """
    quantize, keys = form
    held = load_file(folder / "model.safetensors")
    files: Parts = {}
    dense: Parts = {}
    for seed, (own, tensor) in enumerate(sorted(held.items())):
        if "layers." in own and tensor.ndim == 2 and not own.endswith("gate.weight"):
            base = own.removesuffix(".weight")
            parts, expected = quantize(base, (tensor.shape[0], tensor.shape[1]), 10 * seed)
            files |= parts
            dense[own] = expected.bfloat16()
        else:
            files[own] = dense[own] = tensor.bfloat16()
    save_file(files, folder / "model.safetensors", {"format": "pt"})
    path = folder / "config.json"
    read = {**json.loads(path.read_text()), "dtype": "bfloat16", "quantization_config": keys}
    path.write_text(json.dumps(read))
    return dense


def gpt_oss(folder: Path, keys: dict[str, Any]) -> Path:
    """A model with experts in MXFP4, as files of GPT-OSS have them, and all else dense.

    Arguments:
        keys: of its config.json; sides of experts are multiples of 32.
    """
    keys = {"num_local_experts": 4, "layer_types": ["full_attention"], **keys}
    model = make("gpt_oss", keys)
    model.config.save_pretrained(folder)
    held, parts = model.state_dict(), dict[str, Any]()
    save_file(held, folder / "model.safetensors", {"format": "pt"})  # on each rank
    for name, tensor in held.items():
        if name.endswith(("gate_up_proj", "down_proj")):
            count, inputs, outputs = tensor.shape
            blocks = packed((count, outputs, inputs // 32, 16), 1)
            exponents = packed(blocks.shape[:-1], 2) % 5 + 116
            parts |= {name: None, f"{name}_blocks": blocks, f"{name}_scales": exponents}
    rewrite(folder, parts)
    change_config(folder, quantization_config={"quant_method": "mxfp4"}, dtype="float32")
    return folder
