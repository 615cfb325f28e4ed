"""Files of Axolotl mean what they mean there, by its own formulas."""

import math
import re
from pathlib import Path
from typing import Any

import pytest

from setpoint.interop.dialect import ConvertedDocument, read_foreign, recognize
from setpoint.interop.transformers_trainer import LINEAR, NOT_PACKED
from setpoint.train.config import Job

from ..support.snapshots import compare_problems
from .converting import assert_rates, job_of, kinds

BASE = """\
base_model: NousResearch/Llama-3.2-1B
model_type: LlamaForCausalLM
load_in_4bit:
strict: false
datasets:
  - path: tatsu-lab/alpaca
    type: alpaca
val_set_size: 0.1
output_dir: ./outputs
sequence_len: 2_048
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
learning_rate: 2e-4
bf16: auto
special_tokens:
  pad_token: "<|end|>"
"""


def read(folder: Path, text: str = "", base: str = BASE) -> ConvertedDocument:
    """Convert the file above with more lines."""
    path = folder / "job.yml"
    path.write_text(base + text)
    return read_foreign("axolotl", str(path))


def converted(folder: Path, text: str = "", base: str = BASE, ranks: int = 1) -> Job:
    return job_of(read(folder, text, base), ranks)


def factor(step: int, total: int, warmup: int, least: float, end: float) -> float:
    """Axolotl's cosine with a minimum, from a share of the run on constant, at a step from 0."""
    if step < warmup:
        return step / warmup
    progress = min(1.0, (step - warmup) / (total * end - warmup))
    return (1 - least) * (1 + math.cos(math.pi * progress)) / 2 + least


@pytest.mark.parametrize(("text", "warmup", "least", "end"), [
    ("max_steps: 60\n", 2, 0.0, 1.0),  # 3 % of all steps are 1, which becomes 2
    ("max_steps: 200\n", 6, 0.0, 1.0),
    ("max_steps: 60\nwarmup_steps: 5\ncosine_min_lr_ratio: 0.1\n", 5, 0.1, 1.0),
    ("max_steps: 60\nwarmup_ratio: 0.1\ncosine_min_lr_ratio: 0.2\ncosine_constant_lr_ratio: 0.5\n",
     6, 0.2, 0.5),
    ("max_steps: 200\nwarmup_steps: 0\n", 0, 0.0, 1.0),
    ("max_steps: 200\nwarmup_ratio: 0\n", 0, 0.0, 1.0),
    ("max_steps: 50\nwarmup_steps: 0.1\n", 5, 0.0, 1.0),
])  # fmt: skip
def test_rates_are_those_of_its_formula(
    tmp_path: Path, text: str, warmup: int, least: float, end: float
) -> None:
    job = converted(tmp_path, text)
    total = int(text.split()[1])
    assert_rates(job, lambda step: factor(step, total, warmup, least, end), 1e-9)


def test_a_share_of_epochs_is_not_rounded(tmp_path: Path) -> None:
    for text in ("warmup_ratio: 0.1\n", "warmup_steps: 0.1\n"):
        document = read(tmp_path, text)
        assert document.data["schedule"]["warmup"] == "10 %"
        assert kinds(document)[text.partition(":")[0]] == "differs"
    assert "warmup_ratio" not in kinds(read(tmp_path, "warmup_ratio: 0\n"))


def test_batch_data_and_precision(tmp_path: Path) -> None:
    job = converted(tmp_path, "evals_per_epoch: 4\nsaves_per_epoch: 2\n", ranks=4)
    assert (job.batch.global_size, job.batch.sequence_length) == (2 * 4 * 4, 2048)
    assert (job.precision.params, job.precision.compute) == ("bf16", "bf16")
    assert (job.data.held_out, job.data.packing.method) == (0.1, "first_fit_decreasing")
    assert job.evaluation is not None and str(job.evaluation.every) == "0.25 epochs"
    assert (str(job.checkpoint.every), job.checkpoint.keep) == ("0.5 epochs", 4)
    source = "hf://datasets/tatsu-lab/alpaca@~parquet/default/train/*.parquet"
    assert list(getattr(job.data.sources[0], "paths", ())) == [source]
    assert recognize(str(tmp_path / "job.yml")) == "axolotl"
    assert read(tmp_path, "evals_per_epoch: 4\nsequnce_len: 3\n").problems
    assert recognize(str(tmp_path / "job.yml")) == "axolotl"  # one key of many is misspelt


