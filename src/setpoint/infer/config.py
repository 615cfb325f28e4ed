"""The root of an inference job: weights and tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from setpoint.adapter.config import AdapterConfig
from setpoint.config import (
    RUNTIME,
    Config,
    Problem,
    Rule,
    dead,
    derive,
    derived,
    field,
    is_set,
    leaves,
    rule,
)
from setpoint.config.values.origin import DEFAULT
from setpoint.config.words.names import nearest_multiples
from setpoint.data.config import Bytes, Data, HuggingFace, TokenIds, TokenizerConfig
from setpoint.infer.tasks import Chat, EvaluationTask, ExportTask, Generation, Harness
from setpoint.model.config import (
    HuggingFaceConfig,
    ModelConfig,
    TransformerConfig,
    names_attention_backend,
)
from setpoint.parallel.config import CONTEXT, Parallel
from setpoint.profile.config import Profiling
from setpoint.resilience.config import Resilience

LONGEST_DEFAULT = 2048
MICRO_SIZE = 8
"""Default of batch.micro_size."""
TASKS = ("generation", "evaluation", "export", "harness")


class InferenceWeights(Config):
    """The trained weights."""

    path: str
    """Weights to load: directory of a run, of a checkpoint or of a Hugging Face model, or a Hub
    repository id. Model, tokenizer, data, sequence length and precision are taken from its
    record."""

    checkpoint: int | Literal["best", "latest"] | None = None
    """Checkpoint of a run, by name or step; null: best if there is one, else latest."""

    dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """dtype of the weights in memory; bf16 and fp16 halve it."""

    merge_adapter: bool = True
    """Merge the adapter of a run into its weights, which is faster; false: compute it separately,
    as in training and where ranks divide the weights of type = transformer. The results differ by
    rounding."""

    @rule
    def _check_path(self) -> Iterator[Problem]:
        if not self.path:
            yield Problem("path", "is empty", valid=("runs/tiny-3fa94c21", "Qwen/Qwen3-0.6B"))
        if isinstance(self.checkpoint, int) and self.checkpoint < 0:
            yield Problem(
                "checkpoint", f"{self.checkpoint} is not a step", valid=("latest", "best")
            )


class InferencePrecision(Config):
    """Compute dtype; the weights have `weights.dtype`."""

    compute: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Compute dtype of matrix products (autocast). fp16 needs a GPU."""


class InferenceBatch(Config):
    """Batch size and sequence length; give one of the sizes, or none."""

    global_size: int = derived(ge=1, role=RUNTIME)
    """Global batch size: sequences or prompts in one forward pass of all ranks, micro_size of them
    on each copy of the model. It affects results only through rounding."""

    micro_size: int = derived(ge=1, role=RUNTIME)
    """Micro-batch size: sequences or prompts in one forward pass of one copy of the model; 8 if no
    size is given."""

    sequence_length: int = derived(ge=1)
    """Sequence length of evaluation, in tokens. Default: the run's; for other weights, the model's
    maximum, but at most 2048."""


HERE = "setpoint.infer.rules:"
CONTROLS_AS_TEXT = "control-tokens-as-text"
FORWARD = ("generation", "evaluation", "harness")
"""The tasks that run the model."""
GROWING = {"generation": "generation.prompts", "harness": "harness.tasks"}
"""Tasks whose sequences grow, and a field of each."""
TRAINING = "setpoint.train.rules."
"""Module of the checks of `model`, `parallel`, `tokenizer` and `batch` that both jobs share."""


def _is_transformer(job: Any) -> bool:
    return isinstance(job.model, TransformerConfig)


