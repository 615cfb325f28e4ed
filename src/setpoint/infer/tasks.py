"""The tasks of an inference job: what is done with a trained model."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Literal

from setpoint.config import RUNTIME, Config, Problem, SetpointError, check, dead, field
from setpoint.data.config import NAME, SourceConfig


class Generation(Config):
    """Continue prompts by drawing token after token."""

    prompts: tuple[str, ...] = ()
    """Texts to continue."""

    prompts_file: Path | None = None
    """More texts to continue: `.jsonl` with a text under "prompt" in each line; any other file
    holds a prompt in each line."""

    samples: int = field(default=1, ge=1, also_called=("num_return_sequences", "num_samples", "n"))
    """Samples per prompt (num_return_sequences), each with random numbers of its own."""

    max_tokens: int = field(
        default=256, ge=1, also_called=("max_new_tokens", "max_gen_toks", "max_gen_tokens")
    )
    """Maximum number of new tokens."""

    temperature: float = field(default=0.8, ge=0, lt=inf)
    """Sampling temperature: divides the logits; 0 is greedy decoding."""

    top_k: int | None = field(default=None, ge=1)
    """Top-k sampling: draw among the k likeliest tokens; null: among all."""

    top_p: float | None = field(default=None, gt=0, le=1, also_called=("nucleus",))
    """Top-p (nucleus) sampling: draw among the fewest likeliest tokens that hold this share of the
    probability; null: all."""

    min_p: float | None = field(default=None, gt=0, le=1)
    """Min-p sampling: draw among tokens at least this likely, relative to the likeliest one; null:
    among all."""

    repetition_penalty: float = field(default=1.0, gt=0, lt=inf)
    """Repetition penalty: above 1, tokens of the prompt and of what was drawn become less
    likely."""

    stop: tuple[str, ...] = field(default=(), also_called=("stop_strings", "until", "stop_text"))
    """Stop strings: they end a continuation, which is cut where they begin. The end of a document
    ends it in any case."""

    stop_tokens: tuple[int, ...] = field(
        default=(), also_called=("eos_token_id", "stop_token_ids", "terminators")
    )
    """Stop token ids: they end a continuation."""

    cache: bool = field(default=True, role=RUNTIME, also_called=("use_cache", "kv_cache"))
    """KV cache: keep keys and values, so that a token costs one position and not the whole context.
    Models that are not Setpoint's own read the whole context in any case."""

    @check
    def _check_prompts(self) -> Iterator[Problem]:
        if not self.prompts and self.prompts_file is None:
            yield Problem("prompts", "no prompt, so nothing to continue", valid=('["def "]',))

    @check
    def _check_stops(self) -> Iterator[Problem]:
        for index, text in enumerate(self.stop):
            if not text:
                yield Problem(f"stop.{index}", "is empty, and would stop at once", valid=('"\\n"',))
        for index, token in enumerate(self.stop_tokens):
            if token < 0:
                yield Problem(f"stop_tokens.{index}", f"{token} is no number of a token")

    @check(needs="files")
    def _check_file(self) -> Iterator[Problem]:
        """Whether the file with prompts is there and holds some."""
        from setpoint.infer.prompts import read_prompts

        if self.prompts_file is not None:
            try:
                read_prompts(self.prompts_file)
            except SetpointError as error:
                yield Problem("prompts_file", str(error))

    @dead("samples", "top_k", "top_p", "min_p")
    def _draws_are_dead(self) -> str | None:
        if self.temperature == 0:
            return "temperature = 0 takes the likeliest token each time"
        return None


class DataSet(Config):
    """A text by name that a model is evaluated on."""

    name: str = field(pattern=NAME)
    """What its result is called."""

    sources: tuple[SourceConfig, ...]
    """Where its documents come from; all of them are read."""

    @check
    def _check_sources(self) -> Iterator[Problem]:
        if not self.sources:
            yield Problem("sources", "no source, so no text", valid=('[{type = "stdlib"}]',))


class Evaluation(Config):
    """How well the model predicts texts: loss, perplexity, and bits per byte."""

    sides: tuple[Literal["held_out", "train"], ...] = ("held_out",)
    """Splits of `data` to evaluate on: held_out (validation) and train."""

    sets: tuple[DataSet, ...] = field(default=(), also_called=("eval_datasets", "test_datasets"))
    """Further evaluation sets, each with a result under its name."""

    sequences: int | None = field(
        default=None, ge=1, also_called=("limit", "max_eval_samples", "eval_iters")
    )
    """Sequences of each text to evaluate on, from its start; null: all there are."""

    @check
    def _check_texts(self) -> Iterator[Problem]:
        if not self.sides and not self.sets:
            yield Problem("sides", "no text to judge on", valid=('["held_out"]',), also=("sets",))
        names = [*self.sides, *(each.name for each in self.sets)]
        for index, each in enumerate(self.sets):
            if names.count(each.name) > 1:
                yield Problem(
                    f"sets.{index}.name",
                    "is the name of another text already",
                    valid=(f"{each.name}-{index}",),
                )
        for index, side in enumerate(self.sides):
            if side in self.sides[:index]:
                yield Problem(f"sides.{index}", f"{side} is named twice")


class Export(Config):
    """Write the weights as Hugging Face's transformers reads them.

    That is config.json and safetensors, with the tokenizer's files where there are any.
    """

    path: Path
    """The directory to make; it must be empty if it is there."""

    family: str | None = field(default=None, also_called=("model_type",))
    """model_type of transformers to write it as; null: the plainest that it can be."""

    dtype: Literal["fp32", "bf16", "fp16"] = field(
        default="fp32", also_called=("export_dtype", "torch_dtype")
    )
    """dtype of the written weights."""

    max_shard_size: int = field(default=5_000_000_000, ge=1)
    """Maximum shard size: bytes of weights in one file, more or less; a single tensor is never
    split."""


class Harness(Config):
    """Tasks of EleutherAI's lm-evaluation-harness, an extra."""

    tasks: tuple[str, ...]
    """Tasks by the names that the harness gives them."""

    tasks_path: Path | None = field(default=None, also_called=("include_path",))
    """A folder with task files of your own; null: only the harness's own."""

    few_shot: int | None = field(default=None, ge=0, also_called=("num_fewshot",))
    """Few-shot examples (num_fewshot) before each question; null: as each task says."""

    limit: int | None = field(default=None, ge=1)
    """Maximum number of examples of each task; null: all."""

    @check
    def _check_tasks(self) -> Iterator[Problem]:
        if not self.tasks:
            yield Problem("tasks", "no task", valid=('["hellaswag"]',))

    @check(needs="files")
    def _check_path(self) -> Iterator[Problem]:
        """Whether the folder with task files is there."""
        import os

        if self.tasks_path is not None and not os.path.isdir(self.tasks_path):
            yield Problem("tasks_path", f"there is no folder {self.tasks_path}")