def test_adapters(tmp_path: Path) -> None:
    lines = "lora_r: 8\nlora_alpha: 16\nlora_dropout: 0.05\nlora_target_modules: [q_proj, v_proj]\n"
    base = BASE.replace("load_in_4bit:\n", "load_in_4bit: true\n")
    job = converted(tmp_path, f"adapter: qlora\n{lines}fsdp: [full_shard, auto_wrap]\n", base)
    adapter: Any = job.adapter
    assert (adapter.rank, adapter.alpha, adapter.dropout) == (8, 16.0, 0.05)
    assert type(adapter.quantize).__name__ == "NF4" and job.parallel.shard == -1
    precision = job.precision  # frozen weights in bf16, and masters of those of the adapter
    assert (precision.params, precision.master, precision.reduce) == ("bf16", "fp32", "bf16")
    text = f"adapter: lora\n{lines}peft_use_dora: true\nload_in_8bit: true\nloraplus_lr_ratio: 16\n"
    text = text.replace("v_proj]", "v_proj, lm_head]")
    text += "lora_rank_pattern: {q_proj: 4}\nlora_alpha_pattern: {q_proj: 2, v_proj: 3}\n"
    job = converted(tmp_path, text)
    adapter, (group,) = job.adapter, job.optimizer.groups
    assert [(r.pattern, r.rank, r.alpha) for r in adapter.ranks] == [
        (r"(^|\.)(q_proj)$", 4, 2.0), (r"(^|\.)(v_proj)$", None, 3.0)]  # fmt: skip
    assert (job.precision.params, job.precision.reduce) == ("bf16", "fp32")
    assert adapter.exclude == () and adapter.targets[-1] == r"(^|\.)(q_proj|v_proj|lm_head)$"
    assert (group.pattern, group.lr_multiplier) == (r"\.b$", 16.0)
    assert type(adapter).__name__ == "DoRA" and type(adapter.quantize).__name__ == "Int8"


ADAPTED: list[tuple[str, list[str]]] = [
    ("lora_target_modules: [self_attn.q_proj, down_proj]\npeft_layers_to_transform: [0, 1]",
     [rf"layers\.(0|1)\.{NOT_PACKED}(.*\.)?(self_attn.q_proj|down_proj)$"]),
    ("lora_target_modules: [q_proj, down_proj]", [rf"^{NOT_PACKED}(.*\.)?(q_proj|down_proj)$"]),
    ("lora_target_linear: true\npeft_layers_to_transform: [0]", [rf"layers\.(0)\.{NOT_PACKED}"]),
    ("lora_target_linear: true\nlora_target_modules: [q_proj, project_in, wte, lm_head]",
     [LINEAR, r"(^|\.)(wte|lm_head)$"]),
    ("lora_target_linear: true\nlora_target_parameters: [mlp.experts.down_proj]",
     [LINEAR, r"(^|\.)(mlp.experts.down_proj)$"]),
    ("lora_target_modules: all-linear\nlora_target_parameters: [x]", [LINEAR, r"(^|\.)(x)$"]),
    ("lora_target_parameters: [mlp.experts.down_proj]", [r"(^|\.)(mlp.experts.down_proj)$"]),
    ("lora_target_modules: 'layers.[\\d]+.(mlp|self_attn).(up|q)_proj'",
     [r"(^|\.)(layers.[\d]+.(mlp|self_attn).(up|q)_proj)$"]),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "targets"), ADAPTED)
