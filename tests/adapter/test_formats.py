"""Formats against their published definitions, and against the libraries that have them, too."""

import importlib
import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from setpoint.adapter.config import FP8, MXFP4, NF4, NVFP4, Int8, Noise, Quantization
from setpoint.adapter.formats import E2M1, NF4_GAP, NF4_LEVELS, Box, Format, format_of
from setpoint.config import resolve

from ..support.snapshots import refused

CONFIGS: tuple[Quantization, ...] = (
    resolve(NF4()),
    resolve(NF4(double=False, group_size=32)),
    resolve(Int8()),
    resolve(Int8(group_size=32)),
    resolve(FP8(group_size=32)),
    resolve(NVFP4()),
    resolve(MXFP4()),
)
NAMES = ("nf4", "nf4-single", "int8", "int8-blocks", "fp8", "nvfp4", "mxfp4")
ROWS, COLUMNS = 64, 128
WHOLE = Box((0, 0), (ROWS, COLUMNS))


@pytest.fixture(scope="module")
def weights() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    found = torch.randn(ROWS, COLUMNS, generator=generator) * 0.02
    found[3] *= 20  # an outlier among rows
    found[9] = 0  # and blocks without range
    return found


def restored(format: Format, weights: Tensor) -> Tensor:
    box = Box((0, 0), (weights.shape[0], weights.shape[1]))
    return format.dequantize(format.quantize(weights), box)


def test_the_levels_of_nf4_are_quantiles_of_the_normal_distribution() -> None:
    # QLoRA, section 3: evenly spaced probabilities, 8 of the positive half and 7 of the negative
    # one beside an exact zero, from the mean of the outermost ones of 15 and of 16 levels.
    outermost = 1 - 0.5 * (1 / 32 + 1 / 30)
    positive = torch.special.ndtri(torch.linspace(outermost, 0.5, 9, dtype=torch.float64)[:-1])
    negative = -torch.special.ndtri(torch.linspace(outermost, 0.5, 8, dtype=torch.float64)[:-1])
    levels = torch.cat([positive, torch.zeros(1, dtype=torch.float64), negative]).sort().values
    torch.testing.assert_close(
        torch.tensor(NF4_LEVELS, dtype=torch.float64), levels / levels.max(), atol=3e-7, rtol=0
    )
    assert min(b - a for a, b in pairwise(NF4_LEVELS)) == NF4_GAP


def e2m1(code: int) -> float:
    """By definition: bits s ee m, bias 1, subnormal where the exponent is 0."""
    exponent, mantissa = code >> 1 & 3, code & 1
    size = 2.0 ** (exponent - 1) * (1 + mantissa / 2) if exponent else mantissa / 2
    return -size if code >> 3 else size


def e4m3(code: int) -> float:
    """By definition: bits s eeee mmm, bias 7; there is no infinity."""
    exponent, mantissa = code >> 3 & 15, code & 7
    size = 2.0 ** (exponent - 7) * (1 + mantissa / 8) if exponent else 2.0**-6 * mantissa / 8
    return -size if code >> 7 else size


