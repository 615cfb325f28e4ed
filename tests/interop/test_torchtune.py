"""Files of torchtune mean what they mean there, by its own formulas."""

import math
from pathlib import Path
from typing import Any

import pytest

from setpoint.adapter.config import DoRA, QLoRA
from setpoint.config import compose
from setpoint.infer.config import Inference
from setpoint.interop.dialect import ConvertedDocument, read_foreign, recognize
from setpoint.interop.torchtune_models import FAMILIES, SIZES
from setpoint.model.config import TransformerConfig
from setpoint.model.parameters import count_parameters_of
from setpoint.optim.schedule import NoSchedule
from setpoint.train.config import Job

from .converting import assert_rates, job_of, kinds

BASE = """
output_dir: /tmp/out
model:
  _component_: torchtune.models.{model}
{parts}
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  path: ${{checkpointer.checkpoint_dir}}/tokenizer.model
  max_seq_len: {length}
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: /tmp/weights/
  checkpoint_files: [model.safetensors]
  output_dir: ${{output_dir}}
  model_type: LLAMA3
dataset:
  _component_: torchtune.datasets.{dataset}
  packed: False
batch_size: 2
gradient_accumulation_steps: 4
epochs: 2
max_steps_per_epoch: 40
optimizer:
  _component_: {optimizer}
  lr: 3e-4
{rest}
"""
COSINE = """
lr_scheduler:
  _component_: torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup
  num_warmup_steps: 10
"""
LORA = """
  lora_attn_modules: ['q_proj', 'v_proj']
  apply_lora_to_mlp: True
  apply_lora_to_output: True
  lora_rank: 16
  lora_alpha: 32
"""


def read(
    folder: Path,
    model: str = "llama3_1.llama3_1_8b",
    parts: str = "",
    rest: str = COSINE,
    length: object = 512,
    optimizer: str = "torch.optim.AdamW",
    dataset: str = "alpaca_dataset",
) -> ConvertedDocument:
    path = folder / "job.yaml"
    text = BASE.format(model=model, parts=parts, rest=rest, length=length, optimizer=optimizer,
                       dataset=dataset)  # fmt: skip
    path.write_text(text)
    return read_foreign("torchtune", str(path))


def converted(folder: Path, ranks: int = 4, **parts: Any) -> Job:
    return job_of(read(folder, **parts), ranks)


def test_rates_and_batch_are_those_of_its_formulas(tmp_path: Path) -> None:
    job, warmup, total = converted(tmp_path), 10, 80
    assert (job.batch.global_size, job.batch.micro_size) == (2 * 4 * 4, 2)
    assert str(job.duration) == "80 steps or 2 epochs"

    def factor(step: int) -> float:
        progress = (step - warmup) / (total - warmup)
        return step / warmup if step < warmup else 0.5 * (1 + math.cos(math.pi * progress))

    assert_rates(job, factor)
    assert job.optimizer.clip_norm is None
    assert (getattr(job.optimizer, "weight_decay", 0), job.optimizer.no_decay) == (0.01, ())
    assert (job.precision.params, job.batch.sequence_length) == ("bf16", 512)
    assert isinstance(converted(tmp_path, rest="").schedule, NoSchedule)


def count(job: Job) -> int:
    assert isinstance(job.model, TransformerConfig) and job.model.vocab_size is not None
    return count_parameters_of(job.model, job.model.vocab_size).parameters


def parameters(job: Job, biases: bool) -> int:
    """The sum over the linear layers, embeddings and norms of torchtune's builders."""
    model = job.model
    assert isinstance(model, TransformerConfig)
    head, dim = model.head_dim, model.dim
    queries, keys = model.heads * head, model.kv_heads * head
    layer = 2 * dim * (queries + keys) + biases * (queries + 2 * keys) + 3 * dim * model.ffn_dim
    layer += dim * (4 if model.norm_placement == "both" else 2) + 2 * head * model.qk_norm
    assert model.vocab_size is not None
    return model.layers * layer + dim + model.vocab_size * dim * (2 - model.tie_embeddings)