def test_adapted_modules_layers_and_parameters(
    tmp_path: Path, keys: str, targets: list[str]
) -> None:
    document = read(tmp_path, f"adapter: lora\n{keys}\n")
    assert document.problems == [] and document.data["adapter"]["targets"] == targets
    assert document.data["adapter"].get("exclude") == ([] if "lm_head" in keys else None)


@pytest.mark.parametrize(
    ("name", "is_adapted"),
    [
        ("model.layers.0.self_attn.q_proj", True),
        ("transformer.h.11.attn.c_attn", True),
        ("model.layers.0.mlp.experts.3.up_proj", True),
        ("model.layers.0.mlp.experts.gate_up_proj", False),
        ("model.decoder.project_in", True),
        ("model.per_layer_model_projection", True),
        ("model.altup_unembed_projections.0", True),
        ("model.embed_tokens", False),
        ("model.embed_tokens_per_layer", False),
        ("transformer.word_embeddings", False),
        ("lm_head", False),
    ],
)
def test_peft_has_no_adapters_for_packed_experts(name: str, is_adapted: bool) -> None:
    assert bool(re.search(LINEAR, name)) == is_adapted


def test_a_revision_is_that_of_the_model_and_its_tokenizer(tmp_path: Path) -> None:
    data = read(tmp_path, "revision_of_model: v1\n").data
    assert data["model"]["pretrained"] == "NousResearch/Llama-3.2-1B@v1"
    assert data["tokenizer"]["path"] == "NousResearch/Llama-3.2-1B@v1"
    scaling = {"type": "linear", "factor": 2.0}  # a key of the first releases
    data = read(tmp_path, "rope_scaling: {type: linear, factor: 2.0}\n").data
    assert data["model"]["overrides"] == {"rope_scaling": scaling}


def test_precision_of_shards_and_both_kinds_of_muon(tmp_path: Path) -> None:
    job = converted(tmp_path, "optimizer: muon\n")
    optimizer: Any = job.optimizer
    assert (optimizer.adamw_lr, optimizer.adjust_lr) == (2e-4, "match_rms_adamw")
    assert (optimizer.nesterov, optimizer.betas, job.precision.params) == (
        True,
        (0.95, 0.95),
        "bf16",
    )
    job = converted(tmp_path, "optimizer: muon\nfsdp_version: 2\nfsdp_config: {version: 2}\n")
    optimizer = job.optimizer
    assert (optimizer.adjust_lr, optimizer.nesterov, optimizer.betas) == (
        "original", False, (0.9, 0.95))  # fmt: skip
    assert (job.precision.params, job.precision.reduce) == ("fp32", "bf16")


def test_deepspeed_and_a_divided_sequence(tmp_path: Path) -> None:
    job = converted(tmp_path, "deepspeed: deepspeed_configs/zero2.json\n", ranks=2)
    assert getattr(job.parallel.engine, "stage", None) == 2
    text = "expert_parallel_size: 2\ndp_shard_size: 2\nfsdp_version: 2\nfsdp_config: {version: 2}\n"
    data = read(tmp_path, f"{text}plugins: [axolotl.a.ExpertParallelPlugin]\n")  # on 4 ranks
    assert (data.data["parallel"]["shard"], data.data["parallel"]["expert"]) == (4, 2)
    assert "plugins" not in {report.key for report in data.reports}
    text = "deepspeed: deepspeed_configs/zero3_bf16_cpuoffload_all.json\ncontext_parallel_size: 2\n"
    job = converted(tmp_path, text, ranks=4)
    assert (job.parallel.ring, job.parallel.shard, job.parallel.sharding.offload) == (2, -1, True)
    assert "deepspeed" in {report.key for report in read(tmp_path, text).reports}


