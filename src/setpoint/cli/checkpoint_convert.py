"""`setpoint checkpoint convert`: a checkpoint in another layout."""

from __future__ import annotations

import os
from pathlib import Path

from setpoint.checkpoint.places import checkpoint_to_load
from setpoint.cli.main import Loading
from setpoint.cli.options import Arguments, Command, Option, refuse_overrides
from setpoint.config import SetpointError, did_you_mean
from setpoint.hub.urls import is_url

LAYOUTS = ("whole", "divided", "huggingface")
FORMATS = ("fp32", "bf16", "fp16")
TO = Option("--to", "whole, divided or huggingface.", "LAYOUT", False, LAYOUTS)
RANKS = Option("--ranks", "For divided: into how many files, as that many ranks write.", "N")
FROZEN = Option(
    "--frozen", "For whole, divided: with the frozen parameters that CHECKPOINT leaves out."
)
DTYPE = Option("--dtype", "For huggingface: dtype of the weights; default: as they are.",
               "FORMAT", False, FORMATS)  # fmt: skip
MAX_SHARD_SIZE = Option(
    "--max-shard-size", "For huggingface: maximum size of a weights file in bytes.", "N"
)
COMMAND = Command(
    "checkpoint convert",
    "CHECKPOINT DIRECTORY",
    "Write a checkpoint in another layout into the new directory DIRECTORY, a few tensors at a\n"
    "time. whole: each tensor in one piece, as one process writes it; divided: rows of each in N\n"
    "files, as N ranks write them; both hold all that the checkpoint holds, are compared with it\n"
    "bit by bit, and are loaded by checkpoint.load. huggingface: the weights as `setpoint export`\n"
    "writes them. DIRECTORY is there whole at the end, or not at all.\n\n"
    "CHECKPOINT is a checkpoint, as in runs/tiny-3fa94c21/checkpoints/best, or a run, which means\n"
    "its latest. The training data is not needed.",
    [TO, RANKS, FROZEN, DTYPE, MAX_SHARD_SIZE],
    [
        ("setpoint checkpoint convert runs/tiny-3fa94c21 copy --to whole", "in one piece"),
        ("setpoint checkpoint convert copy tiny-hf --to huggingface", "for transformers"),
    ],
    positional=(2, 2),
)  # fmt: skip


@COMMAND
def run(arguments: Arguments) -> int:
    """Write the directory, and say where it is."""
    refuse_overrides(arguments)
    layout = _one_of(arguments, TO, LAYOUTS)
    if layout is None:
        raise SetpointError(f"--to is missing: one of {', '.join(LAYOUTS)}")
    only = {
        "whole": (FROZEN,),
        "divided": (RANKS, FROZEN),
        "huggingface": (DTYPE, MAX_SHARD_SIZE),
    }[layout]
    for option in (RANKS, FROZEN, DTYPE, MAX_SHARD_SIZE):
        if arguments.has(option.name) and option not in only:
            raise SetpointError(f"{option.name} has no effect with --to {layout}. Leave it out")
    source = checkpoint_to_load(arguments.positional[0])
    if is_url(arguments.positional[1]):
        raise SetpointError(
            f"{arguments.positional[1]} is a URL.\nValid: a new or empty directory on a disk"
        )
    target = Path(os.path.expanduser(arguments.positional[1]))
    if layout == "huggingface":
        _to_hugging_face(arguments, source, target)
    else:
        ranks = arguments.integer(RANKS.name)
        if layout == "divided" and (ranks is None or ranks < 2):
            raise SetpointError("--to divided needs --ranks N, 2 or more")
        with Loading():
            from setpoint.checkpoint.convert import convert
            from setpoint.infer.loaded_model import add_adapter
            from setpoint.model.pretrained.base import frozen_of
        frozen = frozen_of(source, add_adapter) if arguments.has(FROZEN.name) else None
        if arguments.has(FROZEN.name) and not frozen:
            raise SetpointError(
                f"{FROZEN.name} has no effect: {source} holds all of its parameters. Leave it out"
            )
        convert(source, target, ranks, frozen)
    print(f"{source} is written to {target}")
    return 0


def _to_hugging_face(arguments: Arguments, source: Path, target: Path) -> None:
    dtype = _one_of(arguments, DTYPE, FORMATS)
    size = arguments.integer(MAX_SHARD_SIZE.name)
    if size is not None and size < 1:
        raise SetpointError(f"{MAX_SHARD_SIZE.name} is at least 1 byte, got {size}")
    with Loading():
        from setpoint.checkpoint.convert import require_free
        from setpoint.infer.export_weights import export
        from setpoint.model.pretrained.run import job_of, tokenizer_of
        from setpoint.model.pretrained.save import SHARD
    require_free(target)
    tokenizer = tokenizer_of(source, job_of(source).tokenizer)
    export(source, tokenizer, target, dtype=dtype, max_shard_size=size or SHARD)


def _one_of(arguments: Arguments, option: Option, words: tuple[str, ...]) -> str | None:
    found = arguments.value(option.name)
    if found is not None and found not in words:
        meant = did_you_mean(found, words, " ")
        raise SetpointError(f"{option.name} is one of {', '.join(words)}, got {found!r}.{meant}")
    return found
