"""A step with an adapter here and with PEFT on the same model: `python -m train.adapters`.

Both sides have the same base, adapter, data and AdamW, in fp32 on one rank, and take turns: the
loop of Setpoint without callbacks, and PEFT on the transformers model that Setpoint exports, in a
loop of plain PyTorch that brings the loss to the host after each step. The losses must agree.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from harness import Report, adamw, setpoint_step
from setpoint.adapter.apply import merge_all
from setpoint.config.composition import compose
from setpoint.infer.exporting import write_peft
from setpoint.model import save_pretrained
from setpoint.train.build.components import build_components
from setpoint.train.config import Job

MODELS: dict[str, tuple[str, ...]] = {
    "12M": ("model.dim=384", "model.layers=6", "model.heads=6", "batch.sequence_length=256"),
    # Next to no arithmetic, so that a test can run it.
    "dust": ("model.dim=32", "model.layers=1", "model.heads=2", "batch.sequence_length=16"),
}
ADAPTERS = {"lora": "adapter={type: lora, rank: 8}", "dora": "adapter={type: dora, rank: 8}"}
FIXED = (
    "checkpoint.every=never", "evaluation=null", "schedule=none", "parallel.device=cpu",
    "batch.micro_size=4", "batch.global_size=4", "precision.compute=fp32", "model.dropout=0",
    "duration=100000 steps",
    "data.sources=[{type: random, documents: 400, length: 4000, alphabet: 64}]",
)  # fmt: skip


def job_of(model: str, adapter: str) -> Job:
    """The job of both sides."""
    flags = (*FIXED, *MODELS[model], ADAPTERS[adapter])
    return compose(Job, "tiny", flags=[f"--{flag}" for flag in flags]).resolve()


def theirs(job: Job, folder: Path) -> Callable[[], float]:
    """A step of PEFT with the same first values, on the same rows."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    components = build_components(job)
    assert job.adapter is not None
    write_peft(components.model, job.adapter, folder / "adapter")
    feed = components.feed
    merge_all(components.model)  # which adds nothing before the first step
    save_pretrained(components.model, folder / "base")
    base: Any = AutoModelForCausalLM.from_pretrained(folder / "base", attn_implementation="sdpa")
    model = PeftModel.from_pretrained(base, str(folder / "adapter"), is_trainable=True).train()
    trained = [each for each in model.parameters() if each.requires_grad]
    config: Any = job.optimizer
    optimizer = adamw(trained, config)

    def step() -> float:
        (batch,) = feed.take().batches
        logits = model(input_ids=batch.inputs, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, config.clip_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def main(words: list[str] | None = None) -> int:
    report = Report(
        "train.adapters", __doc__, words, model=("12M", *MODELS), adapters=[*ADAPTERS], rounds=20,
        steps=3,
    )  # fmt: skip
    chosen = report.options
    for adapter in chosen.adapters:
        job = job_of(chosen.model, adapter)
        with tempfile.TemporaryDirectory() as folder:
            steps = {"setpoint": setpoint_step(job), "PEFT": theirs(job, Path(folder))}
            losses: dict[str, list[float]] = {name: [] for name in steps}

            def turn(name: str, steps: Any = steps, losses: Any = losses) -> None:
                losses[name] += [steps[name]() for _ in range(chosen.steps)]

            sides = {name: lambda name=name: turn(name) for name in steps}
            wall, cpu = report.compare(adapter, sides, {}, torch.device("cpu"))["PEFT"]
        report.agree(adapter, {name: [torch.tensor(each)] for name, each in losses.items()}, 1e-3)
        milliseconds = f"{report.seconds['setpoint'] / chosen.steps * 1000:.1f}"
        report.rows.append((adapter, milliseconds, str(wall), str(cpu)))
    speeds = ", ".join(f"{adapter} {cpu}" for adapter, *_, cpu in report.rows)
    report.results["a step with an adapter against PEFT"] = speeds
    return report.finish(("adapter", "ms", "x PEFT", "CPU time"))


if __name__ == "__main__":
    raise SystemExit(main())