def test_parts_of_nvfp4_mean_what_their_definition_says(weights: Tensor) -> None:
    assert tuple(map(e2m1, range(8))) == E2M1
    format = format_of(resolve(NVFP4()))
    parts = format.quantize(weights)
    found = format.dequantize(parts, WHOLE)
    top = weights.abs().max().item()
    assert parts["scale"].item() == pytest.approx(top / (6 * 448))
    for row, column in ((0, 0), (0, 1), (3, 17), (63, 127), (9, 5)):
        byte = int(parts["codes"][row, column // 2])
        code = byte >> 4 if column % 2 else byte & 15
        scale = e4m3(int(parts["scales"][row, column // 16]))
        value = e2m1(code) * scale * parts["scale"].item()
        assert found[row, column].item() == pytest.approx(value, rel=1e-6)
    # Halves between two numbers go to the one with the even mantissa.
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0]).repeat(2)
    exact = torch.tensor([0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0]).repeat(2)
    signs = torch.tensor([[1.0], [-1.0]])
    assert torch.equal(restored(format, ties * 448 * signs), exact * 448 * signs)


def test_parts_of_fp8_and_int8_mean_what_their_definition_says(weights: Tensor) -> None:
    format = format_of(resolve(FP8(group_size=32)))
    parts = format.quantize(weights)
    found = format.dequantize(parts, WHOLE)
    for row, column in ((0, 0), (3, 17), (63, 127), (40, 64)):
        square = weights[row // 32 * 32 :, column // 32 * 32 :][:32, :32]
        scale = square.abs().max().item() / 448
        value = e4m3(int(parts["codes"][row, column])) * scale
        assert found[row, column].item() == pytest.approx(value, rel=1e-6)
    format = format_of(resolve(Int8()))
    parts = format.quantize(weights)
    scales = weights.abs().amax(1, keepdim=True) / 127
    expected = (weights / scales.where(scales > 0, 1.0)).round()
    assert torch.equal(parts["codes"], expected.to(torch.int8))
    torch.testing.assert_close(format.dequantize(parts, WHOLE), expected * scales)


def test_parts_of_mxfp4_mean_what_the_specification_says(weights: Tensor) -> None:
    """The power is that of the largest magnitude, less that of 4 (OCP MX, 6.3)."""
    format = format_of(resolve(MXFP4()))
    parts = format.quantize(weights)
    found = format.dequantize(parts, WHOLE)
    for row, column in ((0, 0), (3, 17), (63, 127), (40, 64)):
        block = weights[row, column // 32 * 32 :][:32]
        power = math.floor(math.log2(block.abs().max().item())) - 2
        assert int(parts["scales"][row, column // 32]) == power + 127
        code = int(parts["codes"][row, column // 2]) >> 4 * (column % 2) & 15
        assert found[row, column].item() == e2m1(code) * 2.0**power
        rest = abs(weights[row, column].item()) / 2.0**power
        nearest = min(abs(each - min(rest, 6.0)) for each in E2M1)
        assert abs(abs(e2m1(code)) - min(rest, 6.0)) == pytest.approx(nearest)


def test_double_quantization_of_nf4_keeps_scales_to_a_part_in_a_hundred(weights: Tensor) -> None:
    sections = [resolve(NF4(double=each)) for each in (False, True)]
    single, double = map(format_of, sections)
    first, second = single.quantize(weights), double.quantize(weights)
    assert torch.equal(first["codes"], second["codes"])
    blocks = ROWS * COLUMNS // 64
    assert second["scale_codes"].numel() == blocks and second["scale_scales"].numel() == 1
    assert second["scale_mean"].item() == pytest.approx(first["scales"].mean().item())
    scales = 2 * double.half_step(second, WHOLE) / NF4_GAP
    spread = (first["scales"] - first["scales"].mean()).abs().max()
    # Levels are 0.007 apart near 1, and nearer to each other below.
    assert (scales - first["scales"]).abs().max() <= 0.0036 * spread
    one, two = (8 * section.stored_bytes(4096, 4096) / 4096**2 for section in sections)
    assert (one, two) == (4.5, pytest.approx(4 + 8 / 64 + 32 / 64 / 256, abs=1e-5))


@pytest.mark.parametrize("config", CONFIGS, ids=NAMES)
def test_a_weight_is_off_by_no_more_than_half_a_step(config: Quantization, weights: Tensor) -> None:
    format = format_of(config)
    parts = format.quantize(weights)
    described = format.parts(ROWS, COLUMNS)
    assert {name: (tuple(t.shape), t.dtype) for name, t in parts.items()} == {
        name: (part.shape, part.dtype) for name, part in described.items()
    }
    assert config.stored_bytes(ROWS, COLUMNS) == sum(part.nbytes for part in parts.values())
    error = (format.dequantize(parts, WHOLE) - weights).abs()
    amax = weights.reshape(-1, config.columns or COLUMNS).abs().amax(1, keepdim=True)
    # The widest gap of NF4 is 0.304, that of E2M1 2 of 6, beside the rounding of a scale to E4M3.
    # A magnitude just below 8 powers of MXFP4 is stored as 6.
    bounds = {"nf4": 0.153, "int8": 0.5 / 127, "nvfp4": 1 / 6 + 0.04, "fp8": 1.0, "mxfp4": 0.25}
    bound = bounds[type(config).__setpoint__.tag or ""]
    if isinstance(config, FP8):
        assert (error <= weights.abs() / 16 + amax.max() * 2**-9).all()
    else:
        # Rounding of scales in groups, of which the row of outliers has one.
        more = 0.0036 * amax.max() if getattr(config, "double", False) else 1e-9
        assert (error.reshape(amax.shape[0], -1) <= amax * bound + more).all()
    # What is quantized stays what it is when it is quantized again, but for rounding of scales.
    again = restored(format, format.dequantize(parts, WHOLE))
    assert (again - format.dequantize(parts, WHOLE)).norm() <= 0.05 * error.norm()
    assert not restored(format, torch.zeros_like(weights)).any()


@pytest.mark.parametrize("config", CONFIGS, ids=NAMES)
def test_a_box_of_the_parts_is_a_box_of_the_weights(config: Quantization) -> None:
    weights = torch.randn(96, 320, generator=torch.Generator().manual_seed(1))
    format = format_of(config)
    parts, described = format.quantize(weights), format.parts(96, 320)
    whole, first = (96, 320), (32, 64)
    kept: dict[str, Tensor] = {}
    for name, part in parts.items():
        about = described[name]
        for dim, divided in ((0, about.rows), (1, about.columns)):
            if divided:
                unit = whole[dim] // part.shape[dim]
                part = part.narrow(dim, first[dim] // unit, part.shape[dim] - first[dim] // unit)
        kept[name] = part
    if not (isinstance(config, Int8) and config.group_size is None):
        assert all(about.columns or not about.rows for about in described.values())
    box = format.dequantize(kept, Box(first, whole))
    assert torch.equal(box, format.dequantize(parts, Box((0, 0), whole))[32:, 64:])


def test_the_range_of_nvfp4_follows_a_changing_matrix_slowly(weights: Tensor) -> None:
    format = format_of(resolve(NVFP4()))
    parts = format.quantize(weights)
    again = format.quantize(weights * 3, parts)
    assert again["scale"].item() == pytest.approx(parts["scale"].item() * (0.9 + 0.1 * 3))


def test_noise_decays_to_its_last_value() -> None:
    noise = resolve(Noise(alpha=1.0, final_alpha=0.01, decay_steps=100))
    assert [noise.alpha_at(step) for step in (0, 100, 1000)] == pytest.approx([1.0, 0.01, 0.01])
    assert noise.alpha_at(50) == pytest.approx(0.1)
    linear = resolve(Noise(alpha=1.0, final_alpha=0.0001, decay="linear", decay_steps=100))
    assert linear.alpha_at(25) == pytest.approx(0.750025)
    assert resolve(Noise(alpha=0.5)).alpha_at(10**6) == 0.5
    with refused():
        resolve(Noise(decay_steps=7))


def test_what_a_section_cannot_say_is_refused() -> None:
    for config in (NF4(exclude=("(",)), NF4(group_size=33)):
        with refused():
            resolve(config)


@pytest.mark.slow
def test_parts_of_mxfp4_are_those_of_torchao() -> None:
    pytest.importorskip("torchao")
    theirs: Any = importlib.import_module("torchao.prototype.mx_formats.mx_tensor")
    weights = torch.randn(64, 128, generator=torch.Generator().manual_seed(2)) * 0.02
    weights[3, :32] = 0
    parts = format_of(resolve(MXFP4())).quantize(weights)
    scales, codes = theirs.to_mx(weights, torch.float4_e2m1fn_x2, 32)
    assert torch.equal(parts["scales"], scales.view(torch.uint8))
    assert torch.equal(parts["codes"], codes.view(torch.uint8))


@pytest.mark.slow
def test_parts_of_nvfp4_are_those_of_torchao() -> None:
    pytest.importorskip("torchao")
    torchao: Any = importlib.import_module("torchao.prototype.mx_formats.nvfp4_tensor")
    weights = torch.randn(256, 512, generator=torch.Generator().manual_seed(2)) * 0.02
    ours = format_of(resolve(NVFP4()))
    parts = ours.quantize(weights)
    scales, codes = torchao.nvfp4_quantize(weights, 16, parts["scale"][0])
    assert torch.equal(parts["scales"], scales.view(torch.uint8))
    assert torch.equal(parts["codes"], codes)
    given = (codes, scales, 16, torch.float32, parts["scale"][0])
    dense = torchao.NVFP4Tensor(*given).dequantize(torch.float32)
    assert torch.equal(ours.dequantize(parts, Box((0, 0), (256, 512))), dense)


@pytest.mark.slow
def test_parts_of_nf4_are_those_of_bitsandbytes() -> None:
    pytest.importorskip("bitsandbytes")
    weights = torch.randn(256, 512, generator=torch.Generator().manual_seed(2)) * 0.02
    ours, theirs = (format_of(resolve(each)) for each in (NF4(), NF4(backend="bitsandbytes")))
    first, second = ours.quantize(weights), theirs.quantize(weights)
    assert all(torch.equal(first[part], second[part]) for part in first)
    box = Box((0, 0), (256, 512))
    assert torch.equal(ours.dequantize(first, box), theirs.dequantize(first, box))
    functional: Any = importlib.import_module("bitsandbytes.functional")
    codes, state = functional.quantize_4bit(
        weights, blocksize=64, quant_type="nf4", compress_statistics=True
    )
    assert torch.equal(codes.view(256, -1), first["codes"])
    torch.testing.assert_close(state.state2.absmax, first["scale_scales"])
    torch.testing.assert_close(state.offset, first["scale_mean"].squeeze())
    # Levels of the scales are computed in another order, so that one in a hundred is next door.
    away = (state.absmax.view(256, -1).int() - first["scale_codes"].int()).abs()
    assert away.max() <= 1 and away.float().mean() < 0.01