PARAMETERS = {
    "llama2_7b": 6_738_415_616, "llama2_13b": 13_015_864_320, "llama2_70b": 68_976_648_192,
    "code_llama2_7b": 6_738_546_688, "code_llama2_13b": 13_016_028_160,
    "code_llama2_70b": 68_976_910_336, "llama3_8b": 8_030_261_248, "llama3_70b": 70_553_706_496,
    "llama3_1_8b": 8_030_261_248, "llama3_1_70b": 70_553_706_496, "llama3_1_405b": 405_853_388_800,
    "llama3_2_1b": 1_235_814_400, "llama3_2_3b": 3_212_749_824, "llama3_3_70b": 70_553_706_496,
    "mistral_7b": 7_241_732_096, "phi3_mini": 3_821_079_552, "phi4_14b": 14_659_507_200,
    "qwen2_0_5b": 494_032_768, "qwen2_1_5b": 1_543_714_304, "qwen2_7b": 7_615_616_512,
    "qwen2_5_0_5b": 494_032_768, "qwen2_5_1_5b": 1_543_714_304, "qwen2_5_3b": 3_085_938_688,
    "qwen2_5_7b": 7_615_616_512, "qwen2_5_14b": 14_770_033_664, "qwen2_5_32b": 32_763_876_352,
    "qwen2_5_72b": 72_706_203_648, "gemma_2b": 2_506_172_416, "gemma_7b": 8_537_680_896,
    "gemma2_2b": 2_614_341_888, "gemma2_9b": 9_241_705_984, "gemma2_27b": 27_227_128_320,
    "qwen3_8b": 8_190_735_360,
}  # fmt: skip
"""Elements of the parameters that the builders of torchtune 0.6.1 make, and of Qwen 3."""


@pytest.mark.parametrize("size", SIZES)
def test_models_are_those_of_its_builders(tmp_path: Path, size: str) -> None:
    family = max((name for name in FAMILIES if size.startswith(name)), key=len)
    job = converted(tmp_path, model=f"{family}.{size}")
    expected = parameters(job, biases=size.startswith("qwen2"))
    assert PARAMETERS.get(size, expected) == expected
    assert count(job) == expected


def test_adapters_are_on_its_projections(tmp_path: Path) -> None:
    adapter = converted(tmp_path, model="llama3_1.qlora_llama3_1_8b", parts=LORA).adapter
    assert adapter is not None
    assert (type(adapter), adapter.rank, adapter.alpha, adapter.exclude) == (QLoRA, 16, 32.0, ())
    assert adapter.targets == (r"attention\.query$", r"attention\.value$",
                               r"feed_forward\.(gate|up|down)$", "^output$")  # fmt: skip
    dora = converted(
        tmp_path, model="llama3.lora_llama3_8b", parts=f"{LORA}  use_dora: True"
    ).adapter
    assert isinstance(dora, DoRA)
    own = "  vocab_size: 300\n  num_layers: 2\n  num_heads: 4\n  num_kv_heads: 2\n  embed_dim: 64\n"
    job = converted(tmp_path, model="qwen2.qwen2", parts=f"{own}  intermediate_dim: 96")
    assert count(job) == parameters(job, biases=True)


