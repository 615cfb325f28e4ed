"""Argument lists of Megatron-LM mean what they mean there, by its own formulas."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from setpoint.interop.dialect import ConvertedDocument, read_foreign, recognize
from setpoint.interop.shell_script import Script
from setpoint.model.build import build_model
from setpoint.plan.preflight import preflight
from setpoint.train.config import Job

from ..support.snapshots import compare_problems, refused
from .converting import assert_rates, assert_values, job_of, kinds

SCRIPT = r"""
#!/bin/bash
NODES=2
RANKS=$(($NODES*4))  # of all nodes
SAVE=${1:-"checkpoints"}; export DATA=$2
LAYERS=4
MODEL=(
    --num-layers $LAYERS --hidden-size 64  # small
    --num-attention-heads 4
    --seq-length 32
    #--swiglu
    "--max-position-embeddings 64"
)
if [[ "$LAYERS" == "4" ]]; then
    MODEL+=(--norm-epsilon 1e-6)
else
    MODEL+=(--norm-epsilon 1e-4)
fi
OPTIONS=" \
    --micro-batch-size 2 \
    --global-batch-size 16 --train-samples 960 \
    --vocab-size=100 --tokenizer-type NullTokenizer \
    --lr 1.0e-3 --lr-decay-style cosine --lr-warmup-samples 160 --min-lr 1e-4 \
    --data-path 0.3 ${DATA}/a 0.7 b --split '90,10,0' \
    --hidden-dropout 0 --attention-dropout 0 --bf16 --save $SAVE --save-interval 20"
torchrun --nproc_per_node $RANKS pretrain_gpt.py ${MODEL[@]} \
    $OPTIONS \
    --use-distributed-optimizer | tee log.txt
"""
PLAIN = "--num-layers 4 --hidden-size 64\n--num-attention-heads 4 --seq-length 32 \\\n" + (
    "--micro-batch-size 2\n--global-batch-size 16 --lr 1e-3 --train-iters 60 --data-path tokens\n"
    "--hidden-dropout 0 --attention-dropout 0 --vocab-size 100\n"
)


BRANCHES = """
A={} B={}
function usage {{
    echo "train.sh"
}}
if [ $A == 1 ]; then
    for rank in 0 1; do if [ $B == 1 ]; then echo $rank; fi; done
    if [ $B == 1 ]; then X=one; else X=two; fi
elif [ $A == 2 ]; then X=three
else
    X=four
fi
python pretrain_gpt.py --seed $X
"""


def read(folder: Path, more: str = "", text: str = PLAIN) -> ConvertedDocument:
    path = folder / "train.sh"
    path.write_text(text + more)
    return read_foreign("megatron", str(path))


def converted(folder: Path, more: str = "", text: str = PLAIN, ranks: int = 8) -> Job:
    return job_of(read(folder, more, text), ranks)


def test_a_script_is_read_without_being_run(tmp_path: Path) -> None:
    document = read(tmp_path, text=SCRIPT)
    job = job_of(document, 8)
    model: Any = job.model
    assert (model.layers, model.norm_eps, model.vocab_size) == (4, 1e-6, 128)
    assert (str(job.duration), job.batch.global_size, job.batch.micro_size) == ("60 steps", 16, 2)
    assert (str(job.workspace), str(job.schedule.__getattribute__("warmup"))) == (
        "checkpoints",
        "10 steps",
    )
    first, second = job.data.sources
    assert (getattr(first, "paths", ()), first.weight, second.weight) == (("$2/a.bin",), 0.3, 0.7)
    assert [key for key, kind in kinds(document).items() if kind == "needs a decision"] == [
        "data-path"
    ]
    assert document.where(("model", "layers")).endswith("train.sh:8:5")
    assert document.where(("optimizer", "lr")).endswith("train.sh:23:5")
    assert recognize(str(tmp_path / "train.sh")) == "megatron"


def factor(step: int, config: dict[str, Any]) -> float:
    """Megatron's rate of a step as a share of the peak of 1e-3, counted from 0."""
    warmup, end, style = config["warmup"], config.get("end", 60), config["style"]
    least = config.get("least", 0.0)
    if step < warmup:
        return step / warmup
    if style == "constant":
        return 1.0
    if style == "inverse-square-root":
        return math.sqrt(max(1, warmup) / step)
    if step >= end:
        return least
    t = (step - warmup) / (end - warmup)
    shape = {"linear": 1 - t, "cosine": (math.cos(math.pi * t) + 1) / 2}.get(style, 1.0)
    if style == "WSD":
        part = config["part"]
        t = max(0.0, (step - (end - part)) / part)
        shape = {"linear": 1 - t, "cosine": (math.cos(math.pi * t) + 1) / 2,
                 "minus_sqrt": 1 - math.sqrt(t),
                 "exponential": 2 * 0.5**t - 1}[config["wsd"]]  # fmt: skip
    return least + (1 - least) * shape