RULES = (
    Rule(f"{HERE}precision_problems", "fp16 has the GPU that it needs"),
    Rule(f"{HERE}pass_problems",
         "There are forward passes between which profiles and garbage collection run",
         when=lambda job: job.profiling is not None or job.resilience.gc is not None),
    Rule(f"{HERE}snapshot_problems", "There is a GPU to take snapshots of", needs="torch",
         when=lambda job: getattr(job.profiling, "snapshot", False)
         and job.parallel.device == "auto"),
    Rule(f"{HERE}attention_problems",
         "The attention backend goes with the device and the dtype",
         when=lambda job: names_attention_backend(job.model)),
    Rule(f"{HERE}attention_device_problems", "The attention backend runs on the device",
         needs="torch", when=lambda job: names_attention_backend(job.model)),
    Rule(f"{HERE}adapter_problems",
         "There is an adapter where one is to be merged or exported",
         needs="files"),
    Rule(f"{HERE}export_problems", "The family of an export can express the model",
         needs="files", when=lambda job: job.export is not None
         and job.export.family is not None and _is_transformer(job)),
    Rule(f"{HERE}vocabulary_problems", "The tokenizer's vocabulary fits the model",
         needs="files", when=lambda job: isinstance(job.model, TransformerConfig)),
    Rule(f"{HERE}prompt_problems",
         "The chat template, the prompts and the stop tokens fit the tokenizer",
         needs="files", cautions={CONTROLS_AS_TEXT: "prompts spell control tokens, as text"}),
    Rule(f"{HERE}added_token_problems",
         "The weights were trained with the tokens that the tokenizer adds",
         needs="files", when=lambda job: isinstance(job.tokenizer, HuggingFace)
         and bool(job.tokenizer.added)),
    Rule(f"{TRAINING}parallel_rules:tensor_problems",
         "Ranks can divide the matrices of the model", needs="files",
         when=lambda job: job.parallel.divides_matrices and _is_transformer(job)),
    Rule(f"{TRAINING}parallel_rules:family_problems",
         "transformers makes the model, and ranks can divide it",
         needs="torch", when=lambda job: isinstance(job.model, HuggingFaceConfig)
         and (job.divides_weights or job.parallel.divides_sequences)),
    Rule(f"{TRAINING}parallel_rules:context_problems",
         "The ranks of a sequence get as many of its tokens, and as many heads",
         when=lambda job: job.parallel.divides_sequences),
    Rule(f"{TRAINING}parallel_rules:expert_problems",
         "The experts can be divided among the ranks",
         when=lambda job: job.parallel.divides_experts and _is_transformer(job)
         and job.model.moe is not None),
    Rule(f"{TRAINING}parallel_rules:stage_problems",
         "The model has the parts that the stages of a pipeline hold",
         when=lambda job: job.parallel.divides_layers and _is_transformer(job)),
    Rule(f"{TRAINING}parallel_rules:unit_problems",
         "The patterns of FSDP2 units match modules of a transformer",
         when=lambda job: bool(job.parallel.sharding.units)),
)  # fmt: skip

OF_TRAINING = (
    "parallel.engine", "parallel.bucket_size", "parallel.torchft", "parallel.init_device",
    "parallel.async_tensor_parallel", "parallel.pipelining.schedule",
    "parallel.pipelining.stages_per_rank", "parallel.sharding.accumulation",
    "parallel.sharding.backward_prefetch",
)  # fmt: skip
"""Fields of `parallel` that mean something with a backward pass or compiled code only."""


