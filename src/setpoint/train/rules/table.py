"""Every check that spans sections of a training job, each in a module that is imported for it.

The class of the job is declared with this table and stands above it, so a job is `Any` here.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any

from setpoint.config import Rule
from setpoint.data.sources.config import Conversations, SourceConfig, Tokens
from setpoint.data.tokenizers.config import BYTES_VOCABULARY, Bytes, TokenIds
from setpoint.loss.config import tokens_named
from setpoint.model.config import HuggingFaceModel, Transformer, names_attention_backend
from setpoint.model.norm.config import LayerNorm, RMSNorm
from setpoint.optim.config import AnyPrecisionAdamW, Plateau
from setpoint.train.evaluation.config import LONG_EVALUATION, LONG_EVALUATION_MEANS
from setpoint.train.rules.support import wants_gpu

HERE = "setpoint.train.rules."
if TYPE_CHECKING:
    from setpoint.model.attention.support import Dense

CAUTIONS = {
    "larger-than-any-machine": "weights, or activations of a micro-batch, fit no machine",
    "warmup-longer-than-run": "the warm-up is as long as the run, or longer",
    "warmup-longer-than-horizon": "the warm-up ends after the learning-rate curve does",
    "horizon-differs-from-run": "the learning-rate curve ends before the run does, or after it",
    "saved-only-at-the-end": "a long run saves no checkpoint before its end",
    "saved-after-the-end": "a step that a checkpoint is to be saved after lies beyond the run",
    "learning-rate-high": "the peak learning rate is far above what is usual",
    "positions-never-trained": "some learned positions lie beyond every training sequence",
    "patience-beyond-run": "the run is over before early stopping could end it",
    "plateau-beyond-run": "the run is over before a plateau could lower the learning rate",
    "best-is-the-worst": "what is kept as the best is the worst by its metric",
    "adapter-on-random-weights": "an adapter is trained on weights that nothing has trained",
    "added-tokens-frozen": "an adapter leaves the rows of added tokens as they begin",
    "mup-without-adam": "muP's learning rates are those for Adam, and the optimizer is another one",
    "schedule-free-with-decay": "the learning rate falls, in place of which the optimizer averages",
    "muon-learning-rate-low": "Muon has a learning rate as for AdamW, whose updates are larger",
    "muon-rate-for-adamw": "AdamW has the learning rate of Muon's matrices for all else",
    "fp32-without-tf32": "fp32 products on a GPU are several times as fast in TF32",
    "float8-without-compile": "float8 is slower than bf16 where nothing is compiled",
    "lion-learning-rate-high": "a learning rate for AdamW is Lion's, whose updates are larger",
    "conversations-cut": "rows cut conversations, and answers are trained without their questions",
    "conversations-not-isolated": "conversations that share a row attend to each other",
    "memory-exceeds-gpu": "a rank is planned to take more memory than a GPU has",
    "gpu-lacks-kernels": "--gpu names a GPU without the number format or attention of the job",
    "evaluated-but-not-saved": "most evaluated weights are not saved, so they cannot be the best",
}
UNUSED_ROWS_MEANS = "most rows of the embedding stand for no token of the tokenizer"
ROWS = {"vocabulary-mostly-unused": UNUSED_ROWS_MEANS}
NO_STOP = {"no-stop-token": "no token that ends an answer is trained"}
ROUNDED = {
    "base-rounded-again": "weights that files hold quantized are quantized in another format"
}
MEMORY = ("model", "batch", "optimizer", "precision", "memory", "parallel")
DENSE = {"dense-attention": "attention on a GPU holds a mask or scores of all pairs of positions"}
ATTENTION = ("model", "parallel", "precision", "deterministic")


def has_bytes(job: Any) -> bool:
    """Whether the tokenizer is known without files."""
    return isinstance(job.tokenizer, Bytes)


def is_listed(job: Any) -> bool:
    """Whether the parameters are known without building the model."""
    model = job.model
    return isinstance(model, Transformer) and isinstance(model.norm, RMSNorm | LayerNorm)


def has_rows(job: Any) -> bool:
    """Whether the embedding may have another number of rows than there are tokens."""
    model = job.model
    return isinstance(model, Transformer) and (model.vocab_size or model.vocab_multiple_of) != 1


def dense_on_gpu(job: Any) -> Dense | None:
    """The attention that holds tensors of all pairs of positions, if the device is a GPU."""
    model = job.model
    if not isinstance(model, Transformer):
        return None
    documents = bool(job.data.packing.isolate) and job.data.packing.method != "none"
    asks = model.sliding_window or model.attention_soft_cap or names_attention_backend(model)
    if not (documents or asks):
        return None
    from setpoint.model.attention.support import find_dense  # most jobs have no use for it

    length, ring = job.batch.sequence_length, job.parallel.degrees["ring"] > 1
    return find_dense(model, job.precision.compute, length, documents=documents, ring=ring)


def divides_model(job: Any) -> bool:
    """Whether ranks divide matrices, layers, sequences or experts of a model."""
    parallel = job.parallel
    return (
        parallel.divides_experts
        or parallel.context > 1
        or any(parallel.degrees[axis] > 1 for axis in ("tensor", "pipeline"))
    )


def is_cut(job: Any) -> bool:
    """Whether the layers are divided among the ranks of a pipeline."""
    return job.parallel.degrees["pipeline"] > 1


def has_source(kind: type[SourceConfig]) -> Callable[[Any], bool]:
    """A test of whether any data of a job is from a kind of source."""

    def has(job: Any) -> bool:
        sets = job.evaluation.datasets if job.evaluation is not None else ()
        sources = chain(job.data.sources, job.data.validation, *(each.sources for each in sets))
        return any(isinstance(source, kind) for source in sources)

    return has


def may_be_large(job: Any) -> bool:
    """Whether a transformer on a CPU comes near the memory of a machine, by a rough count."""
    model, batch = job.model, job.batch
    if not isinstance(model, Transformer) or job.parallel.world_size > 1:
        return False
    experts = 1 if model.moe is None else model.moe.experts
    width = model.layers * (4 * model.dim + 3 * (model.ffn_dim or 0) * experts)
    words = model.vocab_size or BYTES_VOCABULARY
    tokens = batch.micro_size * batch.sequence_length
    return model.dim * (width + words) + tokens * (6 * width + words) > 10**8


MEMORY_WITHOUT_GPU = "Whether the memory of this machine holds the job, where there is no GPU"
BUILT = (
    "Whether the optimizer's patterns match parameters of the model",
    "Whether the adapter's patterns and ranks fit the modules of the model",
)
"""Checks that build a model, and so import what it names."""

RULES = (
    Rule(f"{HERE}evaluation:long_evaluation", ("evaluation", "data", "batch"),
         "Whether an evaluation takes longer than the training between two",
         needs="files", cautions={LONG_EVALUATION: LONG_EVALUATION_MEANS},
         when=lambda job: job.evaluation is not None and job.evaluation.may_be_long(job.batch)),
    Rule(f"{HERE}cautions:find_cautions", (), "Whether values are legal and seldom meant",
         cautions=CAUTIONS),
    Rule(f"{HERE}support:conflicts", (), "Whether settings go together: the table of conflicts"),
    Rule(f"{HERE}support:conflicts_without_gpu", (),
         "Whether there is the GPU that some settings need", needs="torch", when=wants_gpu),
    Rule(f"{HERE}batch:sum_problems", ("batch", "parallel"),
         "Whether the three sizes of the batch agree",
         when=lambda job: not job.batch.adds_up(job.parallel.data_ranks)),
    Rule(f"{HERE}context:context_problems", ("batch", "model", "parallel"),
         "Whether the ranks of a sequence get as many of its tokens, and as many heads",
         when=lambda job: job.parallel.context > 1),
    Rule(f"{HERE}family:family_problems", ("model", "parallel", "adapter", "tokenizer"),
         "Whether transformers makes the model, and ranks can divide it",
         needs="import", when=lambda job: isinstance(job.model, HuggingFaceModel)),
    Rule(f"{HERE}batch:load_problems", ("model", "batch"),
         "Whether micro-batches fall into the parts that experts are balanced over",
         when=lambda job: isinstance(job.model, Transformer) and job.model.moe is not None),
    Rule(f"{HERE}experts:expert_problems", ("model", "parallel"),
         "Whether the experts can be divided among the ranks",
         when=lambda job: job.parallel.divides_experts and isinstance(job.model, Transformer)
         and job.model.moe is not None),
    Rule(f"{HERE}pipelining:stage_problems", ("parallel", "model"),
         "Whether the model has the parts that the stages of a pipeline hold",
         when=lambda job: is_cut(job) and isinstance(job.model, Transformer)),
    Rule(f"{HERE}pipelining:batch_problems", ("parallel", "batch"),
         "Whether the schedule of a pipeline runs so many micro-batches", when=is_cut),
    Rule(f"{HERE}data:phase_problems", ("data", "batch", "duration"),
         "Whether the phases of a mixture follow one another within the run",
         when=lambda job: bool(job.data.all_phases)),
    Rule(f"{HERE}data:held_out_problems", ("data",),
         "Whether documents are left to train on", needs="files",
         when=lambda job: job.data.held_out >= 1 and not job.data.validation),
    Rule(f"{HERE}data:stream_problems", (),
         "Whether anything needs the length of an epoch of streamed data",
         when=lambda job: bool(job.data.streams)),
    Rule(f"{HERE}data:baselines_are_dead", ("data",),
         "Whether n-gram baselines can count the training data",
         dead=("evaluation.baselines",), when=lambda job: bool(job.data.streams)),
    Rule(f"{HERE}loss:unknown_tokens", ("loss", "tokenizer"),
         "Whether the tokenizer has the tokens that the loss names",
         when=lambda job: has_bytes(job) and any(tokens_named(job.loss))),
    Rule(f"{HERE}loss:unknown_tokens", ("loss", "tokenizer"),
         "Whether the files of the tokenizer have the tokens that the loss names",
         needs="files", when=lambda job: not has_bytes(job)),
    Rule(f"{HERE}loss:baselines_are_dead", ("loss",),
         "Whether n-gram baselines count the tokens that the loss counts",
         dead=("evaluation.baselines",), when=lambda job: bool(job.loss.left_out)),
    Rule(f"{HERE}vocabulary:vocabulary_problems", ("model", "tokenizer"),
         "Whether the model's vocabulary holds the tokenizer's",
         cautions=ROWS, when=lambda job: has_bytes(job) and has_rows(job)),
    Rule(f"{HERE}vocabulary:vocabulary_problems", ("model", "tokenizer"),
         "Whether the model's vocabulary holds that of the tokenizer's files",
         needs="files", cautions=ROWS, when=lambda job: not has_bytes(job)),
    Rule(f"{HERE}vocabulary:row_problems", ("model", "tokenizer"),
         "Whether the model has as many rows as the weights that it starts from, and a model of "
         "transformers those of the tokenizer",
         needs="files", when=lambda job: isinstance(job.model, HuggingFaceModel)
         or (isinstance(job.model, Transformer) and job.model.pretrained is not None)),
    Rule(f"{HERE}vocabulary:template_problems", ("data", "evaluation", "tokenizer"),
         "Whether chat templates are there, and write tokens that the tokenizer has",
         needs="files", cautions=NO_STOP, when=has_source(Conversations)),
    Rule(f"{HERE}export:export_problems", ("checkpoint", "model"),
         "Whether transformers has a word for the model that is to be exported",
         when=lambda job: job.checkpoint.export is not None),
    Rule(f"{HERE}vocabulary:text_problems", ("data", "evaluation", "tokenizer"),
         "Whether the data is token ids where there is no tokenizer",
         when=lambda job: isinstance(job.tokenizer, TokenIds)),
    Rule(f"{HERE}vocabulary:token_problems", ("data", "evaluation", "tokenizer"),
         "Whether prepared data and its separator are of the tokenizer",
         needs="files", when=has_source(Tokens)),
    Rule(f"{HERE}precision:idle_reduction", ("precision", "batch", "parallel"),
         "Whether gradients are added up",
         dead=("precision.reduce",), when=lambda job: job.precision.reduce is not None),
    Rule(f"{HERE}precision:idle_gather", ("precision", "parallel"),
         "Whether fp32 weights are gathered",
         dead=("precision.gather",), when=lambda job: job.precision.gather is not None),
    Rule(f"{HERE}precision:idle_accumulation", ("parallel", "batch"),
         "Whether gradients of sharded weights add up over micro-batches",
         dead=("parallel.sharding.accumulation",),
         when=lambda job: job.parallel.accumulates_whole
         and job.parallel.sharding.accumulation != "sharded"),
    Rule(f"{HERE}precision:idle_float8_gather", ("precision", "parallel"),
         "Whether weights are gathered, in float8 or otherwise",
         dead=("precision.float8.gather",),
         when=lambda job: job.precision.float8 is not None
         and job.precision.float8.gather is not None),
    Rule(f"{HERE}precision:idle_rounding", ("precision",),
         "Whether the optimizer updates anything in bf16, which it would round",
         dead=("optimizer.rounding",),
         when=lambda job: isinstance(job.optimizer, AnyPrecisionAdamW)),
    Rule(f"{HERE}precision:float8_problems", ("precision", "model"),
         "Whether the model's linear layers can be computed in float8",
         when=lambda job: job.precision.float8 is not None),
    Rule(f"{HERE}precision:float8_device_problems", ("precision", "parallel"),
         "Whether the device computes in float8",
         needs="torch", when=lambda job: job.precision.float8 is not None),
    Rule(f"{HERE}optimizer:listed_pattern_problems", ("optimizer", "model", "adapter"),
         "Whether the optimizer's patterns match parameters of a transformer",
         when=lambda job: job.optimizer.has_patterns),
    Rule(f"{HERE}optimizer:built_pattern_problems", ("optimizer", "model", "tokenizer", "adapter"),
         BUILT[0],
         needs="torch", when=lambda job: job.optimizer.has_patterns and not is_listed(job)),
    Rule(f"{HERE}adapter:listed_adapter_problems", ("adapter", "model", "tokenizer"),
         "Whether the adapter's patterns and ranks fit the modules of a transformer",
         when=lambda job: job.adapter is not None),
    Rule(f"{HERE}adapter:built_adapter_problems", ("adapter", "model", "tokenizer"),
         BUILT[1],
         needs="torch", when=lambda job: job.adapter is not None and not is_listed(job)),
    Rule(f"{HERE}adapter:base_problems", ("adapter", "model"),
         "Whether a quantized base keeps the numbers of the files that it comes from",
         needs="files", cautions=ROUNDED, when=lambda job: job.adapter is not None
         and job.adapter.quantize is not None and job.model.pretrained is not None),
    Rule(f"{HERE}sharding:unit_problems", ("parallel", "model"),
         "Whether the patterns of FSDP2 units match modules of a transformer",
         when=lambda job: bool(job.parallel.sharding.units)),
    Rule(f"{HERE}sharding:replicated_problems", ("parallel", "model", "adapter"),
         "Whether the patterns of parameters that are not sharded match some of a transformer",
         when=lambda job: bool(job.parallel.sharding.replicated)),
    Rule(f"{HERE}frozen:frozen_problems", ("checkpoint", "optimizer", "adapter", "model"),
         "Whether frozen parameters can be left out of checkpoints",
         when=lambda job: not job.checkpoint.frozen),
    Rule(f"{HERE}evaluation:plateau_problems", ("schedule", "evaluation"),
         "Whether the metric that the schedule follows is computed",
         when=lambda job: isinstance(job.schedule, Plateau)),
    Rule(f"{HERE}evaluation:best_problems", ("evaluation", "checkpoint"),
         "Whether the metric of the best selects anything",
         when=lambda job: not job.checkpoint.keep_best),
    Rule(f"{HERE}profiling:profiling_problems", ("profiling", "parallel", "duration", "batch"),
         "Whether the run has the steps and the ranks that are profiled",
         when=lambda job: job.profiling is not None),
    Rule(f"{HERE}resilience:rollback_problems", ("resilience", "checkpoint"),
         "Whether there are checkpoints to roll back to",
         when=lambda job: bool(job.resilience.rollbacks)),
    Rule(f"{HERE}remote:url_problems", ("checkpoint",),
         "Whether checkpoints are uploaded to a URL",
         when=lambda job: job.checkpoint.remote is not None),
    Rule(f"{HERE}remote:protocol_problems", ("checkpoint",),
         "Whether what opens the URL of uploads is installed",
         needs="import", when=lambda job: job.checkpoint.remote is not None),
    Rule(f"{HERE}determinism:workspace_problems", ("deterministic", "parallel"),
         "Whether the environment lets matrix products on a GPU be deterministic",
         when=lambda job: job.deterministic and job.parallel.device == "cuda"),
    Rule(f"{HERE}determinism:workspace_problems", ("deterministic", "parallel"),
         "Whether matrix products on the GPU can be deterministic",
         needs="torch", when=lambda job: job.deterministic and job.parallel.device == "auto"),
    Rule("setpoint.plan.this_machine:memory_problems", MEMORY,
         "Whether the memory of this machine holds a job on the CPU",
         needs="files", when=lambda job: job.parallel.device == "cpu" and may_be_large(job)),
    Rule("setpoint.plan.this_machine:memory_problems", MEMORY,
         MEMORY_WITHOUT_GPU,
         needs="torch", when=lambda job: job.parallel.device == "auto" and may_be_large(job)),
    Rule(f"{HERE}compile:compiler_problems", ("compile", "parallel"),
         "Whether what torch.compile needs is installed",
         needs="torch", when=lambda job: job.compile is not None),
    Rule(f"{HERE}compile:optimize_ddp_is_dead", ("compile", "parallel"),
         "Whether replicas sum gradients in buckets, at which graphs end",
         dead=("compile.optimize_ddp",), when=lambda job: job.compile is not None),
    Rule(f"{HERE}parallel:tensor_problems", ("parallel", "model", "tokenizer", "batch", "data"),
         "Whether ranks can divide the matrices and sequences of the model",
         when=lambda job: isinstance(job.model, Transformer)
         and job.parallel.degrees["tensor"] > 1 and has_bytes(job)),
    Rule(f"{HERE}parallel:tensor_problems", ("parallel", "model", "tokenizer", "batch", "data"),
         "Whether ranks can divide the matrices and sequences of the model, where the tokenizer is "
         "in files",
         needs="files", when=lambda job: isinstance(job.model, Transformer)
         and job.parallel.degrees["tensor"] > 1 and not has_bytes(job)),
    Rule(f"{HERE}parallel:torchft_problems",
         ("parallel", "batch", "seed", "model", "resilience"),
         "Whether replica groups can train the job",
         when=lambda job: job.parallel.torchft is not None),
    Rule(f"{HERE}attention:backend_problems", ATTENTION,
         "Whether the attention backend goes with the device and the dtype",
         when=lambda job: names_attention_backend(job.model)),
    Rule(f"{HERE}attention:mask_cautions", ("model", "parallel", "precision", "batch", "data"),
         "Whether attention holds masks of all pairs of positions on a GPU", cautions=DENSE,
         when=lambda job: job.parallel.device == "cuda" and dense_on_gpu(job) is not None),
    Rule(f"{HERE}attention:mask_cautions", ("model", "parallel", "precision", "batch", "data"),
         "Whether the device is a GPU, on which attention holds masks of all pairs of positions",
         needs="torch", cautions=DENSE,
         when=lambda job: job.parallel.device == "auto" and dense_on_gpu(job) is not None),
    Rule(f"{HERE}attention:device_problems", ATTENTION,
         "Whether the attention backend runs on the device",
         needs="torch", when=lambda job: names_attention_backend(job.model)),
)  # fmt: skip
