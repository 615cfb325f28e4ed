"""Memory of loading a base that is quantized, tensor by tensor, beside that of a dense one.

    cd benchmarks && python -m adapter.loading_memory [--layers 8] [--dim 1024] [--experts 64]

Weights in bf16 in the format of Hugging Face; each side loads them in a fresh process. *peak* is by
how much resident memory rises at most while they are loaded, *held* the bytes of all parameters.
Leaves with status 1 if the peak of the quantized side is above what it holds, three fp32 copies of
its largest matrix, of one expert, and 64 MiB. With `--experts` each layer has so many, together
four times as wide as it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import torch

from harness import forget_peak, memory_line, options, record, run_module
from setpoint.adapter.config import QLoRA
from setpoint.adapter.quantize.weight import quantize_base
from setpoint.adapter.targets import quantized_sites, sites_of
from setpoint.cli.output import table
from setpoint.config import resolve
from setpoint.model.build import materialize, skeleton
from setpoint.model.initialize import initialize
from setpoint.model.pretrained.config_json import read_config
from setpoint.model.pretrained.fill import weights_of
from setpoint.model.pretrained.save_pretrained import save_pretrained
from setpoint.train.build.job_parameters import trained_parameters

MIB = 2**20


def main() -> int:
    """Print a table."""
    given = options(__doc__, layers=8, dim=1024, experts=0, side=[""])
    if given.side:
        print(*load(Path(given.side[0]), given.side[1] == "nf4"))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), given.layers, given.dim, given.experts)
        rows, wrong = [], 0
        for side in ("dense", "nf4"):
            # What is freed is given back, so that the peak is what was needed at once.
            environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
            words = ("--side", folder, side)
            said = run_module("adapter.loading_memory", *words, env=environment)
            peak, held, largest = map(int, said.split())
            wrong += side != "dense" and peak > held + 3 * 4 * largest + 64 * MIB
            rows.append((side, *(f"{each / MIB:,.0f}" for each in (held, peak, 4 * largest))))
    print(table(rows, ("base", "held MiB", "peak MiB", "largest matrix in fp32 MiB")))
    (_, dense, *_), (_, held, peak, _) = rows
    result = f"peak {peak} MiB, then {held}; {dense} without quantization"
    record(given, "adapter.loading_memory", {"memory of loading bf16 weights as nf4": result})
    return 1 if wrong else 0


def write(folder: Path, layers: int, dim: int, experts: int) -> None:
    """Save a model with random weights."""
    from setpoint.model.config import TransformerConfig
    from setpoint.model.moe.config import MoE

    moe = MoE(experts=experts, top_k=2, expert_dim=4 * dim // experts) if experts else None
    config = resolve(
        TransformerConfig(
            layers=layers, dim=dim, heads=dim // 64, max_sequence_length=512, vocab_size=512,
            moe=moe, qk_norm=bool(experts),
        )
    )  # fmt: skip
    model = skeleton(config, 512)
    materialize(model, "cpu", torch.bfloat16)
    initialize(model, 1)
    vars(model)["config"] = config
    save_pretrained(model, folder)


def load(folder: Path, quantized: bool) -> tuple[int, int, int]:
    """Load them: the rise of resident memory, bytes of parameters, numbers of a matrix."""
    config, family = read_config(folder)
    assert config.vocab_size is not None
    model, whole = (skeleton(config, config.vocab_size) for _ in range(2))
    if quantized:
        adapter = resolve(QLoRA())
        assert adapter.quantize is not None
        sites = quantized_sites(adapter, sites_of(trained_parameters(model)))
        quantize_base(adapter.quantize, model, sites, 1)
    weights = weights_of(folder, family, whole, config)
    before = forget_peak()
    weights.fill(model, device="cpu", dtype=torch.bfloat16)
    held = sum(each.nbytes for each in model.parameters())
    return (
        memory_line("VmHWM") - before,
        held,
        max(each.numel() // (len(each) if each.dim() == 3 else 1) for each in whole.parameters()),
    )


if __name__ == "__main__":
    sys.exit(main())
