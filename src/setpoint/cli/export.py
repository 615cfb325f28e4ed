"""`setpoint export`: export the weights of a run as a Hugging Face model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from setpoint.cli.main import Loading
from setpoint.cli.options import COMMON, SOURCE_HELP, Arguments, Command, Option
from setpoint.cli.ranks import NPROC, start_ranks
from setpoint.cli.results import tell_cautions
from setpoint.cli.weights import CHECKPOINT_OPTION, SOURCE_OF_WEIGHTS, given, job_with_weights
from setpoint.config import SetpointError
from setpoint.infer.tasks import EXPORTED as FORMATS
from setpoint.infer.tasks import Export
from setpoint.parallel.rank import own_rank

COMMAND = Command(
    "export",
    "SOURCE OUTPUT [OVERRIDES]",
    "Export trained weights as a Hugging Face model into the new directory OUTPUT: config.json,\n"
    "safetensors, and the tokenizer's files if there are any. A model that no model_type of\n"
    f"transformers can express is refused with the reason. {SOURCE_OF_WEIGHTS}\n"
    + SOURCE_HELP,
    [
        Option("--dtype", "dtype of the weights; default: checkpoint.last_dtype or fp32.",
               "FORMAT", False, FORMATS),
        Option("--family", "model_type of transformers; default: the simplest that fits.", "NAME"),
        Option("--max-shard-size", "Maximum size of a weights file in bytes.", "N"),
        Option("--adapter", "Write the adapter alone, in PEFT's format."),
        Option("--merge", "Write the model with its adapter merged, as without --adapter."),
        CHECKPOINT_OPTION,
        NPROC,
        *COMMON,
    ],
    [
        ("setpoint export runs/tiny-3fa94c21 tiny-hf", "the best checkpoint of a run"),
        ("setpoint export tiny tiny-hf --dtype bf16", "in half the size"),
        ("setpoint export runs/lora-3fa94c21 lora-peft --adapter", "for PEFT"),
    ],
    positional=(2, 2),
)  # fmt: skip


@COMMAND
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
    if arguments.has("--adapter") and arguments.has("--merge"):
        raise SetpointError("--adapter and --merge contradict each other; give one")
    if arguments.has("--adapter"):
        found["adapter"] = True
    size = arguments.integer("--max-shard-size")
    if size is not None:
        found["max_shard_size"] = size
    job: Any = job_with_weights(
        arguments, {"export": given(arguments, Export(path=Path(arguments.positional[1])), found)}
    )
    status = start_ranks(arguments)
    if status is not None:
        return status
    with Loading():
        from setpoint.infer.inference import infer

    results = infer(job)
    if own_rank():
        return 0
    print(f"{results.weights} is written to {results.exported}")
    tell_cautions(results)
    return 0