class Inference(
    Config,
    schema=1,
    other_names="setpoint.interop.foreign_names",
    presets="setpoint.presets",
    rules=RULES,
):
    """Inference job: generation, evaluation, benchmark tasks and export of trained weights."""

    weights: InferenceWeights = field(factory=lambda: InferenceWeights())  # pyright: ignore[reportCallIssue]
    """The trained weights."""

    model: ModelConfig = field(factory=TransformerConfig)
    """Model architecture, from the record of the weights; only runtime fields, such as
    attention_backend, may be given."""

    adapter: AdapterConfig | None = None
    """Low-rank adapter (LoRA), from the record of the weights."""

    tokenizer: TokenizerConfig = field(factory=Bytes)
    """Tokenizer, from the record of the weights."""

    data: Data = field(factory=Data)
    """Evaluation data; unless given, the data of the run."""

    batch: InferenceBatch = field(factory=InferenceBatch)
    """Batch size and sequence length."""

    precision: InferencePrecision = field(factory=InferencePrecision)
    """Compute dtype; unless given, the run's."""

    parallel: Parallel = field(factory=Parallel, role=RUNTIME)
    """Device, number of ranks, and what each of them holds; unlike `model`, not taken from the
    run."""

    deterministic: bool = False
    """Deterministic algorithms only (torch.use_deterministic_algorithms); an operation that has
    none is an error."""

    seed: int = field(default=0, ge=0, lt=2**63)
    """Sampling seed of generation."""

    chat: Chat | None = None
    """Conversations: each text prompt is the user's message under a chat template, and harness
    tasks are asked the same way; null: prompts are plain text."""

    generation: Generation | None = None
    """Text generation: prompts to continue; null: none."""

    evaluation: EvaluationTask | None = None
    """Evaluation: loss, perplexity and bits per byte of texts; null: none."""

    export: ExportTask | None = None
    """Export of the weights as a Hugging Face model; null: none."""

    harness: Harness | None = None
    """Benchmark tasks of lm-evaluation-harness; null: none."""

    output: Path | None = field(default=None, role=RUNTIME)
    """Output directory for results and their record; null: results are only printed."""

    profiling: Profiling | None = field(default=None, role=RUNTIME)
    """torch.profiler; null: none. A step is a forward pass: a batch of evaluation, or one new
    token."""

    resilience: Resilience = field(factory=Resilience, role=RUNTIME)
    """Garbage collection and shutdown; a step is a forward pass here."""

    silence: tuple[str, ...] = field(default=(), role=RUNTIME)
    """Caution codes to hide: cautions (warnings) that are not shown."""

    @derive("model.max_sequence_length")
    def _derive_max_sequence_length(self) -> int:
        return LONGEST_DEFAULT

    @derive("batch.sequence_length")
    def _derive_sequence_length(self) -> int:
        return min(self.model.max_sequence_length, LONGEST_DEFAULT)

    @rule
    def _check_tasks(self) -> Iterator[Problem]:
        if all(getattr(self, name) is None for name in TASKS):
            yield Problem(
                "generation",
                "there is no task",
                hint=f"Give one or more of the sections {', '.join(TASKS)}.",
                also=TASKS[1:],
            )

    @property
    def ids(self) -> TokenIds | None:
        """The tokenizer section to use if there is none and texts are token ids."""
        return self.tokenizer if isinstance(self.tokenizer, TokenIds) else None

    @property
    def data_is_unknown(self) -> bool:
        """True if the training data of the weights is unknown, so that `data.sources` is a default.

        Splits are then named after that default, since the weights have none.
        """
        sources = (leaf for leaf in leaves(self) if leaf.key.startswith("data.sources"))
        return all(leaf.origin.layer == DEFAULT for leaf in sources)

    @property
    def merges_adapter(self) -> bool:
        """True if the adapter is merged into the weights before anything is computed.

        Transformers models are read whole, and merged before ranks divide them.
        """
        keeps_adapter = self.divides_weights and isinstance(self.model, TransformerConfig)
        keeps_adapter = keeps_adapter or (self.export is not None and self.export.adapter)
        return self.adapter is not None and self.weights.merge_adapter and not keeps_adapter

    @property
    def runs_model(self) -> bool:
        """True if a task runs the model."""
        return any(getattr(self, name) is not None for name in FORWARD)

    @property
    def divides_weights(self) -> bool:
        """True if each rank has only a part of the weights."""
        parallel, degrees = self.parallel, self.parallel.degrees
        return (
            parallel.divides_experts
            or parallel.shards * degrees["tensor"] * degrees["pipeline"] > 1
        )

    @derive("evaluation.sides")
    def _derive_sides(self) -> tuple[str, ...]:
        has_sets = self.evaluation is not None and self.evaluation.sets
        return () if has_sets and not is_set(self.data, "sources") else ("held_out",)

    @rule
    def _check_held_out(self) -> Iterator[Problem]:
        sides = () if self.evaluation is None else self.evaluation.sides
        if "held_out" in sides and not self.data.held_out and not self.data.validation:
            yield Problem(
                "evaluation.sides",
                "nothing is held out of the data",
                also=("data.held_out",),
                valid=('["train"]',),
                hint="Give other texts in evaluation.sets, or with --text of `setpoint evaluate`.",
            )

    @rule
    def _check_ids(self) -> Iterator[Problem]:
        if self.harness is not None and self.ids is not None:
            yield Problem(
                "harness",
                "tasks are texts, but tokenizer.type = ids cannot tokenize text",
                valid=("null",),
                also=("tokenizer",),
            )

    @rule
    def _check_streams(self) -> Iterator[Problem]:
        sides = () if self.evaluation is None else self.evaluation.sides
        if "train" in sides and self.data.streams:
            yield Problem(
                "evaluation.sides",
                "the training data is streamed, so it cannot be evaluated as a whole",
                also=("data.sources",),
                valid=('["held_out"]',),
            )

    @rule
    def _check_context(self) -> Iterator[Problem]:
        longest = self.model.max_sequence_length
        if self.evaluation is not None and self.batch.sequence_length > longest:
            yield Problem(
                "batch.sequence_length",
                f"{self.batch.sequence_length} tokens exceed the model's maximum of {longest}",
                valid=(str(longest),),
                also=("model.max_sequence_length",),
            )

    @derive("batch.global_size")
    def _derive_global_size(self) -> int:
        size = self.batch.micro_size if is_set(self.batch, "micro_size") else MICRO_SIZE
        return size * self.parallel.data_ranks

    @derive("batch.micro_size")
    def _derive_micro_size(self) -> int:
        if not is_set(self.batch, "global_size"):
            return MICRO_SIZE
        return max(1, self.batch.global_size // self.parallel.data_ranks)

    @rule
    def _check_batch(self) -> Iterator[Problem]:
        size, micro, ranks = self.batch.global_size, self.batch.micro_size, self.parallel.data_ranks
        if size == micro * ranks:
            return
        both = is_set(self.batch, "micro_size")
        yield Problem(
            "batch.global_size",
            f"{size} sequences are not {micro} (micro) * {ranks} (copies of the model)"
            if both
            else f"{size} sequences cannot be divided into {ranks} equal parts, one for each copy",
            valid=[
                str(multiple)
                for multiple in nearest_multiples(size, micro * ranks if both else ranks)
            ],
            also=(*(("batch.micro_size",) if both else ()), "parallel.world_size"),
        )

    @rule
    def _check_axes(self) -> Iterator[Problem]:
        parallel = self.parallel
        rows = [path for name, path in GROWING.items() if getattr(self, name) is not None]
        for axis in CONTEXT if rows else ():
            if parallel.degrees[axis] > 1:
                yield Problem(
                    f"parallel.{axis}",
                    "ranks would divide sequences, but these grow token by token in generation",
                    valid=("1", "tensor, pipeline, expert, shard or replicate in its place"),
                    also=tuple(rows),
                )
        if parallel.sequence_parallel:
            yield Problem(
                "parallel.sequence_parallel",
                "is not supported in inference, whose rows may have any length",
                valid=("false",),
            )

    @dead(*OF_TRAINING)
    def _training_is_dead(self) -> str:
        return "it applies only to training"

    @dead("parallel.step_timeout", "batch.micro_size", "batch.global_size", "precision.compute")
    def _passes_are_dead(self) -> str | None:
        return None if self.runs_model else "no task runs the model"

    @dead("chat")
    def _chat_is_dead(self) -> str | None:
        if self.generation is None and self.harness is None:
            return "there are no prompts without a generation or a harness"
        return None

    @dead("generation.control_tokens")
    def _control_tokens_are_dead(self) -> str | None:
        if self.chat is None:
            return None
        return "the chat template writes the control tokens, and message content is text"

    @dead("harness.few_shot_turns")
    def _turns_are_dead(self) -> str | None:
        return "there are no turns without a chat template; see chat" if self.chat is None else None

    @dead("data")
    def _data_is_dead(self) -> str | None:
        return "no text is evaluated" if self.evaluation is None else None

    @dead("data.sources", "data.held_out", "data.validation")
    def _sources_are_dead(self) -> str | None:
        if self.evaluation is None or not self.evaluation.sides:
            return "no split of it is evaluated; see evaluation.sides"
        return None

    @dead("batch.sequence_length")
    def _sequence_length_is_dead(self) -> str | None:
        return "nothing is evaluated" if self.evaluation is None else None

    @dead("weights.dtype")
    def _dtype_is_dead(self) -> str | None:
        if self.runs_model or (self.export is not None and self.weights.dtype == self.export.dtype):
            return None
        return "an export converts to its own, export.dtype"
