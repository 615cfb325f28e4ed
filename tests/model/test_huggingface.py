import errno
import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from setpoint.cli.main import main
from setpoint.config import ConfigError, RunError, SetpointError
from setpoint.config.resolving.checks import verify
from setpoint.files.tensor_header import TensorInfo
from setpoint.model import load_pretrained, save_pretrained
from setpoint.model.huggingface import builder
from setpoint.model.huggingface.architecture import Unfit
from setpoint.plan.preflight import preflight
from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.run import train

from ..support.snapshots import compare, refused
from ..support.tensors import same_tensors
from ..train.small import assert_same_run, small_job
from .pretrained.theirs import saved

TINY = (
    "model.overrides.vocab_size=257",
    "model.overrides.n_embd=16",
    "model.overrides.n_layer=1",
    "model.overrides.n_head=2",
    "model.overrides.n_positions=16",
)


def job(folder: Path, *flags: str) -> Job:
    """A job that trains a model of transformers."""
    without = ("dim", "layers", "heads", "dropout")
    return small_job(folder, "model=huggingface", *flags, without=without)


def gpt2(folder: Path, *flags: str) -> Job:
    return job(folder, "model.config=gpt2", *TINY, *flags)


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_the_seed_decides_the_weights(tmp_path: Path) -> None:
    first, again = (weights(build_components(gpt2(tmp_path)).model) for _ in range(2))
    other = weights(build_components(gpt2(tmp_path, "seed=7")).model)
    assert same_tensors(first, again)
    assert not same_tensors(first, other)


def test_it_is_the_model_of_transformers_with_tied_weights(tmp_path: Path) -> None:
    components = build_components(gpt2(tmp_path, "model.attention_backend=eager"))
    model: Any = components.model
    assert type(model.model).__name__ == "GPT2LMHeadModel"
    assert model.model.config._attn_implementation == "eager"
    assert model.training
    assert model.model.lm_head.weight is model.model.transformer.wte.weight
    tokens = torch.arange(12).reshape(2, 6)
    model.eval()
    with torch.no_grad():
        found = model(tokens)
        assert torch.equal(found, model.model(tokens).logits)
        assert torch.equal(found, model(tokens, torch.arange(6)))
        assert not torch.equal(found, model(tokens, torch.arange(6) + 3))
    assert found.shape == (2, 6, model.vocab_size)


MIXTRAL = (
    "model.config=mixtral",
    "model.overrides={vocab_size=257, hidden_size=16, intermediate_size=16, num_hidden_layers=2, "
    "num_attention_heads=2, num_key_value_heads=2, num_local_experts=4, router_aux_loss_coef=0.3, "
    "max_position_embeddings=16, output_router_logits=true}",
)


def test_the_balance_loss_of_transformers_is_added(tmp_path: Path) -> None:
    """As transformers adds it to the loss that it computes itself, and by its gradients."""
    components = build_components(
        job(tmp_path, *MIXTRAL, "batch.accumulation=1", "batch.micro_size=4")
    )
    model: Any = components.model
    batch = components.feed.take().batches[0]
    count = components.objective.count(batch)
    found = components.objective.share(batch, count.weight, count.targets, count.weight)
    found.loss.backward()
    ours = {name: weight.grad for name, weight in model.named_parameters()}
    model.zero_grad()
    theirs = model.model(input_ids=batch.inputs, labels=batch.targets, shift_labels=batch.targets)
    theirs.loss.backward()
    assert found.losses[0].item() == pytest.approx(theirs.loss.item(), rel=1e-6)
    assert float(found.losses[0] - found.losses[1]) == pytest.approx(0.3 * theirs.aux_loss.item())
    for name, weight in model.named_parameters():
        torch.testing.assert_close(ours[name], weight.grad, rtol=1e-4, atol=1e-7)
    assert model.eval()(batch.inputs).shape == (4, 16, 257)


