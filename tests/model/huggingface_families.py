"""Families of transformers as tiny random models, and a plain loop that trains them.

The loop is PyTorch's and transformers' own: eager attention, one document at a time.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from setpoint.train.build.components import Components, build_components
from setpoint.train.config import Job

from ..support.forks import forked
from ..train.small import small_job

STEPS = 10
SMALL = (
    "vocab_size=257, hidden_size=16, intermediate_size=24, num_hidden_layers=2, "
    "num_attention_heads=4, max_position_embeddings=64"
)
DENSE = f"{SMALL}, num_key_value_heads=2"
HEADS = f"{DENSE}, head_dim=8"
MOE = "num_experts_per_tok=2, moe_intermediate_size=8"
DELTA = (
    "linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=8, "
    "linear_value_head_dim=8, layer_types=[linear_attention, full_attention]"
)
WINDOW = "sliding_window=5, layer_types=[sliding_attention, full_attention]"
FAMILIES = {
    "gpt_oss": f"{HEADS}, num_local_experts=4, num_experts_per_tok=2, {WINDOW}",
    "qwen3_next": f"{HEADS}, {DELTA}, num_experts=4, shared_expert_intermediate_size=8, {MOE}",
    "deepseek_v3": f"{SMALL}, num_key_value_heads=4, q_lora_rank=8, kv_lora_rank=8, "
    f"qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=12, n_routed_experts=4, n_group=2, "
    f"topk_group=1, first_k_dense_replace=1, {MOE}",
    "llama4_text": f"{HEADS}, intermediate_size_mlp=24, num_local_experts=2, moe_layers=[1], "
    f"attention_chunk_size=5, layer_types=[chunked_attention, full_attention], "
    f"no_rope_layers=[1, 0]",
    "qwen3_5_text": f"{HEADS}, {DELTA}",
    "glm4_moe": f"{DENSE}, n_routed_experts=4, n_group=1, topk_group=1, "
    f"first_k_dense_replace=1, {MOE}",
    "olmo2": DENSE,
    "olmo3": f"{DENSE}, {WINDOW}",
    "phi": DENSE,
    "mixtral": f"{DENSE}, num_local_experts=4, num_experts_per_tok=2, sliding_window=7",
    "gemma2": f"{HEADS}, attn_logit_softcapping=2.0, final_logit_softcapping=3.0, {WINDOW}",
    "cohere": f"{DENSE}, logit_scale=0.25",
    "gpt2": "vocab_size=257, n_embd=16, n_layer=2, n_head=2, n_positions=64, attn_pdrop=0.0, "
    "resid_pdrop=0.0, embd_pdrop=0.0",
    "granite": f"{DENSE}, logits_scaling=4.0",
}
BIASED = ("phi",)
"""Families whose output matrix has a bias, of which losses that take hidden states know nothing."""

RUN = (
    f"duration={STEPS} steps",
    "data.packing.method=first_fit_decreasing",
    "data.sources=[{type: random, documents: 60, length: 16, alphabet: 8}]",
    "batch={global_size: 2, micro_size: 1, sequence_length: 32}",
    "optimizer={type: adamw, lr: 1e-2, eps: 1e-3, weight_decay: 0.1, clip_norm: 0.5}",
    "schedule=constant",
    "evaluation=null",
    "model.max_sequence_length=64",
)


def family_job(folder: Path, kind: str, *flags: str) -> Job:
    """A job that trains a family on packed documents."""
    without = ("dim", "layers", "heads", "dropout", "micro_size", "accumulation", "lr")
    loss = "cross_entropy" if kind in BIASED else "chunked_cross_entropy"
    model = ("model=huggingface", f"model.config={kind}", f"model.overrides={{{FAMILIES[kind]}}}")
    return small_job(folder, *model, *RUN, f"loss={loss}", *flags, without=without)


def plain_loop(job: Job, steps: int = STEPS) -> tuple[list[float], dict[str, Tensor]]:
    """Train as a plain loop does, from the same weights and on the same documents."""
    components = build_components(job)
    model: Any = components.model
    model.set_attention("eager")
    theirs = model.model.train()
    decayed = {n for n, p in theirs.named_parameters() if p.ndim > 1 and not n.endswith("bias")}
    decays = [p for n, p in theirs.named_parameters() if n in decayed]
    others = [p for n, p in theirs.named_parameters() if n not in decayed]
    options: Any = job.optimizer
    groups = [
        {"params": decays, "weight_decay": options.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=options.lr, betas=options.betas, eps=options.eps)
    losses: list[float] = []
    for _ in range(steps):
        step = components.feed.take()
        total = torch.zeros(())
        for batch in step.batches:
            for tokens, targets in documents_of(batch):
                logits = theirs(input_ids=tokens[None], use_cache=False).logits[0]
                total = total + cross_entropy(logits, targets, reduction="sum")
        loss = total / step.rank_total.targets
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), options.clip_norm)
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: p.detach() for name, p in theirs.named_parameters()}


def documents_of(batch: Any) -> list[tuple[Tensor, Tensor]]:
    """The tokens and targets of each document."""
    found: list[tuple[Tensor, Tensor]] = []
    for row in range(len(batch.inputs)):
        numbers = batch.documents[row]
        for number in numbers[numbers >= 0].unique():
            own = numbers == number
            found.append((batch.inputs[row, own], batch.targets[row, own]))
    return found


def weights_of(components: Components) -> dict[str, Tensor]:
    """Whole weights of a trained model by the names that transformers has."""
    model: Any = components.model
    return {name: p.detach() for name, p in model.model.named_parameters()}


def divide(pairs: Sequence[str], *words: str) -> None:
    """Let ranks train families in shapes as one rank does."""
    said = forked("tests.model.huggingface_ranks", *words, *pairs)
    assert all(f"{pair}: equal" in said for pair in pairs)


def every(kinds: Iterable[str], shapes: Iterable[str]) -> list[str]:
    """Each kind in each shape."""
    return [f"{kind}, {shape}" for kind in kinds for shape in shapes]