def test_what_is_reported(tmp_path: Path) -> None:
    compare_problems(
        read(tmp_path, "rl: dpo\nqat: {weight_dtype: int4}\nmicro_bach_size: 2\n").problems
    )
    compare_problems(read(tmp_path, "provider: modal\n", "gpu_count: 1\n").problems)
    lines = ("optimizer: adamw_bnb_8bit", "hub_model_id: me/it", "liger_rope: true")
    text = "\n".join([*lines, "lr_scheduler: one_cycle\n"])
    reported = kinds(read(tmp_path, text))
    assert reported["optimizer"] == "differs" and reported["hub_model_id"] == "refused"
    assert reported["liger_rope"] == "without effect"
    assert reported["lr_scheduler"] == "needs a decision"
    types = "  - {path: a, type: completion, field: body}\n  - {path: b, type: gpteacher}\n"
    base = BASE.replace("  - path: tatsu-lab/alpaca\n    type: alpaca\n", types)
    document = read(tmp_path, base=base)
    first, second = document.data["data"]["sources"]
    assert (first["type"], first["field"], second["name"]) == ("huggingface", "body", "source-1")
    assert "needs a decision" in {r.kind for r in document.reports if r.key == "datasets"}


MARKED = ("differs: messages with 0 or false in train, training or weight",)


@pytest.mark.parametrize(("entry", "source", "reported"), [
    ("{path: a/b, type: sharegpt, conversation: chatml}", {"template": "chatml"}, MARKED),
    ("{path: a/b, type: alpaca}", {"template": "alpaca"}, ()),
    ("{path: a/b, type: chat_template, chat_template: [x]}", {"type": "conversations"}, MARKED),
    ("{path: a/b, type: 'alpaca:chat'}", {}, ("needs a decision: type alpaca:chat:",)),
    ("{path: rows/b.jsonl, type: chat_template}", {"paths": ["./rows/b.jsonl"]}, MARKED),
    ("{path: a/b, type: chat_template, chat_template: tokenizer_default_fallback_chatml}", {},
     MARKED),
    ("{path: rows/b.jsonl, type: completion}", {"type": "text", "paths": ["./rows/b.jsonl"]}, ()),
    ("{path: a/b, type: chat_template, roles_to_train: [gpt], train_on_eos: turn, "
     "roles: {user: [human], assistant: [gpt, model]}}", {}, MARKED),
    ("{path: a/b, type: chat_template, roles_to_train: [user], train_on_eos: last, "
     "roles: {user: [patient]}}", {},
     ("needs a decision: roles:", *MARKED, "differs: roles_to_train, train_on_eos:")),
    ("{path: a/b, type: chat_template, roles_to_train: []}", {},
     (*MARKED, "differs: roles_to_train:")),
    ("{path: a/b, type: chat_template, message_field_role: who, message_field_content: value}",
     {"columns": {"role": "who", "content": "value"}}, MARKED),
    ("{path: rows/b.jsonl, type: input_output}", {"type": "conversations"}, ()),
    ("{path: json, data_files: '*.jsonl', type: alpaca}", {"paths": ["./*.jsonl"]}, ()),
    ("{path: ./rows, data_files: [a.jsonl, b.jsonl], type: alpaca}",
     {"paths": ["./a.jsonl", "./b.jsonl"]}, ()),
    ("{path: rows/b.jsonl, data_files: a.jsonl, type: alpaca}", {"paths": ["./rows/b.jsonl"]},
     ("without effect: in Axolotl, too: data_files",)),
    ("{path: a/b, type: chat_template, field_messages: talk, message_field_training: train}",
     {"columns": {"conversations": "talk"}}, ()),
    ("{path: a/b, type: chat_template, drop_system_message: true}", {},
     (*MARKED, "not converted: no field corresponds to drop_system_message",)),
])  # fmt: skip
def test_data_sets(
    tmp_path: Path, entry: str, source: dict[str, object], reported: tuple[str, ...]
) -> None:
    base = BASE.replace("  - path: tatsu-lab/alpaca\n    type: alpaca\n", f"  - {entry}\n")
    document = read(tmp_path, base=base)
    assert source.items() <= document.data["data"]["sources"][0].items()
    texts = [f"{r.kind}: {r.text}" for r in document.reports if r.key == "datasets"]
    assert len(texts) == len(reported)
    assert all(text.startswith(start) for text, start in zip(texts, reported, strict=True))