PADDED = (
    "model.config=qwen3_moe",
    "model.overrides={vocab_size=257, hidden_size=32, intermediate_size=64, "
    "moe_intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, "
    "num_experts=4, num_experts_per_tok=2, output_router_logits=true, router_aux_loss_coef=0.5, "
    "max_position_embeddings=256}",
    "data.packing.method=none",
    "batch={global_size: 6, micro_size: 2, accumulation: 3}",
    "evaluation=null",
    "data.held_out=0",
)


def test_the_length_of_rows_changes_nothing(tmp_path: Path) -> None:
    """Padding is masked; the balance loss is that of transformers with its mask."""
    draw = Random(1)
    lines = ["".join(draw.choices("abcdefgh", k=draw.randint(1, 60))) for _ in range(60)]
    (tmp_path / "lines.txt").write_text("|".join(lines))
    source = f"data.sources=[{{type: text, paths: [{tmp_path}/lines.txt], separator: '|'}}]"
    steps: list[tuple[float, dict[str, Any]]] = []
    for length in (64, 128, 256):
        size = f"batch.sequence_length={length}"
        components = build_components(job(tmp_path, *PADDED, source, size, "seed=1234"))
        model: Any = components.model
        step = components.feed.take()
        whole, loss, balance, wanted = step.rank_total, 0.0, 0.0, 0.0
        for batch, count in zip(step.batches, step.counts, strict=True):
            part = count.tokens / whole.tokens
            share = components.objective.share(
                batch, whole.weight, whole.targets, part * whole.weight
            )
            share.loss.backward()
            loss += float(share.losses[0])
            balance += float(share.losses[0] - share.losses[1])
            mask = (batch.targets >= 0).long()  # all tokens that are read have a target here
            theirs = model.model(input_ids=batch.inputs, attention_mask=mask)
            wanted += 0.5 * theirs.aux_loss.item() * part
        assert balance == pytest.approx(wanted, abs=1e-6)
        steps.append((loss, {name: weight.grad for name, weight in model.named_parameters()}))
    for loss, gradients in steps[1:]:
        assert loss == pytest.approx(steps[0][0], abs=1e-6)
        torch.testing.assert_close(gradients, steps[0][1], rtol=1e-5, atol=1e-7)


