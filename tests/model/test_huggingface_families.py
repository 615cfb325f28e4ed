"""Families of transformers are trained as transformers itself trains them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from setpoint.adapter.low_rank import adapters_of, merge_all
from setpoint.infer.distributed import ModelRunner
from setpoint.infer.generation import Sampling, generate
from setpoint.model.huggingface.model_parallel import decoder_of
from setpoint.train.build.components import build_components
from setpoint.train.run import train

from ..support.cases import few
from ..support.snapshots import refused
from ..train.small import rows
from .huggingface_families import FAMILIES, divide, every, family_job, plain_loop, weights_of


@pytest.mark.parametrize("kind", few(FAMILIES, ["gpt_oss"]))
def test_packed_steps_equal_a_plain_loop(tmp_path: Path, kind: str) -> None:
    # Experts of GPT-OSS add their biases to products in place.
    recompute = "operators" if kind == "gpt_oss" else "full"
    job = family_job(tmp_path, kind, f"memory.activation_checkpointing={recompute}")
    outcome = train(job)
    model: Any = outcome.components.model
    recurrent = kind in ("qwen3_next", "qwen3_5_text")
    assert (model.attention, model.isolation) == ("setpoint", "rows" if recurrent else "mask")
    losses, weights = plain_loop(job)
    found = [row["loss"] for row in rows(outcome.directory) if "loss" in row]
    torch.testing.assert_close(torch.tensor(found), torch.tensor(losses), rtol=1e-5, atol=1e-5)
    trained = weights_of(outcome.components)
    assert trained.keys() == weights.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(trained[name], weight, rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["shard=2", "replicate=2"])
def test_two_ranks_train_what_one_does(shape: str) -> None:
    kinds = [*FAMILIES, "gpt_oss+lora", "mixtral+dora"]
    divide(every(kinds, [shape]))


def test_a_loss_from_hidden_states_is_refused_where_the_way_to_logits_is_not_known(
    tmp_path: Path,
) -> None:
    with refused():
        build_components(family_job(tmp_path, "phi", "loss=chunked_cross_entropy"))


@pytest.mark.parametrize("kind", few(FAMILIES, ["gpt_oss", "qwen3_next"]))
def test_texts_go_on_with_a_cache_as_transformers_writes_them(tmp_path: Path, kind: str) -> None:
    """Rows of different lengths, of which some end earlier; each token is read once."""
    components = build_components(family_job(tmp_path, kind))
    model: Any = components.model.eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():  # large enough that each token matters
            if weight.ndim > 1:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.3)
    prompts = [[5], [9, 8, 7, 6, 5, 4, 3, 9, 1], [3, 2, 1]]
    lengths: list[int] = []
    decoder = decoder_of(model.model)
    hook = decoder.register_forward_pre_hook(
        lambda _, __, named: lengths.append(named["input_ids"].shape[1]), with_kwargs=True
    )
    runner = ModelRunner(model)
    rows = generate(
        runner,
        prompts,
        max_tokens=8,
        sampling=Sampling(temperature=0),
        on_token=lambda row, _: row == 0,
    )
    hook.remove()
    assert lengths == [9] + [1] * 7
    model.set_attention("eager")
    for prompt, row in zip(prompts, rows, strict=True):
        whole = torch.tensor([prompt])
        with torch.no_grad():
            for _ in range(8):
                logits = model.model(input_ids=whole, use_cache=False).logits[:, -1]
                whole = torch.cat((whole, logits.argmax(-1, keepdim=True)), dim=1)
        count = 1 if len(prompt) == 1 else 8
        assert row.tokens == whole[0, len(prompt) :].tolist()[:count]


@pytest.mark.parametrize("kind", few(["gpt_oss", "mixtral", "llama4_text"], ["gpt_oss"]))
@pytest.mark.parametrize("adapter", few(["lora", "dora"], ["lora"]))
def test_adapters_of_packed_experts_are_sums_of_weights(
    tmp_path: Path, kind: str, adapter: str
) -> None:
    """The gradients of A and B follow from that of the merged weight, which transformers has."""
    flags = (f"adapter={{type: {adapter}, rank: 2, b_std: 0.1, targets: [experts]}}", "seed=3")
    components = build_components(family_job(tmp_path, kind, *flags))
    model: Any = components.model
    batch = components.feed.take().batches[0]
    total = components.objective.sums(batch).total
    total.backward()
    adapters = adapters_of(model)
    assert {name.rpartition(".")[2] for name in adapters} == {"gate_up_proj", "down_proj"}
    found = {
        name: [each.a.grad, each.b.grad, each.a.detach(), each.b.detach(), each.scale]
        for name, each in adapters.items()
    }
    merge_all(model)
    assert not adapters_of(model)
    merged = dict(model.requires_grad_().named_parameters())
    of_merged = components.objective.sums(batch).total
    torch.testing.assert_close(total, of_merged, rtol=1e-6, atol=0)
    of_merged.backward()
    for name, (a_grad, b_grad, a, b, scale) in found.items():
        grad = merged[name.replace(".adapter", "")].grad
        assert grad is not None and a_grad.abs().max() > 0
        if adapter == "dora":
            continue  # whose magnitudes scale them row by row
        grad = grad.mT if kind == "mixtral" else grad
        torch.testing.assert_close(a_grad, scale * grad @ b.mT, rtol=1e-4, atol=1e-7)
        torch.testing.assert_close(b_grad, scale * a.mT @ grad, rtol=1e-4, atol=1e-7)