@pytest.mark.parametrize(("rest", "expected"), [
    ("clip_grad_norm: 0.5", "optimizer.clip_norm=0.5"),
    ("clip_grad_norm: inf", "optimizer.clip_norm=None"),
    ("compile: {model: true, loss: false}", "compile={}"),
    ("loss:\n  _component_: torchtune.modules.loss.LinearCrossEntropyLoss",
     "loss.type=chunked_cross_entropy"),
    ("ac_mode: selective\nac_option: 2", "memory.activation_checkpointing.every=2"),
    ("tensor_parallel_dim: 2\ndata_parallel_shard_dim: 2", "parallel.tensor=2"),
    ("metric_logger:\n  _component_: torchtune.training.metric_logging.WandBLogger\n  project: p",
     "tracking.trackers=[{'type': 'jsonl'}, {'type': 'wandb', 'project': 'p'}]"),
    ("save_every_n_steps: 7", "checkpoint.every=7 steps"),
    ("mine: ${half}2\nhalf: 4\nseed: ${mine}", "seed=42"),  # names of the user's own
    ("run_val_every_n_steps: 5\ndataset_val:\n  _component_: torchtune.datasets.wikitext_dataset",
     "evaluation.every=5 steps"),
])  # fmt: skip
def test_keys_have_fields(tmp_path: Path, rest: str, expected: str) -> None:
    document = read(tmp_path, rest=rest)
    value = document.data
    for name in expected.partition("=")[0].split("."):
        value = value[name]
    assert document.problems == [] and str(value) == expected.partition("=")[2]


VALIDATION = """
dataset_val:
  _component_: torchtune.datasets.alpaca_dataset
  split: train[95%:]
batch_size_val: 8
run_val_every_n_steps: """


def test_the_end_of_a_split_is_held_out(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    read(tmp_path)
    text = path.read_text().replace("  packed: False", "  packed: False\n  split: train[:95%]")
    for period, share in (("100", 0.05), ("null", 0)):
        path.write_text(text + VALIDATION + period + "\n")
        document = read_foreign("torchtune", str(path))
        assert document.problems == []
        assert document.data["data"]["held_out"] == pytest.approx(share)
        evaluation = document.data["evaluation"]
        assert evaluation is None or evaluation["every"] == "100 steps"
        reported = {report.key for report in document.reports}
        assert ("batch_size_val" in reported) == (share > 0)
        assert any("not 0.95" in report.text for report in document.reports) == (share == 0)
    path.write_text(text)  # alone, a part is read whole
    document = read_foreign("torchtune", str(path))
    assert len(document.data["data"]["sources"]) == 1
    assert any("not 0.95" in report.text for report in document.reports)
    path.write_text(text.replace("[:95%]", "[:20%]"))
    (source,) = read_foreign("torchtune", str(path)).data["data"]["sources"]
    assert source["filter"] == {"shards": 5}


@pytest.mark.parametrize("name", ["bitsandbytes.optim.PagedAdamW8bit", "torchao.optim.AdamW4bit"])
def test_moments_in_few_bits_are_in_fp32(tmp_path: Path, name: str) -> None:
    document = read(tmp_path, optimizer=name)
    assert document.data["optimizer"]["type"] == "anyprecision_adamw"
    assert document.data["precision"]["optimizer_state"] == "fp32"
    assert kinds(document)["optimizer._component_"] == "differs"


def test_what_it_does_not_mean_here_is_reported(tmp_path: Path) -> None:
    document = read(
        tmp_path, rest="optimizer_in_bwd: True", optimizer="bitsandbytes.optim.AdamW8bit"
    )
    assert kinds(document) == {
        "optimizer_in_bwd": "refused", "optimizer._component_": "differs", "dataset": "differs",
        "max_steps_per_epoch": "differs",
    }  # fmt: skip
    assert recognize(str(tmp_path / "job.yaml")) == "torchtune"
    for rest, path in (
        ("quantizer:\n  _component_: torchtune.training.quantization.Q", "quantizer"),
        ("seed: ${other}", "seed"), ("seed: ${seed}", "seed"), ("seed: ${oc.env:HOME}", "seed"),
        ("tasks: [a]", "tasks"), ("mine: 3", "mine"), ("batch_sizes: 3", "batch_sizes"),
    ):  # fmt: skip
        assert {problem.path for problem in read(tmp_path, rest=rest).problems} == {path}
    path = tmp_path / "quantize.yaml"
    path.write_text(RECIPE.format(model="llama3.llama3_8b").replace("null", "{_component_: a.B}"))
    (problem,) = read_foreign("torchtune", str(path)).problems
    assert problem.path == "quantizer"
    (problem,) = read(tmp_path, parts="  scale_factor: eight").problems
    assert problem.path == "model.scale_factor"
    for model in ("llama3_2_vision.llama3_2_vision_11b", "llama3.llama4_9b", "mine.model"):
        paths = [problem.path for problem in read(tmp_path, model=model).problems]
        assert paths == ["model._component_"]


RECIPE = """
output_dir: ./
model:
  _component_: torchtune.models.{model}
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: /tmp/weights/
  output_dir: ${{output_dir}}
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  path: /tmp/weights/tokenizer.model
device: cuda
dtype: bf16
seed: 1234
enable_kv_cache: True
quantizer: null
"""
TASKS = "tasks: [truthfulqa_mc2]\nlimit: 5\nmax_seq_length: 4096\nbatch_size: 4\n"
PROMPT = (
    "prompt: {system: null, user: {text: Hi}}\nmax_new_tokens: 9\ntemperature: 0.6\ntop_k: 300\n"
)


FORMER = "prompt: Hi\ninstruct_template: null\nmax_new_tokens: 9\ntemperature: 0.6\ntop_k: 300\n"


@pytest.mark.parametrize(("model", "rest"), [
    ("llama3.llama3_8b", TASKS), ("llama3.llama3_8b", PROMPT), ("llama2.llama2_7b", PROMPT),
    ("llama3.llama3_8b", FORMER),
])  # fmt: skip
def test_benchmarks_and_generation_are_inference_jobs(
    tmp_path: Path, model: str, rest: str
) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE.format(model=model) + rest)
    document = read_foreign("torchtune", str(path))
    assert document.problems == [] and recognize(str(path)) == "torchtune"
    flags = ["--parallel.world_size=2"]
    job = compose(Inference, None, files=[document], flags=flags).resolve()
    assert (job.weights.path, job.weights.dtype, job.precision.compute, job.seed) == (
        "/tmp/weights", "bf16", "bf16", 1234)  # fmt: skip
    if rest == TASKS:
        assert job.harness is not None and (job.harness.tasks, job.harness.limit) == (
            ("truthfulqa_mc2",), 5)  # fmt: skip
        assert job.batch.global_size == 2 * 4
        return
    assert job.generation is not None and job.generation.prompts == ("Hi",)
    sampling = job.generation.max_tokens, job.generation.temperature, job.generation.top_k
    assert sampling == (9, 0.6, 300)
    assert (job.chat is not None) == model.startswith("llama3")