SMALL = (
    "vocab_size=257, hidden_size=16, intermediate_size=16, num_hidden_layers=2, "
    "num_attention_heads=2"
)
HEADS = "num_key_value_heads=1, head_dim=8"
ISOLATING = {
    "gemma3_text": ("mask", "setpoint", f"{SMALL}, {HEADS}, sliding_window=3, "
                    "layer_types=[full_attention, sliding_attention]"),
    "gpt_oss": ("mask", "setpoint", f"{SMALL}, {HEADS}, sliding_window=3, num_local_experts=4, "
                "num_experts_per_tok=2, layer_types=[full_attention, sliding_attention]"),
    "gemma2": ("mask", "setpoint", f"{SMALL}, {HEADS}, sliding_window=3, "
               "attn_logit_softcapping=2.0, layer_types=[full_attention, sliding_attention]"),
    "llama4_text": ("mask", "setpoint", f"{SMALL}, {HEADS}, intermediate_size_mlp=16, "
                    "num_local_experts=2, attention_chunk_size=3, moe_layers=[1], "
                    "layer_types=[full_attention, chunked_attention], no_rope_layers=[0, 1]"),
    "qwen3_moe": ("mask", "setpoint", f"{SMALL}, num_key_value_heads=1, moe_intermediate_size=8, "
                  "num_experts=4, num_experts_per_tok=2, output_router_logits=true"),
    "gpt2": ("mask", "setpoint", "vocab_size=257, n_embd=16, n_layer=2, n_head=2, n_positions=32"),
    "opt": ("mask", "setpoint", "vocab_size=257, hidden_size=16, ffn_dim=16, "
            "num_hidden_layers=2, num_attention_heads=2, word_embed_proj_dim=16, dropout=0"),
    "qwen3_next": ("rows", "setpoint", f"{SMALL}, {HEADS}, num_experts=4, num_experts_per_tok=2, "
                   "moe_intermediate_size=8, shared_expert_intermediate_size=8, "
                   "linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=8, "
                   "linear_value_head_dim=8, layer_types=[linear_attention, full_attention]"),
    "lfm2": ("rows", "setpoint", f"{SMALL}, num_key_value_heads=1, "
             "layer_types=[conv, full_attention]"),
    "mamba": ("rows", "eager", "vocab_size=257, hidden_size=16, state_size=4, "
              "num_hidden_layers=2"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ISOLATING)
def test_documents_of_a_row_are_read_as_if_alone(tmp_path: Path, kind: str) -> None:
    """Logits and gradients are those of transformers, one document at a time without padding."""
    isolation, attention, overrides = ISOLATING[kind]
    flags = (f"model.config={kind}", f"model.overrides={{{overrides}}}")
    model: Any = build_components(job(tmp_path, *flags)).model
    assert (model.isolation, model.attention) == (isolation, attention)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():  # large enough that each token matters
            if weight.ndim > 1:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.2)
    model.eval()
    tokens = torch.randint(1, 257, (2, 12), generator=generator)
    documents = torch.tensor([[0] * 5 + [1] * 1 + [2] * 6, [0] * 4 + [1] * 5 + [-1] * 3])
    logits = model(tokens, documents=documents)
    model.set_attention("eager")
    alone = torch.zeros_like(logits)
    for row, number in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1)):
        own = documents[row] == number
        alone[row, own] = model.model(input_ids=tokens[row, own][None]).logits[0]
    valid = documents >= 0
    assert valid.sum() == 21
    torch.testing.assert_close(logits[valid], alone[valid], rtol=1e-4, atol=1e-5)
    signs = torch.randn(alone.shape, generator=generator)
    given = torch.autograd.grad((logits * signs)[valid].sum(), [*model.parameters()])
    wanted = torch.autograd.grad((alone * signs)[valid].sum(), [*model.parameters()])
    torch.testing.assert_close(given, wanted, rtol=1e-3, atol=1e-4)


def test_a_balance_loss_that_the_model_does_not_have_is_refused(tmp_path: Path) -> None:
    flags = ("model.config=doge", f"model.overrides={{{SMALL}, output_router_logits=true}}")
    with refused():
        build_components(job(tmp_path, *flags))


def test_a_balance_loss_without_effect_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reentrant = "memory.activation_checkpointing={type=full, reentrant=true}"
    with refused():
        train(job(tmp_path, *MIXTRAL, reentrant))
    monkeypatch.setattr("setpoint.model.huggingface.language_model.COEFFICIENTS", ())
    with refused():
        build_components(job(tmp_path, *MIXTRAL))


def test_a_run_goes_on_without_its_config_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved(tmp_path / "theirs", "llama", vocab_size=257)
    named = (f"model.config={folder}", "schedule=constant", "evaluation.every=2 steps")
    whole = train(job(tmp_path, *named, "duration=6 steps"), directory=tmp_path / "whole").directory
    run = train(job(tmp_path, *named, "duration=4 steps"), directory=tmp_path / "run").directory
    folder.rename(tmp_path / "elsewhere")
    words = ["train", str(run), "--duration", "6 steps", "--tracking.progress", "lines"]
    assert main([*words, "--dry-run"]) == 0
    assert main(words) == 0
    line = f"there is no config.json in {folder}; using the copy in {run}/checkpoints/step-00000004"
    assert capsys.readouterr().out.count(line) == 2
    assert_same_run(run, whole)
    # Where no checkpoint keeps it, the field is named that says where it was.
    for checkpoint in (run / "checkpoints").glob("step-*"):
        (checkpoint / "pretrained.json").unlink()
    assert main(words) == 2
    assert "model.config" in capsys.readouterr().err


