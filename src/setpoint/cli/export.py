"""`setpoint export`: write the weights of a run for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from setpoint.cli.command import COMMON, SOURCE_HELP, Arguments, Command, Option
from setpoint.cli.outcome import Loading
from setpoint.cli.weights import CHECKPOINT_OPTION, SOURCE_OF_WEIGHTS, given, job_with_weights
from setpoint.config import SetpointError
from setpoint.infer.tasks import Export

FORMATS = ("fp32", "bf16", "fp16")
COMMAND = Command(
    "export",
    "SOURCE OUTPUT [OVERRIDES]",
    "Write trained weights into the new directory OUTPUT as Hugging Face's transformers reads\n"
    "them: config.json and safetensors, with the tokenizer's files where there are any. What no\n"
    f"family of models there can express is refused, in words. {SOURCE_OF_WEIGHTS}\n"
    + SOURCE_HELP,
    [
        Option("--dtype", "Number format of the weights; fp32 unless given.", "FORMAT", False,
               FORMATS),
        Option("--family", "model_type of transformers; the plainest unless given.", "NAME"),
        Option("--max-shard-size", "Bytes of weights in one file.", "N"),
        CHECKPOINT_OPTION,
        *COMMON,
    ],
    [
        ("setpoint export runs/tiny-3fa94c21 tiny-hf", "the best checkpoint of a run"),
        ("setpoint export tiny tiny-hf --dtype bf16", "in half the space"),
    ],
    positional=(2, 2),
)  # fmt: skip


def run(arguments: Arguments) -> int:
    """Write the directory, and say where it is."""
    found: dict[str, Any] = {}
    dtype = arguments.value("--dtype")
    if dtype is not None:
        if dtype not in FORMATS:
            raise SetpointError(f"--dtype is one of {', '.join(FORMATS)}, got {dtype!r}")
        found["dtype"] = dtype
    if arguments.has("--family"):
        found["family"] = arguments.value("--family")
    size = arguments.integer("--max-shard-size")
    if size is not None:
        found["max_shard_size"] = size
    job: Any = job_with_weights(
        arguments, {"export": given(arguments, Export(path=Path(arguments.positional[1])), found)}
    )
    with Loading():
        from setpoint.infer.run import infer

    results = infer(job)
    print(f"{results.weights} is written to {results.exported}")
    return 0
