"""Run by test_quantized.py in a process of its own: two ranks start from quantized files as one.

Each reads and makes dense the rows that it holds, or takes what the first rank reads; beneath an
adapter each keeps its part of the numbers and scales of the files. Its arguments are names of
cases; all without any.
"""

import sys
import tempfile
from pathlib import Path

import torch

from setpoint.parallel.world import World

from ...parallel.equal_ranks import assert_equal, trained
from ...support.ranks import fork_group
from ...train.small import small_job
from .ours import directory
from .quantized_files import FORMATS, KEPT, gpt_oss, quantize_files

MODEL = {"dim": 64, "heads": 4, "ffn_dim": 64, "vocab_size": 257}
ADAPTER = "adapter={{type: lora, rank: 2, b_std: 0.1, quantize: {{type: {}}}}}"
FP8 = ADAPTER.format("fp8, group_size: 16")
MXFP4 = "adapter={type: lora, rank: 2, b_std: 0.1, quantize: {type: mxfp4, exclude: [self_attn]}}"
ONE = "parallel.load_weights=broadcast"
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "sharded": ("fp8", ("parallel.shard=2",)),
    "tensor, one reads": ("nvfp4", ("parallel.tensor=2", ONE)),
    "sharded base": ("fp8", ("parallel.shard=2", FP8)),
    "tensor base": ("nvfp4", ("parallel.tensor=2", ADAPTER.format("nvfp4"))),
    "experts of transformers, base": (
        "gpt_oss",
        ("parallel.shard=2", "parallel.expert=2", "precision.compute=fp32", MXFP4),
    ),
    "sharded base, one reads": ("fp8", ("parallel.shard=2", FP8, ONE)),
}


def check(rank: int, store: str) -> None:
    for name in sys.argv[1:] or CASES:
        form, flags = CASES[name]
        with tempfile.TemporaryDirectory() as folder:
            files = Path(folder) / "files"
            if form == "gpt_oss":
                section = ["model.type=huggingface"]
                keys = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
                gpt_oss(files, {**keys, "vocab_size": 257, "num_experts_per_tok": 2})
            else:
                section = [f"model.{field}={value}" for field, value in MODEL.items()]
                section += ["model.layers=2", "model.dropout=0", "model.kv_heads=4"]
                quantize_files(
                    directory(files, **MODEL), KEPT[form] if "base" in name else FORMATS[form]
                )
            common = (
                *section, "duration=2 steps", "evaluation=null",
                "batch.sequence_length=16", "checkpoint.save=false", "optimizer=sgd",
                "model.max_sequence_length=32", f"model.pretrained={files}",
            )  # fmt: skip
            count = "batch.accumulation={}"
            job = small_job(Path(folder), *common, *flags, "parallel.world_size=2", count.format(1))
            own = [flag for flag in flags if not flag.startswith("parallel.")]
            ranks = count.format(job.parallel.data_ranks)
            alone = small_job(Path(folder), *common, *own, ranks)
            found, expected = trained(job), trained(alone, World(torch.device("cpu")))
            assert_equal(found, expected, 1e-5, name)
            for key, value in expected[1].items():
                assert ".codes" not in key or torch.equal(found[1][key], value), (name, key)


if __name__ == "__main__":
    sys.exit(fork_group(check, 2))