def test_a_run_is_loaded_and_written_as_transformers_does(tmp_path: Path) -> None:
    import transformers

    run = train(gpt2(tmp_path, "duration=4 steps", "evaluation=null", "checkpoint.keep_best=true"))
    model = load_pretrained(run.directory)
    assert same_tensors(weights(model), weights(run.components.model))
    for dtype in (None, "bf16"):
        folder = save_pretrained(model, tmp_path / f"exported-{dtype}", dtype=dtype)
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
        assert theirs.dtype == (torch.bfloat16 if dtype else torch.float32)
        wanted = model.get_parameter("model.transformer.wte.weight")
        assert torch.equal(theirs.lm_head.weight.float(), wanted.to(theirs.dtype).float())
        # Ours reads it, too.
        load_pretrained(folder)


def test_it_starts_from_weights_and_takes_overrides(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = saved(tmp_path / "theirs", "llama", vocab_size=257)
    capfd.readouterr()
    made = build_components(job(tmp_path, f"model.pretrained={folder}"))
    assert "Loading weights" not in capfd.readouterr().err
    ours = load_pretrained(folder)
    key = "model.model.layers.0.mlp.up_proj.weight"
    assert torch.equal(
        made.model.get_parameter(key), ours.get_parameter("layers.0.feed_forward.up.weight")
    )
    fresh = build_components(job(tmp_path, f"model.config={folder}"))
    assert not same_tensors(weights(made.model), weights(fresh.model))
    less = build_components(
        job(tmp_path, f"model.config={folder}", "model.overrides.num_hidden_layers=1")
    )
    assert "model.model.layers.1.mlp.up_proj.weight" not in less.model.state_dict()
    # Weights of a run of the same kind do as well, if the architecture is named.
    run = train(job(tmp_path, f"model.config={folder}", "duration=2 steps")).directory
    again = build_components(job(tmp_path, f"model.config={folder}", f"model.pretrained={run}"))
    assert same_tensors(weights(again.model), weights(load_pretrained(run)))


def test_files_that_fail_while_they_are_read_are_an_error_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is mapped, so that neither a load nor a step after it can end by SIGBUS."""
    folder = saved(tmp_path / "theirs", "llama", vocab_size=257)
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    made = build_components(job(tmp_path, f"model.pretrained={folder}"))
    assert str(folder) not in Path("/proc/self/maps").read_text()
    size, listing = file.stat().st_size, builder.dense_tensors

    def shortened(directory: Path) -> dict[str, TensorInfo]:
        found = listing(directory)
        os.truncate(file, size // 2)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(builder, "dense_tensors", shortened)
        with refused(RunError):
            build_components(job(tmp_path, f"model.pretrained={folder}"))
    del made
    file.write_bytes(whole)
    failing = MagicMock(side_effect=OSError(errno.EIO, os.strerror(errno.EIO)))
    monkeypatch.setattr(os, "preadv", failing)
    with refused():
        build_components(job(tmp_path, f"model.pretrained={folder}"))


def test_what_a_directory_says_of_sampling_is_kept(tmp_path: Path) -> None:
    """As `from_pretrained` of a directory does, also where only config.json says it."""
    folder = saved(tmp_path / "theirs", "llama", vocab_size=257)
    path = folder / "generation_config.json"
    for says in (path, folder / "config.json"):
        says.write_text(json.dumps({**json.loads(says.read_text()), "eos_token_id": 77}))
        made: Any = build_components(job(tmp_path, f"model.pretrained={folder}")).model
        assert made.model.generation_config.eos_token_id == 77
        path.unlink(missing_ok=True)


def test_what_cannot_be_trained_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = saved(tmp_path / "small", "llama")
    large = saved(tmp_path / "large", "llama", vocab_size=257)
    damaged = Path(shutil.copytree(large, tmp_path / "damaged"))
    keys = json.loads((damaged / "config.json").read_text())
    (damaged / "config.json").write_text(json.dumps({**keys, "num_hidden_layers": 4}))
    cases: dict[str, tuple[str, ...]] = {
        "a vocabulary that is too small": (f"model.config={small}",),
        "sequences that are too long": (f"model.config={large}", "model.max_sequence_length=65"),
        "a key that there is not": (f"model.config={large}", "model.overrides.num_layer=2"),
        "a value that cannot be": (
            f"model.config={large}",
            "model.overrides.num_hidden_layers=two",
        ),
        "a kind that there is not": ("model.config=lama",),
        "no directory": (f"model.config={tmp_path}/nowhere",),
        "no language model": ("model.config=vit",),
        "heads that cannot be shared": (
            f"model.config={large}",
            "model.overrides.num_key_value_heads=3",
        ),
        "tokens that see those behind them": (
            "model.config=bert",
            "model.overrides={hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, "
            "intermediate_size: 16}",
        ),
        "weights that lack tensors": (f"model.pretrained={damaged}",),
        "attention that the family does not have": (
            "model.config=gpt_oss",
            "model.attention_backend=sdpa",
        ),
        "attention of a model without any": (
            "model.config=mamba",
            "model.overrides={hidden_size: 16, num_hidden_layers: 1}",
            "model.attention_backend=setpoint",
        ),
        "more experts for a token than there are": (
            *MIXTRAL,
            "model.overrides.num_experts_per_tok=5",
        ),
        "an activation that there is not": (*MIXTRAL, "model.overrides.hidden_act=foo"),
        "attention that is not installed": (*MIXTRAL, "model.attention_backend=flash_attention_2"),
    }
    told: list[str] = []
    for case, flags in cases.items():
        made = job(tmp_path, *flags)
        problems = verify(made, {"files", "import"}).problems
        with pytest.raises(SetpointError) as caught:
            build_components(made)
        error = caught.value
        told.append(f"{case}:\n{error}\n")
        if isinstance(error, Unfit):  # both say the same
            said = [(f"model.{error.problem.path}", error.problem.message)]
            assert [(each.path, each.message) for each in problems] == said, case
        else:
            assert problems, case
    with pytest.raises(ConfigError) as nothing:
        job(tmp_path)
    told.append(f"nothing named:\n{nothing.value}\n")
    with pytest.raises(ConfigError) as nothing:
        job(tmp_path, "model.config=null")
    told.append(f"null:\n{nothing.value}\n")
    compare("model/huggingface_refused", "\n".join(told).replace(str(tmp_path), "HERE"))


def test_without_transformers_it_is_said_at_check_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = gpt2(tmp_path)
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "transformers" else real(name)
    )
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert not preflight(made).problems
    assert any("transformers" in reason for reason in preflight(made).skipped)
    problems = verify(made, {"import"}).problems
    assert [problem.hint for problem in problems] == ["Install 'setpoint[huggingface]'."]
    flash = gpt2(tmp_path, "model.attention_backend=flash_attention_2")
    assert [problem.path for problem in verify(flash, {"import"}).problems] == ["model.config"]
    with refused():
        build_components(made)


def test_attention_that_computes_something_else_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First weights are so small that it would not show in the logits."""
    from transformers.models.llama import modeling_llama

    real = modeling_llama.eager_attention_forward

    def capped(module: Any, query: Any, key: Any, value: Any, mask: Any, **named: Any) -> Any:
        return real(module, torch.tanh(query / 50) * 50, key, value, mask, **named)

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", capped)
    flags = ("model.config=llama", f"model.overrides={{{SMALL}, {HEADS}}}")
    assert build_components(job(tmp_path, *flags)).model.attention == "sdpa"
    with refused(Unfit):
        build_components(job(tmp_path, *flags, "model.attention_backend=setpoint"))
