"""`setpoint checkpoint import`: checkpoints of nanoGPT, litgpt, torchtune, torchtitan, ..."""

from __future__ import annotations

import os
from pathlib import Path

from setpoint.cli.main import Loading
from setpoint.cli.options import COMMON, Arguments, Command, Option
from setpoint.cli.output import print_notes
from setpoint.cli.source import open_source
from setpoint.config import SetpointError
from setpoint.train.config import Job


@Command(
    "checkpoint import CHECKPOINT DIRECTORY [OVERRIDES]",
    Option(
        "--model MODEL", "Model of the weights: directory, run, or id on the hub.", excludes="--job"
    ),
    Option("--job SOURCE", "Write a checkpoint of this job, with optimizer state and step."),
    Option("--dtype fp32|bf16|fp16", "dtype of the weights; default: unchanged.", excludes="--job"),
    *COMMON,
)
def import_checkpoint(arguments: Arguments) -> int:
    """Write a checkpoint of another system into the new directory DIRECTORY.

    CHECKPOINT is a file or directory of nanoGPT (ckpt.pt), litgpt (lit_model.pth), torchtune,
    torchtitan or Megatron-LM (distributed checkpoints), or a GGUF file. It is recognized by its
    content; SYSTEM:PATH names the system: nanogpt, litgpt, torchtune, torchtitan, megatron, gguf.
    Pickles that would run code are refused.

    DIRECTORY gets the weights in the format of Hugging Face, which model.pretrained, evaluate,
    generate and transformers read. With --job it becomes a checkpoint of that job, which
    checkpoint.load continues: weights, state of AdamW, and step. The model is what the checkpoint
    describes, a config.json beside it, --model, or that of the job.

    Examples:
        setpoint checkpoint import out/ckpt.pt gpt  then: setpoint generate gpt
        setpoint checkpoint import llama.gguf llama --dtype bf16  quantized weights made dense
        setpoint checkpoint import step-1000 start --job torchtitan:job.toml  to continue it
    """
    source, directory = arguments.positional[:2]
    target = Path(os.path.expanduser(directory))
    job_source = arguments.value("--job")
    job: Job | None = None
    words = [*arguments.overrides, *(o.name for o in COMMON if arguments.has(o.name))]
    if job_source is not None:
        job = open_source(job_source, arguments).resolve()
    elif words:
        raise SetpointError(f"{words[0]} has no effect without --job SOURCE, whose values it sets")
    with Loading():
        from setpoint.interop.checkpoints.import_weights import (
            import_checkpoint,
            import_weights,
            open_foreign,
        )
    foreign = open_foreign(source, arguments.value("--model"), optimizer=job is not None)
    contents = foreign.contents
    if job is None:
        import_weights(foreign, target, arguments.value("--dtype"))
        text = f"weights of {len(contents.tensors)} tensors"
    else:
        step = import_checkpoint(foreign, job, target)
        text = f"step {step}, weights of {len(contents.tensors)} tensors"
        text += ", optimizer state" if contents.states else ", no optimizer state"
    print_notes(contents.notes)
    print(f"{contents.path} ({foreign.system.title}) is written to {target}: {text}")
    return 0
