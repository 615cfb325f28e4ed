"""Continue a text with the weights of a run."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import torch
from torch import Tensor

from setpoint.checkpoint.loading import load_directory
from setpoint.checkpoint.manifest import DamagedCheckpoint
from setpoint.checkpoint.store import CheckpointStore
from setpoint.checkpoint.weights import load_weights
from setpoint.config import RunError
from setpoint.infer.generate import generate
from setpoint.parallel.device import choose_device
from setpoint.train.config import Job


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn.

    Arguments:
        max_tokens: how many to add at most.
        temperature: divides the logits; 0 takes the likeliest.
        top_k: draw among the k likeliest; None: among all.
        seed: of the generator.
    """

    max_tokens: int = 256
    temperature: float = 0.8
    top_k: int | None = None
    seed: int = 0


def write(
    job: Job,
    folder: str,
    prompt: str,
    which: str | Path | None,
    sampling: Sampling,
    stream: TextIO,
) -> None:
    """Print a prompt and its continuation, as it is made.

    Arguments:
        job: the configuration of the run.
        folder: its directory.
        prompt: at least one character, all of which UTF-8 can encode.
        which: `best`, `latest`, a step, or a checkpoint's directory; None for the best if there is
            one.
        sampling: how tokens are drawn.
        stream: where the text goes.

    Raises:
        SetpointError: if there is no such checkpoint.
        RunError: if it is damaged, naming the others, or does not fit the model.
    """
    device = choose_device(job.parallel)
    store = CheckpointStore(Path(folder) / "checkpoints")
    if which is None:
        which = "latest" if store.best is None else "best"
    try:
        if isinstance(which, Path):
            checkpoint = load_directory(which, only=("model",))
        else:
            name = which if which in ("best", "latest") else int(which)
            checkpoint = store.load(name, only=("model",))
    except DamagedCheckpoint as error:
        others = [str(step) for step in store.steps if f"{step:08d}" not in error.path.name]
        hint = f"; --checkpoint {' or '.join(others)} chooses another" if others else ""
        raise RunError(f"{error}{hint}") from error
    tokenizer = job.tokenizer.build()
    model = job.model.build(vocab_size=tokenizer.vocab_size)
    load_weights(model, checkpoint)
    model.to(device)
    # A separator first: the text begins a document.
    start = [tokenizer.separator, *tokenizer.encode(prompt.encode())]
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def show(token: Tensor) -> None:
        if int(token) != tokenizer.separator:
            stream.write(decoder.decode(tokenizer.decode([int(token)])))
            stream.flush()

    stream.write(prompt)
    generate(
        model,
        torch.tensor([start], dtype=torch.int64, device=device),
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        generator=torch.Generator(device).manual_seed(sampling.seed),
        context=job.model.max_sequence_length,
        stop=tokenizer.separator,
        on_token=show,
    )
    stream.write(decoder.decode(b"", final=True) + "\n")