def test_words_of_yaml_1_1_are_switches_and_other_words_are_refused(tmp_path: Path) -> None:
    base = BASE.replace("sample_packing: true\n", "")
    off = converted(tmp_path, "sample_packing: no\ngradient_checkpointing: off\n", base)
    assert (off.data.packing.method, off.memory.activation_checkpointing) == ("none", None)
    on = converted(tmp_path, "sample_packing: Yes\n", base)
    assert on.data.packing.method != "none"
    compare_problems(read(tmp_path, "gradient_checkpointing: tru\n").problems)


def test_padding_tokens_and_offload_to_a_disk_are_reported(tmp_path: Path) -> None:
    reported = kinds(read(tmp_path, "gradient_checkpointing: offload_disk\n"))
    assert reported["special_tokens"] == "without effect"  # of `pad_token` in the base
    assert reported["gradient_checkpointing"] == "not converted"


@pytest.mark.parametrize(("text", "backend"), [
    ("attn_implementation: xformers", "sdpa"), ("xformers_attention: true", "sdpa"),
    ("attn_implementation: kernels-community/vllm-flash-attn3", "setpoint"),
    ("attn_implementation: flash_attention_2", "setpoint"), ("eager_attention: true", "eager"),
    ("flex_attention: true\nsdp_attention: true", "flex_attention"),
])  # fmt: skip
def test_kernels_of_attention(tmp_path: Path, text: str, backend: str) -> None:
    assert getattr(converted(tmp_path, text).model, "attention_backend", None) == backend


def test_activations_are_offloaded_between_compiled_layers(tmp_path: Path) -> None:
    text = "torch_compile: true\ngradient_checkpointing: true\nactivation_offloading: true"
    compiled = converted(tmp_path, text).compile
    assert compiled is not None and compiled.scope == "block"


def test_a_former_name_that_is_null_leaves_the_name_of_today(tmp_path: Path) -> None:
    job = converted(tmp_path, "max_packed_sequence_len:")
    assert job.batch.sequence_length == 2048
    base = BASE.replace("sequence_len: 2_048", "max_packed_sequence_len: 96")
    assert converted(tmp_path, base=base).batch.sequence_length == 96


def test_evaluations_of_an_epoch_begin_before_training(tmp_path: Path) -> None:
    evaluation = converted(tmp_path, "evals_per_epoch: 4\n").evaluation
    assert evaluation is not None and evaluation.before_training
    assert str(evaluation.every) == "0.25 epochs"


def test_a_part_of_a_split_and_a_shortest_text_are_reported(tmp_path: Path) -> None:
    entry = "  - path: a/b\n    split: train[:10%]\n    type: alpaca\n"
    base = BASE.replace("  - path: tatsu-lab/alpaca\n    type: alpaca\n", entry)
    document = read(tmp_path, base=base)
    (source,) = document.data["data"]["sources"]
    assert source["paths"] == ["hf://datasets/a/b@~parquet/default/train/*.parquet"]
    assert source["filter"] == {"shards": 10, "longest": 2048}
    for strategy, kind in (("drop", "drop"), ("truncate", "truncate"), ("raise", "error")):
        job = converted(tmp_path, f"excess_length_strategy: {strategy}\n")
        (limits,) = (source.filter for source in job.data.sources)
        assert limits is not None and (limits.longest, limits.too_long) == (2048, kind)
    assert any("10 % of the rows" in report.text for report in document.reports)
    document = read(tmp_path, base=base.replace("[:10%]", "[:95%]"))
    assert any("not 0.95 of them" in report.text for report in document.reports)
    base = base.replace("type: alpaca", "type: completion")
    document = read(tmp_path, "min_sample_len: 9\n", base)
    assert kinds(document)["min_sample_len"] == "differs"