@pytest.mark.parametrize("config", [
    {"style": "linear", "warmup": 10}, {"style": "cosine", "warmup": 6, "least": 0.1, "end": 40},
    {"style": "constant", "warmup": 5}, {"style": "inverse-square-root", "warmup": 12},
    {"style": "WSD", "wsd": "linear", "part": 20, "warmup": 5},
    {"style": "WSD", "wsd": "minus_sqrt", "part": 30, "warmup": 0, "least": 0.2},
    {"style": "WSD", "wsd": "exponential", "part": 20, "warmup": 5, "least": 0.1},
])  # fmt: skip
def test_rates_are_those_of_its_formula(tmp_path: Path, config: dict[str, Any]) -> None:
    more = f"--lr-decay-style {config['style']} --lr-warmup-iters {config['warmup']}"
    more += f" --min-lr {config.get('least', 0.0) * 1e-3} --lr-decay-iters {config.get('end', 60)}"
    if config["style"] == "WSD":
        more += f" --lr-wsd-decay-style {config['wsd']} --lr-wsd-decay-iters {config['part']}"
    job = converted(tmp_path, more)
    exact = config.get("wsd") == "exponential"  # in phases, which have the steps of Megatron
    assert_rates(job, lambda step: factor(step, config), 1e-3 if exact else 1e-9)


def test_a_warm_up_of_less_than_a_step_begins_at_a_rate_of_0(tmp_path: Path) -> None:
    job = converted(tmp_path, "--lr-warmup-fraction .005 --lr-decay-style cosine")
    assert_rates(job, lambda step: factor(step, {"style": "cosine", "warmup": 1}), 1e-9)
    job = converted(tmp_path, "--lr-warmup-fraction 0.0 --lr-decay-style cosine")
    assert_rates(job, lambda step: factor(step, {"style": "cosine", "warmup": 0}), 1e-9)


SAMPLED = PLAIN.replace("--train-iters 60", "--train-samples 1000")


