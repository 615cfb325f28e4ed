"""Run by test_run_deterministic.py in processes of their own: prints what each run has learned.

With two threads, so that sums are shared out.
"""

import hashlib
import json
import sys
from pathlib import Path

import torch

from setpoint.train.run import train

from .small import rows, small_job

SHORT = ("duration=3 steps", "model.layers=2", "deterministic=true", "model.dropout=0.1")
COMPILED = "compile={backend=aot_eager}"
CASES: dict[str, tuple[str, ...]] = {
    "dense": (),
    "experts in bf16": (
        "model.moe={experts=4, capacity_factor=1.5}", "precision.compute=bf16",
    ),
    "compiled": (COMPILED,),
    "dropout of attention": ("model.attention_dropout=0.2",),
    "chunked loss": ("loss=chunked_cross_entropy",),
    "of transformers": (
        "model=huggingface",
        "model.config=gpt2",
        "model.overrides={n_layer: 1, n_embd: 16, n_head: 2}",
    ),
}  # fmt: skip


# The others import what takes most of their time.
QUICK = ("experts in bf16", "chunked loss")


def main(folder: Path, *names: str) -> None:
    """Train the cases of these names."""
    torch.set_num_threads(2)
    found: dict[str, object] = {}
    for number, name in enumerate(names):
        flags = CASES[name]
        own = any(flag.startswith("model=") for flag in flags)
        base = [flag for flag in SHORT if not own or not flag.startswith("model.")]
        outcome = train(small_job(folder / str(number), *base, *flags))
        digest = hashlib.sha256()
        for parameter in outcome.components.model.parameters():
            digest.update(parameter.detach().float().numpy().tobytes())
        losses = [row.get("loss", row.get("held_out_loss")) for row in rows(outcome.directory)]
        found[name] = [digest.hexdigest(), losses]
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