CONVERSATIONS: list[tuple[str, dict[str, str] | None]] = [
    ("instruct_dataset\n  source: a/b\n  column_map: {input: question, output: answer}",
     {"prompt": "question", "completion": "answer"}),
    ("instruct_dataset\n  source: a/b", {"prompt": "input", "completion": "output"}),
    ("samsum_dataset", {"prompt": "dialogue", "completion": "summary"}),
    ("alpaca_dataset\n  column_map: {instruction: task, output: output}", {"instruction": "task"}),
    ("chat_dataset\n  source: a/b\n  conversation_column: dialogue\n  conversation_style: openai",
     {"messages": "dialogue"}),
    ("chat_dataset\n  source: a/b\n  conversation_column: conversations\n"
     "  conversation_style: sharegpt", None),
]  # fmt: skip


@pytest.mark.parametrize(("dataset", "columns"), CONVERSATIONS)
def test_columns_of_conversations(
    tmp_path: Path, dataset: str, columns: dict[str, str] | None
) -> None:
    document = read(tmp_path, dataset=dataset)
    (source,) = document.data["data"]["sources"]
    assert source["type"] == "conversations" and source.get("columns") == columns
    job_of(document)
    document = read(tmp_path, dataset=f"{dataset}\n  new_system_prompt: Be brief.")
    assert kinds(document)["dataset"] == "needs a decision"


def test_a_chat_of_an_unknown_style_needs_a_decision(tmp_path: Path) -> None:
    style = "chat_dataset\n  source: a/b\n  conversation_column: c\n  conversation_style: mine"
    assert kinds(read(tmp_path, dataset=style))["dataset"] == "needs a decision"