@pytest.mark.parametrize(("dtype", "kind", "quantized"), [
    ("int4", "qlora", "nf4"), ("nf4", "qlora", "nf4"), ("int8", "lora", "int8"),
])  # fmt: skip
def test_weights_under_an_adapter_are_quantized(
    tmp_path: Path, dtype: str, kind: str, quantized: str
) -> None:
    text = f"adapter: lora\npeft: {{backend: torchao, weight_dtype: {dtype}}}\n"
    adapter = read(tmp_path, text).data["adapter"]
    assert (adapter["type"], adapter["quantize"]["type"]) == (kind, quantized)
    assert "exclude" not in adapter["quantize"]  # which would match nothing, and be refused


def test_packed_experts_stay_dense_in_a_quantized_base(tmp_path: Path) -> None:
    """As in bitsandbytes and torchao, which quantize linear layers alone."""
    text = "adapter: qlora\nload_in_4bit: true\n"
    (tmp_path / "config.json").write_text('{"num_local_experts": 4}')
    for name in ("Qwen/Qwen3-30B-A3B", tmp_path):
        lines = BASE.replace("load_in_4bit:\n", "").splitlines()
        base = "\n".join([f"base_model: {name}", *lines[1:], ""])
        (packed,) = read(tmp_path, text, base).data["adapter"]["quantize"]["exclude"]
        assert re.search(packed, "model.layers.0.mlp.experts.gate_up_proj")
        assert not re.search(packed, "model.layers.0.mlp.experts.3.up_proj")
        more = text + "quantize_moe_experts: true\n"
        assert "exclude" not in read(tmp_path, more, base).data["adapter"]["quantize"]
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert "exclude" not in read(tmp_path, text, base).data["adapter"]["quantize"]


def test_experts_of_a_model_in_the_cache_of_the_hub_stay_dense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--org--plain"
    for name, text in {"refs/main": "0" * 40, f"snapshots/{'0' * 40}/config.json": "{}"}.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
    lines = ["base_model: org/plain", *BASE.replace("load_in_4bit:\n", "").splitlines()[1:], ""]
    text, base = "adapter: qlora\nload_in_4bit: true\n", "\n".join(lines)
    assert "exclude" not in read(tmp_path, text, base).data["adapter"]["quantize"]
    (folder / name).write_text('{"num_experts": 4}')
    assert "exclude" in read(tmp_path, text, base).data["adapter"]["quantize"]


@pytest.mark.parametrize("name", ["neftune_noise_alpha", "noisy_embedding_alpha"])
def test_noise_on_embeddings(tmp_path: Path, name: str) -> None:
    document = read(tmp_path, f"{name}: 5\n")
    assert document.data["model"]["embedding_noise"] == 5
    assert kinds(document)["neftune_noise_alpha"] == "differs"


def test_names_that_may_be_packed_experts_need_a_decision(tmp_path: Path) -> None:
    names = "adapter: lora\nlora_target_modules: [q_proj, gate_proj, up_proj, down_proj]\n"
    base = BASE.replace("NousResearch/Llama-3.2-1B", "Qwen/Qwen3-30B-A3B")
    assert kinds(read(tmp_path, names, base))["lora_target_modules"] == "needs a decision"
    document = read(tmp_path, f"{names}lora_target_parameters: [experts.down_proj]\n", base)
    assert "lora_target_modules" not in kinds(document)
    assert "lora_target_modules" not in kinds(read(tmp_path, names))
    (pattern,) = read(tmp_path, names).data["adapter"]["targets"]
    assert re.search(pattern, "model.layers.0.mlp.down_proj")
    assert not re.search(pattern, "model.layers.0.mlp.experts.down_proj")


def test_a_router_has_no_adapter(tmp_path: Path) -> None:
    document = read(tmp_path, "adapter: lora\nlora_target_modules: [up_proj, mlp.router]\n")
    assert kinds(document)["lora_target_modules"] == "differs"
    document = read(tmp_path, "adapter: lora\nlora_target_modules: [up_proj, gate_proj]\n")
    assert "lora_target_modules" not in kinds(document)
