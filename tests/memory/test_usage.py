import torch
from torch import nn

from setpoint.memory.usage import MemoryReport, measure
from setpoint.units.size import in_units

CPU = torch.device("cpu")


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    model(torch.randn(3, 8)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_each_part() -> None:
    model, optimizer = trained()
    report = measure(model, dict(model.named_parameters()), optimizer, CPU)
    assert report.parameters == 4 * (32 + 4 + 4 + 4)
    assert report.gradients == 4 * 12  # the matrix is frozen
    assert report.optimizer_state == 4 * (2 * 12 + 3)
    assert report.buffers == 4 * 8 + 8
    assert report.masters == report.on_host == 0
    assert report.rest is None
    assert report.peak > 50 * 2**20


def test_masters_lie_apart_and_other_parameters_over_the_same_memory_do_not() -> None:
    model, optimizer = trained()
    held = {name: nn.Parameter(p.detach().double()) for name, p in model.named_parameters()}
    report = measure(model, held, optimizer, CPU)
    assert report.masters == 8 * 44
    assert report.gradients == 8 * 44
    held = {name: nn.Parameter(p.detach()) for name, p in model.named_parameters()}
    assert measure(model, held, optimizer, CPU).masters == 0


def test_the_line() -> None:
    report = MemoryReport(2048, 0, 1024, 4096, 0, 0, 10**9, None)
    assert report.line() == (
        "memory: parameters 2 KiB, gradients 1 KiB, optimizer state 4 KiB, peak memory (RSS) "
        "954 MiB"
    )
    report = report._replace(on_host=4096, rest=512, buffers=8)
    assert report.line().endswith(
        "buffers 8 B, 4 KiB of these on the host, activations and the rest 512 B, 954 MiB at the "
        "peak"
    )


def test_sizes_have_three_digits() -> None:
    sizes = {0: "0 B", 999: "999 B", 1000: "0.977 KiB", 1023 * 1024: "0.999 MiB",
             5 * 2**50: "5.12e+03 TiB"}  # fmt: skip
    assert {size: in_units(size) for size in sizes} == sizes