@pytest.mark.parametrize("ramp", [(2, 2, 90), (4, 6, 333), (8, 8, 40)])
@pytest.mark.parametrize("style", ["cosine", "WSD"])
def test_a_batch_that_grows_has_its_sizes_steps_and_rates(
    tmp_path: Path, ramp: tuple[int, int, int], style: str
) -> None:
    """Of megatron/core/num_microbatches_calculator.py and the scheduler, which counts samples."""
    start, increment, samples = ramp
    more = f"--rampup-batch-size {start} {increment} {samples} --lr-warmup-samples 100 "
    more += f"--min-lr 1e-4 --lr-decay-style {style} --lr-decay-samples 900 "
    more += "--lr-wsd-decay-style linear --lr-wsd-decay-samples 300" if style == "WSD" else ""
    document = read(tmp_path, more, SAMPLED)
    assert "rampup-batch-size" not in kinds(document)
    job = job_of(document, 1)
    sizes, consumed = [], [0]
    while consumed[-1] <= samples or 1000 - consumed[-1] >= 16:
        reached = int(consumed[-1] / (samples / ((16 - start) // increment)))
        sizes.append(16 if consumed[-1] > samples else start + reached * increment)
        consumed.append(consumed[-1] + sizes[-1])
    assert [job.batch.size_at(step) for step in range(len(sizes))] == sizes
    assert job.total_steps() == len(sizes)
    config = {"style": style, "warmup": 100, "end": 900, "least": 0.1, "part": 300, "wsd": "linear"}
    assert_rates(job, lambda step: factor(consumed[step], config))


def test_a_ramp_that_is_none(tmp_path: Path) -> None:
    for words in ("2 2", "2 2 x", "2 0 9"):
        compare_problems(read(tmp_path, f"--rampup-batch-size {words}", SAMPLED).problems)
    more = "--rampup-batch-size 2 2 90 --lr-decay-iters 60"
    (problem,) = read(tmp_path, more, SAMPLED).problems
    assert problem.path == "lr-decay-iters"
    assert "ramp" not in read(tmp_path, "--rampup-batch-size 16 2 90", SAMPLED).data["batch"]


@pytest.mark.parametrize("ramp", [(2, 2, 90), (4, 6, 333), (8, 8, 40)])
def test_samples_within_a_ramp_are_the_steps_of_megatron(
    tmp_path: Path, ramp: tuple[int, int, int]
) -> None:
    """Of `update_train_iters` in megatron/training/training.py."""
    start, increment, over = ramp
    for samples in (1, 2, start, start + 1, over - 1, over, over + 1, over + 15, over + 16, 500):
        steps = consumed = 0
        while consumed <= min(over, samples):
            reached = int(consumed / (over / ((16 - start) // increment)))
            consumed += 16 if consumed > over else start + reached * increment
            steps += 1
        steps += max(0, samples - consumed) // 16
        text = SAMPLED.replace("1000", str(samples))
        document = read(tmp_path, f"--rampup-batch-size {start} {increment} {over}", text)
        assert document.data["duration"] == f"{steps} steps", samples


def parameters(c: dict[str, Any]) -> int:
    """Megatron's number of parameters of a decoder."""
    dim, layers, heads = 64, 4, 4
    kv, ffn, bias = c.get("kv", heads), c.get("ffn", 4 * dim), c.get("bias", True)
    head, norm = dim // heads, 2 * dim if c.get("layer_norm", True) else dim
    attention = dim * dim + 2 * dim * kv * head + dim * dim
    attention += bias * (dim + 2 * kv * head + dim)
    network = (3 if c.get("gated") else 2) * dim * ffn
    network += bias * ((2 if c.get("gated") else 1) * ffn + dim)
    if experts := c.get("experts"):
        network = experts * network + dim * experts
    rows = 128 * -(-100 // 128)
    total = (
        layers * (attention + network + 2 * norm) + norm + rows * dim * (2 - c.get("tied", True))
    )
    return total + dim * c.get("positions", 32)


@pytest.mark.parametrize(("more", "config"), [
    ("", {}), ("--max-position-embeddings 50", {"positions": 50}),
    ("--swiglu --disable-bias-linear --normalization RMSNorm --position-embedding-type rope "
     "--group-query-attention --num-query-groups 2 --untie-embeddings-and-output-weights",
     {"gated": True, "bias": False, "layer_norm": False, "positions": 0, "kv": 2, "ffn": 128,
      "tied": False}),
    ("--num-experts 4 --moe-grouped-gemm --disable-bias-linear --ffn-hidden-size 96",
     {"experts": 4, "bias": False, "ffn": 96}),
])  # fmt: skip
def test_parameters_are_those_of_its_formula(
    tmp_path: Path, more: str, config: dict[str, Any]
) -> None:
    job = converted(tmp_path, more)
    if config.get("gated"):
        config = {**config, "ffn": int(4 * 64 * 2 / 3) // 64 * 64}
    built = build_model(job.model, 128)
    assert sum(p.numel() for p in built.parameters()) == parameters(config)


def test_ranks_precision_and_recomputation(tmp_path: Path) -> None:
    more = (
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --bf16 "
        "--num-layers-per-virtual-pipeline-stage 1 --use-distributed-optimizer "
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    )
    job = converted(tmp_path, more, ranks=16)
    assert (job.parallel.tensor, job.parallel.pipeline, job.parallel.shard) == (2, 2, -1)
    assert (job.parallel.pipelining.stages_per_rank, job.parallel.reshard) == (2, False)
    assert (job.batch.global_size, job.batch.accumulation) == (16, 2)
    p = job.precision
    assert (p.params, p.compute, p.master, p.reduce) == ("bf16", "bf16", "fp32", "fp32")
    assert getattr(job.memory.activation_checkpointing, "every", None) == 1
    more = "--num-experts 8 --expert-model-parallel-size 4 --moe-aux-loss-coeff 1e-2"
    job = converted(tmp_path, f"{more} --context-parallel-size 2 --disable-bias-linear", ranks=8)
    moe: Any = getattr(job.model, "moe", None)
    assert (job.parallel.expert, job.parallel.ring, moe.balance_loss) == (4, 2, 0.01)
    assert (job.batch.global_size, job.batch.accumulation) == (16, 2)


@pytest.mark.parametrize(("more", "values"), [
    ("--use-mup --mup-base-hidden-size 32 --mup-embedding-mult 4",
     {"model.mup.base_dim": 32, "model.attention_scale": 1 / 16, "model.embedding_scale": 4}),
    ("--quick-geglu --glu-linear-offset 1.0 --activation-func-clamp-value 7.0 "
     "--softmax-type learnable",
     {"model.activation": "swiglu_clamped", "model.attention_sinks": True}),
    ("--position-embedding-type yarn --rotary-scaling-factor 32 --yarn-beta-fast 16 "
     "--yarn-original-max-position-embeddings 4096 --no-yarn-correction-range-round-to-int",
     {"model.rope_scaling.factor": 32, "model.rope_scaling.beta_fast": 16,
      "model.rope_scaling.truncate": False,
      "model.rope_scaling.attention_factor": 0.1 * math.log(32) + 1}),
    ("--optimizer muon --muon-extra-scale-factor 0.2", {"optimizer.adjust_lr": "match_rms_adamw"}),
    ("--optimizer lion --lion-beta2 0.9",
     {"optimizer.type": "lion", "optimizer.betas": [0.95, 0.9]}),
    ("--recompute-granularity selective", {
        "memory.activation_checkpointing": {"type": "operators", "save": ["matmul"]}}),
    ("--context-parallel-size 2 --ddp-bucket-size 40000000", {"parallel.ring": 2}),
    ("--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel "
     "--tp-comm-overlap --global-batch-size 64", {"parallel.sequence_parallel": False}),
    ("--exit-interval 20", {"duration": "20 steps"}),
    ("--exit-interval 80", {"duration": "60 steps"}),
    ("--eval-iters 2 --eval-global-batch-size 8", {"evaluation.sequences": 16}),
    ("--dataloader-inter-document-masking", {"data.packing.isolate": True}),
    ("--no-pad-vocab-size", {"model.vocab_size": 100}),
    ("--distributed-backend nccl2 --bf16 --fp8-format hybrid --fp8-recipe tensorwise "
     "--first-last-layers-bf16 --num-layers-at-end-in-bf16 2 --untie-embeddings-and-output-weights",
     {"precision.float8.skip": ["^output$", r"^layers\.(0|2|3)\."]}),
    ("--bf16 --fp8-format hybrid --fp8-recipe tensorwise --first-last-layers-bf16 "
     "--num-layers-at-start-in-bf16 0 --num-layers-at-end-in-bf16 0",
     {"precision.float8.skip": []}),
    ("--bf16 --fp4-format e2m1 --first-last-layers-bf16 --hidden-size 512",
     {"precision.float8.recipe": "nvfp4",
      "precision.float8.skip": [r"^layers\.(0|3)\."]}),
    ("--bf16 --use-precision-aware-optimizer --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16",
     {"optimizer.type": "anyprecision_adamw", "optimizer.rounding": "nearest"}),
    (r"--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Ett\|\(t\|\)*2mL",
     {"parallel.pipelining.stages_per_rank": 2, "parallel.pipelining.split": [
         ["embedding", "layers.0", "layers.1"], ["layers.2"], ["layers.3"], ["output"]]}),
    ("--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 1",
     {"parallel.pipelining.split": [
         ["embedding", "layers.0"], ["layers.1", "layers.2", "layers.3", "output"]]}),
    ("--train-samples 480 --train-tokens 10240", {"duration": "20 steps"}),
    ("--embedding-init-method-std 1", {"model.init_std_embedding": 1.0, "model.init_std": 0.02}),
    ("--deepspeed --zero-stage=3 --num-experts 1 --moe-loss-coeff 0.01 --num-key-value-heads 2 "
     "--normalization rmsnorm --lr-decay-tokens 16384 --lr-warmup-tokens 1024 --data-impl mmap "
     "--use-flash-attn-v2",
     {"parallel.shard": -1, "model.kv_heads": 2, "model.norm.type": "rms_norm",
      "schedule.horizon": "32 steps", "schedule.warmup": "2 steps"}),
])  # fmt: skip
def test_arguments_become_fields(tmp_path: Path, more: str, values: dict[str, Any]) -> None:
    document = read(tmp_path, more)
    assert document.problems == []
    assert_values(document.data, values)
    assert preflight(job_of(document, 8), set()).problems == []


def test_lists_and_overrides_of_its_tests(tmp_path: Path) -> None:
    """Lists in brackets, flags passed at start, and keys that an override sets again."""
    path = tmp_path / "model_config.yaml"
    lines = [f"  {line}" for line in (
        "--num-layers: 2", "--hidden-size: 64", "--num-attention-heads: 4", "--seq-length: 32",
        "--micro-batch-size: 2", "--lr: 1e-3", "--train-iters: 9", "--save: ${SAVE}",
        "--recompute-granularity: selective", '--recompute-modules: "[mlp moe_act]"',
        "--data-cache-path: ${CACHE}")]  # fmt: skip
    path.write_text("MODEL_ARGS:\n" + "\n".join(lines))
    assert recognize(str(path)) == "megatron"
    document = read_foreign("megatron", str(path), ["--lr", "2e-3"])
    assert document.data["optimizer"]["lr"] == 2e-3
    assert document.data["memory"]["activation_checkpointing"]["parts"] == ["feed_forward"]
    reports = {r.key: (r.kind, r.text) for r in document.reports}
    assert reports["save"][0] == "needs a decision" and "set workspace" in reports["save"][1]
    assert reports["data-cache-path"][0] == "without effect"


def test_fields_of_the_core_are_arguments(tmp_path: Path) -> None:
    """A file for --yaml-cfg, whose sections and names are those of the core's classes."""
    path = tmp_path / "gpt.yaml"
    path.write_text("""
language_model: {num_layers: 4, hidden_size: 64, num_attention_heads: 4, num_query_groups: 2,
  kv_channels: null, layernorm_epsilon: 1.e-6, add_bias_linear: False, activation_func: swiglu,
  hidden_dropout: 0.0, attention_dropout: 0.0, masked_softmax_fusion: True, num_moe_experts: null}
model_parallel: {tensor_model_parallel_size: 2, sequence_parallel: True, bf16: True, timers: null}
micro_batch_size: 2
global_batch_size: 16
train_iters: 60
lr: 1.e-3
seq_length: 32
vocab_size: 100
mask_prob: 0.15
num_classes: 1000
check_for_nan_in_loss_and_grad: True
add_position_embedding: False
no_load_optim: null
""")
    document = read_foreign("megatron", str(path))
    assert document.problems == []
    # Arguments of encoders, which such a file gives as well, are not reported.
    assert not {report.key for report in document.reports} & {"num-classes", "mask-prob"}
    more = "--tensor-model-parallel-size 2 --sequence-parallel --bf16 --norm-epsilon 1e-6 --swiglu "
    more += "--disable-bias-linear --group-query-attention --num-query-groups 2"
    text = PLAIN.replace("--data-path tokens\n", "")
    assert document.data == read(tmp_path, f"{more} --no-position-embedding", text).data

    path.write_text(path.read_text().replace("swiglu", "geglu"))
    compare_problems(read_foreign("megatron", str(path)).problems)


def test_what_is_reported(tmp_path: Path) -> None:
    document = read(tmp_path, "--num-layer 3 --mtp-num-layers 1")
    compare_problems(document.problems)
    alone = read(tmp_path, "--num-query-groups 2 --first-last-layers-bf16").reports
    idle = {r.key for r in alone if r.kind == "without effect"}
    assert idle >= {"num-query-groups", "first-last-layers-bf16"}
    resumed = read(tmp_path, "--save x --load x --ckpt-step 20 --exit-on-missing-checkpoint")
    assert [r.key for r in resumed.reports if r.kind == "refused"] == ["ckpt-step"]
    assert resumed.data["checkpoint"]["resume"] == "must"
    families = read(tmp_path, "--fim-data --rl-profile --inference-shards 2")
    compare_problems(families.problems)
    assert kinds(families)["rl-profile"] == "refused"
    assert kinds(families)["inference-shards"] == "without effect"
    assert kinds(document)["mtp-num-layers"] == "refused"
    reported = kinds(read(tmp_path, "--log-throughput --rampup-batch-size 8 8 9"))
    assert reported["log-throughput"] == "without effect"
    assert reported["rampup-batch-size"] == "differs"  # since --train-iters is given
    ranks = "--tensor-model-parallel-size 2 --tp-comm-overlap --ddp-bucket-size 40000000"
    reported = kinds(read(tmp_path, ranks))
    assert reported["tp-comm-overlap"] == reported["ddp-bucket-size"] == "not converted"
    problems = read(tmp_path, "--num-experts 4 --moe-layer-freq ([0]*2+[1]*9)").problems
    assert [p.path for p in problems] == ["moe-layer-freq"]
    yaml = tmp_path / "model_config.yaml"
    yaml.write_text(
        "MODEL_ARGS:\n  --num-layers: 2\n  --hidden-size: 64\n  --num-attention-heads: 4\n"
    )
    assert read_foreign("megatron", str(yaml)).data["model"]["layers"] == 2


PIECES = st.sampled_from([
    "--num-layers", " 4", "\n", "A=", "$A", "(", ")", '"', "'", "\\\n", "$((", "))",
    "if [ ", "fi", "then", "${A[@]}", "${A:-", "}", "#", ";", "train.py", "*9",
    "A+=", "[", "\x00", "case ", " in ", "esac", ";;", " && ", " || ", "! ", " -eq ", " 2>&1", ":",
])  # fmt: skip


SIZES = """
MODEL_SIZE="${{MODEL_SIZE:-{}}}"
: "${{LR:=1e-3}}"
case "$MODEL_SIZE" in
    7b|8b) LAYERS=32; HEADS=32
        ;;
    "70b") LAYERS=80 ;;
    *)
        LAYERS=1
        ;;
esac
if [ "$LAYERS" -gt 40 ] && [[ "$LR" == 1e* ]] || [ "$LAYERS" -eq 1 ]; then
    ARGS="--num-layers $LAYERS --lr $LR"
else
    ARGS="--num-layers $LAYERS"
fi
[ "$LAYERS" -ge 80 ] && ARGS="$ARGS --bf16"
mkdir -p logs || {{ echo failed; exit 1; }}
ARGS+=" ${{HEADS:+--num-attention-heads 32}}"
if [ ! -z "$NOWHERE" ]; then ARGS="$ARGS --fp16"; fi
run_cmd="python -m torch.distributed.launch --nproc_per_node 8 pretrain_gpt.py $ARGS |& tee log"
eval $run_cmd
"""


@pytest.mark.parametrize(("size", "arguments"), [
    ("8b", "--num-layers 32 --num-attention-heads 32"),
    ("70b", "--num-layers 80 --lr 1e-3 --bf16"), ("1t", "--num-layers 1 --lr 1e-3"),
])  # fmt: skip
def test_cases_comparisons_and_commands_in_variables(size: str, arguments: str) -> None:
    script = Script("train.sh", SIZES.format(size))
    assert " ".join(word for word, _ in script.arguments) == arguments
    assert script.program == "pretrain_gpt.py"


NESTED = """
UNSET=${UNSET:-}
LENGTH="${SEQ_LENGTH:-${UNSET:-4096}}"
python ratios.py --split train
FOLDER="${FOLDER:-"$(cd "$(dirname "$0")" && pwd)/out"}"
LINKS=$(rdma link -j | python3 -c "import json; print(json.load(sys.stdin)[0])")
GPUS=`python3 -c "import torch; print(torch.cuda.device_count())"`
ARGS="
    --seq-length $LENGTH \\
    --num-workers $LINKS \\
    --save $FOLDER \\
"
srun -l bash -c 'echo $(hostname)' > log
COMMAND="torchrun --nproc-per-node $GPUS pretrain_gpt.py $ARGS --bf16"
srun --wait 60 bash -c "numactl $COMMAND" |& tee log
"""


def test_commands_within_commands() -> None:
    """Defaults of defaults, commands in variables, and the command of another shell."""
    script = Script("train.sh", NESTED)
    words = [word for word, _ in script.arguments]
    assert script.program == "pretrain_gpt.py"
    assert words[:3] == ["--seq-length", "4096", "--num-workers"]
    assert words[3].startswith("$(rdma") and words[4] == "--save" and words[-1] == "--bf16"


def test_paths_from_the_current_directory(tmp_path: Path) -> None:
    text = PLAIN.replace("--data-path tokens", "--data-path ${PWD}/data/tokens")
    data = read(tmp_path, text=text).data["data"]
    assert data["sources"][0]["paths"] == ["./data/tokens.bin"]


def test_placeholders_are_values_given_at_the_start() -> None:
    text = "A=${A:-<Specify path>_text}\nB=${B:-'<b>'}\npython pretrain_gpt.py --x $A --y $B"
    words = [word for word, _ in Script("train.sh", text).arguments]
    assert words == ["--x", "${A}", "--y", "${B}"]


def test_redirections_end_the_arguments() -> None:
    script = Script("x.sh", "python pretrain_gpt.py --data-path a 2>&1 | tee log")
    assert [word for word, _ in script.arguments] == ["--data-path", "a"]


def test_models_of_other_kinds_are_refused(tmp_path: Path) -> None:
    text = SCRIPT.replace("pretrain_gpt.py", "megatron/pretrain_bert.py")
    assert [p.path for p in read(tmp_path, text=text).problems] == ["program"]
    assert read(tmp_path, text=SCRIPT.replace("pretrain_gpt.py", "bert/train.py")).problems == []
    assert [p.path for p in read(tmp_path, "--vocab-file bert/vocab.txt").problems] == [
        "vocab-file"
    ]


def test_wrong_words_and_numbers_are_refused(tmp_path: Path) -> None:
    stages = " --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 7"
    problems = read(tmp_path, f"--dataloader-type random {stages}").problems
    assert {problem.path for problem in problems} == {
        "dataloader-type",
        "num-layers-per-virtual-pipeline-stage",
    }


def test_a_vocabulary_that_the_file_does_not_say(tmp_path: Path) -> None:
    plain = PLAIN.replace("--vocab-size 100", "")
    llama = read(tmp_path, text=f"{plain}--tokenizer-type Llama2Tokenizer")
    assert llama.data["model"]["vocab_size"] == 32_000
    assert llama.data["tokenizer"] == {"type": "ids"}
    other = f"{plain}--tokenizer-type GPTSentencePieceTokenizer --tokenizer-model a.model"
    document = read(tmp_path, text=other)
    assert document.data["tokenizer"] == {"type": "huggingface", "path": "a.model"}
    assert kinds(document)["vocab-size"] == "needs a decision"
    tokenizer = "--tokenizer-type HuggingFaceTokenizer --tokenizer-model folder\n"
    document = read(tmp_path, tokenizer)
    assert "vocab_size" not in document.data["model"]
    assert kinds(document)["vocab-size"] == "without effect"


@given(st.lists(PIECES, max_size=30))
def test_any_text_is_read(pieces: list[str]) -> None:
    Script("x.sh", "".join(pieces))


def test_a_variable_that_grows_without_end_is_refused(tmp_path: Path) -> None:
    text = "A=aaaaaaaaaa\n" + "A=$A$A$A$A$A$A$A$A\n" * 12 + "python train.py $A\n"
    with refused():
        read(tmp_path, text=text)


@pytest.mark.parametrize(
    ("first", "second", "taken"), [(1, 1, "one"), (1, 2, "two"), (2, 1, "three"), (3, 1, "four")]
)
def test_one_branch_of_a_script_is_followed(first: int, second: int, taken: str) -> None:
    script = Script("train.sh", BRANCHES.format(first, second))
    assert [word for word, _ in script.arguments] == ["--seed", taken]
