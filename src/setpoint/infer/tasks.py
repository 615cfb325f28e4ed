"""The tasks of an inference job."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Literal

from setpoint.config import RUNTIME, Config, Problem, dead, derived, field, rule
from setpoint.data.sources.config import NAME, SourceConfig, unmixed_problems


class Chat(Config):
    """Conversations under a chat template."""

    template: str | None = None
    """Chat template: plain, alpaca, chatml, llama3, one of the tokenizer's by name, or a Jinja
    file; null: the one the run was trained with, else the tokenizer's own."""

    system: str | None = None
    """System message of conversations that begin with none; null: none is added."""


class Generation(Config):
    """Text generation: continue prompts token by token."""

    prompts: tuple[str, ...] = ()
    """Prompts to continue; with `chat`, each is the user's message of a conversation; with
    tokenizer.type = ids, token ids: "5 9 12"."""

    prompts_file: Path | None = None
    """File of further prompts: `.jsonl` with a conversation (`messages`, and the other rows of
    training) or "prompt" in each line; any other, a prompt per line."""

    control_tokens: bool = False
    """Read control tokens spelled out in text prompts, such as <|im_start|>, as control tokens, and
    add nothing in front; false: read them as text."""

    samples: int = field(default=1, ge=1)
    """Samples per prompt (num_return_sequences), each with its own random numbers."""

    max_tokens: int = field(default=256, ge=1)
    """Maximum number of new tokens (max_new_tokens)."""

    temperature: float = field(default=0.8, ge=0, lt=inf)
    """Sampling temperature: divides the logits; 0 is greedy decoding."""

    top_k: int | None = field(default=None, ge=1)
    """Top-k sampling: sample from the k most probable tokens; null: all."""

    top_p: float | None = field(default=None, gt=0, le=1)
    """Top-p (nucleus) sampling: from the smallest set of tokens whose probabilities sum to at least
    this; null: all."""

    min_p: float | None = field(default=None, gt=0, le=1)
    """Min-p sampling: sample from tokens at least this fraction as probable as the most probable
    one; null: all."""

    repetition_penalty: float = field(default=1.0, gt=0, lt=inf)
    """Repetition penalty: above 1, tokens of the prompt and of the generated text become less
    probable."""

    stop: tuple[str, ...] = ()
    """Stop strings: the text ends before the first of them. A stop string that is a control token
    is a stop token as well."""

    stop_tokens: tuple[int | str, ...] = ()
    """Further stop tokens, as ids or texts such as <|im_end|>. The end of text, the end of turn the
    run was trained with and those in generation_config.json always end a text."""

    cache: bool = field(default=True, role=RUNTIME)
    """KV cache: each new token computes one position instead of the whole context; models of other
    libraries always compute the whole context."""

    @rule
    def _check_prompts(self) -> Iterator[Problem]:
        if not self.prompts and self.prompts_file is None:
            yield Problem("prompts", "there is no prompt to continue", valid=('["def "]',))

    @rule
    def _check_stops(self) -> Iterator[Problem]:
        for index, text in enumerate(self.stop):
            if not text:
                yield Problem(
                    f"stop.{index}", "is empty, so generation would stop at once", valid=('"\\n"',)
                )
        for index, token in enumerate(self.stop_tokens):
            if isinstance(token, int) and token < 0:
                yield Problem(f"stop_tokens.{index}", f"{token} is not a token id")

    @dead("samples", "top_k", "top_p", "min_p", holds=(1, 1.0))
    def _draws_are_dead(self) -> str | None:
        if self.temperature == 0:
            return "temperature = 0 chooses the most likely token each time"
        return None


class DataSet(Config):
    """Named evaluation set."""

    name: str = field(pattern=NAME)
    """Name of the evaluation set in the results."""

    sources: tuple[SourceConfig, ...]
    """Data sources of the evaluation set; all of their documents are evaluated."""

    @rule
    def _check_sources(self) -> Iterator[Problem]:
        if not self.sources:
            yield Problem("sources", "is empty", valid=('[{type = "stdlib"}]',))
        yield from unmixed_problems(self.sources, "sources")


class EvaluationTask(Config):
    """Evaluation of texts: loss, perplexity and bits per byte."""

    sides: tuple[Literal["held_out", "train"], ...] = derived()
    """Splits of `data` to evaluate on: held_out (validation) and train, of a mixture by source.
    Default: held_out; none where there are `sets` and the weights' training data is unknown."""

    sets: tuple[DataSet, ...] = ()
    """Further evaluation sets, by name."""

    sequences: int | None = field(default=None, ge=1)
    """Number of sequences to evaluate in each set, from its start; null: all."""

    @rule
    def _check_texts(self) -> Iterator[Problem]:
        if not self.sides and not self.sets:
            yield Problem(
                "sides", "there is no text to evaluate", valid=('["held_out"]',), also=("sets",)
            )
        names = [*self.sides, *(data_set.name for data_set in self.sets)]
        for index, data_set in enumerate(self.sets):
            if names.count(data_set.name) > 1:
                yield Problem(
                    f"sets.{index}.name",
                    "is already the name of another text",
                    valid=(f"{data_set.name}-{index}",),
                )
        for index, side in enumerate(self.sides):
            if side in self.sides[:index]:
                yield Problem(f"sides.{index}", f"{side} is named twice")


EXPORTED = ("fp32", "bf16", "fp16")
"""The dtypes that weights are written in, the default first."""


class ExportTask(Config):
    """Export of the weights in the format of Hugging Face's transformers.

    That is config.json and safetensors, with the tokenizer's files where there are any.
    """

    path: Path
    """Output directory; must be new or empty."""

    family: str | None = None
    """model_type of transformers to export as; null: that of the weights that
    training started from, or else the simplest that fits the architecture."""

    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """dtype of the written weights; unless given, checkpoint.last_dtype of a run that has it."""

    max_shard_size: int = field(default=5_000_000_000, ge=1)
    """Maximum size of a weights file in bytes (max_shard_size), approximately; a tensor is never
    split."""

    adapter: bool = False
    """Write the adapter alone, in PEFT's format; false: the model, with the adapter merged."""


class Harness(Config):
    """Benchmark tasks of EleutherAI's lm-evaluation-harness, an optional extra."""

    tasks: tuple[str, ...]
    """Task names of lm-evaluation-harness."""

    tasks_path: Path | None = None
    """Directory of your own task files (include_path); null: only the harness's tasks."""

    few_shot: int | None = field(default=None, ge=0)
    """Few-shot examples (num_fewshot) before each question; null: the task's default."""

    few_shot_turns: bool = False
    """Few-shot examples as turns of the conversation (fewshot_as_multiturn); false: all of them in
    the user's message."""

    limit: int | None = field(default=None, ge=1)
    """Maximum number of examples per task; null: all."""

    @rule
    def _check_tasks(self) -> Iterator[Problem]:
        if not self.tasks:
            yield Problem("tasks", "no task", valid=('["hellaswag"]',))

    @rule(needs="files")
    def _check_path(self) -> Iterator[Problem]:
        """The folder with task files exists."""
        import os

        if self.tasks_path is not None and not os.path.isdir(self.tasks_path):
            yield Problem("tasks_path", f"there is no folder {self.tasks_path}")
