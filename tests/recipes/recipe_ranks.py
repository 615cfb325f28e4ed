"""Run by test_recipes.py in a process of its own: recipes in small train on ranks as on one.

Its arguments are the number of ranks, and names of recipes. The small form has few narrow layers,
and else what the file says: data, optimizer, schedule, loss, precision, recomputation, schedules of
stages. What no CPU has is emulated (float8), or computed in fp32 (fp16).
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

import setpoint.presets  # noqa: F401 - registers the presets
from setpoint.config.composition import compose
from setpoint.data.config import Loader, Prepare
from setpoint.memory.config import Memory
from setpoint.parallel.config import Parallel, Sharding
from setpoint.parallel.pipelining import Pipelining
from setpoint.parallel.world import World
from setpoint.precision.config import Precision
from setpoint.train.config import BatchConfig, Job

from ..model.huggingface_families import FAMILIES
from ..model.pretrained.ours import directory
from ..model.pretrained.quantized_files import FORMATS, quantize_files
from ..parallel.equal_ranks import Trained, assert_equal, trained
from ..support.ranks import fork_group

FOLDER = Path(__file__).parent
STEPS = 6
ROWS = 8
"""Sequences of a step."""
COMMON = (
    f"duration={STEPS} steps", "evaluation=null", "compile=null", "profiling=null",
    "memory.empty_cache=never", "tracking.trackers=[jsonl]", "tracking.progress=none",
    "model.pretrained=null",
)  # fmt: skip
OURS = (
    "model.layers=4", "model.dim=64", "model.heads=4", "model.kv_heads=2", "model.head_dim=16",
    "model.vocab_size=512",
)  # fmt: skip
THEIRS = "model.max_sequence_length=64"
TEXT = (
    "tokenizer=bytes", "data.sources=[{type: random, documents: 60, length: 100, alphabet: 8}]",
)  # fmt: skip
CHATS = ("tokenizer=bytes", "data.sources.0.template=plain", "data.held_out=0")
DENSE = ("model.ffn_dim=128",)
EXPERTS = ("model.moe.experts=4", "model.moe.top_k=2", "model.moe.expert_dim=32")
BALANCED = "model.moe.load_sequences=1"
QUANTIZED: dict[str, Any] = {
    "dim": 64, "layers": 4, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn_dim": 128,
    "vocab_size": 512, "qk_norm": True, "norm_eps": 1e-6, "rope_base": 1e6,
    "max_sequence_length": 64,
}  # fmt: skip
"""The base of QLoRA, in files that hold NVFP4."""
BF16, MUON = 3e-2, 5e-3
"""Sums of another order in bf16, and those that Muon takes in it."""


def _theirs(kind: str) -> tuple[str, ...]:
    """A tiny model of transformers."""
    return THEIRS, f"model.config={kind}", f"model.overrides={{{FAMILIES[kind]}}}"


class Small(NamedTuple):
    """The small form of a recipe.

    Arguments:
        parallel: how ranks are divided.
        flags: beside `COMMON`.
        rtol: of the recipe's own formats.
        precise: of the same in fp32.
        in_fp32: flags of that.
    """

    ranks: int
    parallel: dict[str, Any]
    flags: tuple[str, ...]
    rtol: float = BF16
    precise: float = 1e-4
    in_fp32: tuple[str, ...] = ()


RECIPES = {
    "kempnerforge_dense": Small(
        2, {"shard": 2, "sharding": Sharding(accumulation="unsharded")}, DENSE
    ),
    "kempnerforge_moe": Small(
        4, {"shard": 4, "expert": 2}, (*DENSE, *EXPERTS, "data.anneal.start=4 steps")
    ),
    "kempnerforge_fp8": Small(
        4, {"shard": 2, "tensor": 2}, (*DENSE, *TEXT, "precision.float8.emulate=true")
    ),
    "kempnerforge_pipeline": Small(
        4,
        {
            "pipeline": 2,
            "tensor": 2,
            "pipelining": Pipelining(schedule="interleaved_1f1b", stages_per_rank=2),
        },
        DENSE,
        precise=MUON,
    ),
    "kempnerforge_moe_pipeline": Small(
        4,
        {"pipeline": 2, "tensor": 2, "expert": 2, "pipelining": Pipelining(schedule="1f1b")},
        (*EXPERTS, BALANCED, "precision.float8.emulate=true"),
    ),
    "d9d_pretrain": Small(
        4,
        {
            "pipeline": 2,
            "shard": 2,
            "expert": 2,
            "pipelining": Pipelining(schedule="zbv_zero_bubble"),
        },
        (*TEXT, *EXPERTS, BALANCED),
        in_fp32=("optimizer=adamw",),
    ),
    "d9d_lora": Small(2, {"shard": 2}, (*DENSE, *TEXT, "checkpoint.save_frozen=true")),
    "xorl_packed_sft": Small(4, {"ring": 2, "ulysses": 2}, (*DENSE, *CHATS)),
    "xorl_bf16_sft": Small(
        2, {"shard": 2, "sharding": Sharding(replicated=("norm",))}, (*DENSE, *CHATS)
    ),
    "xorl_moe": Small(4, {"shard": 4, "expert": 4}, (*TEXT, *EXPERTS, BALANCED), precise=MUON),
    "xorl_qlora": Small(2, {"shard": 2}, (*DENSE, *CHATS, "model.pretrained=base")),
    "xorl_gpt_oss": Small(2, {"shard": 2}, (*_theirs("gpt_oss"), *CHATS)),
    "xorl_qwen35_lora": Small(2, {"shard": 2}, (*_theirs("qwen3_5_text"), *CHATS)),
    "danling_hybrid": Small(
        2,
        {"shard": 2, "reshard": True},
        (*DENSE, "model.dropout=0", "model.kv_heads=4", "evaluation={every: 2 steps}"),
        rtol=0,  # no CPU computes in fp16
    ),
}


def write_data() -> None:
    """The files that recipes name, below the working directory."""
    draw = np.random.default_rng(0)
    for name in ("tokens", "code"):
        Path(name).mkdir()
        tokens = draw.integers(3, 20, 6000).astype(np.uint16)
        tokens[::97] = 2
        np.save(f"{name}/0.npy", tokens)
    base = directory(Path("base"), **QUANTIZED)
    quantize_files(base, FORMATS["nvfp4"])
    Path("chats").mkdir()
    lines: list[str] = []
    for number in range(80):
        ask, answer = "ask " * (number % 5 + 1), "say " * (number % 7 + 1)
        turns = [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]
        lines.append(json.dumps({"messages": turns}))
    Path("chats/a.jsonl").write_text("\n".join(lines))


def small(name: str, ranks: int, in_fp32: bool) -> Job:
    """A recipe in small; one rank recomputes nothing."""
    recipe = RECIPES[name]
    own = () if THEIRS in recipe.flags else OURS
    flags = [*COMMON, *own, *recipe.flags, *(recipe.in_fp32 if in_fp32 else ())]
    made = compose(Job, str(FOLDER / f"{name}.toml"), flags=flags)
    given = recipe.parallel if ranks > 1 else {}
    made.draft.parallel = Parallel(device="cpu", world_size=ranks, **given)
    count = 4 if "pipeline" in recipe.parallel else 2
    made.draft.batch = BatchConfig(global_size=ROWS, accumulation=count, sequence_length=32)
    made.draft.data.loader, made.draft.data.prepare = Loader(), Prepare()
    if in_fp32:
        made.draft.precision = Precision()
    if ranks == 1:
        made.draft.memory = Memory()
    return made.resolve()


def compare(name: str, in_fp32: bool, rtol: float) -> None:
    """Compare the training of all ranks with that of one, of the same micro-batches."""
    told: list[Any] = [None]
    if dist.get_rank() == 0:
        told = [trained(small(name, 1, in_fp32), World(torch.device("cpu")))]
    dist.broadcast_object_list(told)
    found: Trained = trained(small(name, RECIPES[name].ranks, in_fp32))
    assert len(found[0]) >= STEPS
    assert found[0][STEPS - 1][0] != found[0][0][0], f"{name} learns nothing"
    assert_equal(found, told[0], rtol, f"{name}{' in fp32' * in_fp32}")


def one_rank(rank: int, store: str) -> None:
    for name in sys.argv[2:]:
        recipe = RECIPES[name]
        if recipe.rtol:
            compare(name, False, recipe.rtol)
        compare(name, True, recipe.precise)
        if rank == 0:
            print(f"{name}: equal", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_data()
        sys.exit(fork_group(one_rank, int(sys.argv[1])))
