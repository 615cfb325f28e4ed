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

from harness import options, run_module
from setpoint.train import prepare_threads

prepare_threads()  # as `setpoint train` does, before torch is imported

import torch  # noqa: E402

from setpoint.adapter.config import QLoRA  # noqa: E402
from setpoint.adapter.quantize.weight import quantize_base  # noqa: E402
from setpoint.adapter.targets import quantized_sites, sites_of  # noqa: E402
from setpoint.cli.output import table  # noqa: E402
from setpoint.config import resolve  # noqa: E402
from setpoint.model.build import materialize, skeleton  # noqa: E402
from setpoint.model.initialize import initialize  # noqa: E402
from setpoint.model.pretrained.config_json import read_config  # noqa: E402
from setpoint.model.pretrained.fill import weights_of  # noqa: E402
from setpoint.model.pretrained.save_pretrained import save_pretrained  # noqa: E402
from setpoint.train.build.job_parameters import trained_parameters  # noqa: E402

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
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = status("VmRSS")
    weights.fill(model, device="cpu", dtype=torch.bfloat16)
    held = sum(each.nbytes for each in model.parameters())
    return (
        status("VmHWM") - before,
        held,
        max(each.numel() // (len(each) if each.dim() == 3 else 1) for each in whole.parameters()),
    )


def status(field: str) -> int:
    """A size of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    sys.exit(main())
