"""Weights that grow rows for tokens that are added to their tokenizer."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from setpoint.checkpoint.repartition import convert
from setpoint.cli.main import main
from setpoint.config import SetpointError, verify
from setpoint.config.draft.walk import to_minimal
from setpoint.model import config_from_pretrained, load_pretrained
from setpoint.model.build import skeleton
from setpoint.model.pretrained.fill import TensorReader
from setpoint.model.pretrained.load import start_weights
from setpoint.model.pretrained.locate import locate, locate_here
from setpoint.plan.preflight import preflight
from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.run import train

from ...data.tokenizers_here import byte_level
from ...support.snapshots import compare, refusals, refused
from ...train.small import events, small_job
from .ours import directory
from .theirs import saved

TOKENS, ADDED = 294, ["<|tool|>", "<|result|>"]
SHORT = (
    "duration=2 steps",
    "evaluation=null",
    "checkpoint.keep_best=true",
    "data.sources=[{type=random, documents=40, length=60}]",
)
THEIRS = ("dim", "layers", "heads", "dropout", "type")
FAMILIES = {"llama": {}, "gpt2": {"n_embd": 32}, "llama tied": {"tie_word_embeddings": True}}


def base(folder: Path, name: str) -> Path:
    """A model of transformers, with a tokenizer beside its weights."""
    kind, keys = name.partition(" ")[0], FAMILIES[name]
    weights = saved(folder / "base", kind, vocab_size=TOKENS, **keys)
    byte_level(weights)
    settings = weights / "tokenizer_config.json"  # transformers takes no token in a mapping
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "bos_token": "<|begin|>"}))
    return weights


def ours(folder: Path, weights: Path, *flags: str, **fields: Any) -> Job:
    """A job that trains weights as a transformer of ours, with two tokens more."""
    section = to_minimal(config_from_pretrained(weights))
    section |= {"type": "transformer", "pretrained": str(weights), "vocab_size": None, **fields}
    return with_tokens(folder, weights, f"model={json.dumps(section)}", *flags)


def theirs(folder: Path, weights: Path, *flags: str) -> Job:
    """The same, as the model of transformers that it is."""
    size = f"overrides: {{vocab_size: {TOKENS + len(ADDED)}}}"
    model = f"model={{type: huggingface, pretrained: {weights}, {size}}}"
    return with_tokens(folder, weights, model, *flags)


def with_tokens(folder: Path, weights: Path, *flags: str) -> Job:
    tokenizer = {"type": "huggingface", "path": str(weights), "added": ADDED}
    named = f"tokenizer={json.dumps(tokenizer)}"
    return small_job(folder, *SHORT, named, *flags, without=THEIRS)


def means(matrix: torch.Tensor) -> torch.Tensor:
    return matrix[:TOKENS].double().mean(0).float().expand(len(ADDED), -1)


@pytest.mark.parametrize(("name", "rounded"), [*zip(FAMILIES, (1, 64, 64), strict=True)])
def test_new_rows_are_the_mean_and_old_logits_stay(tmp_path: Path, name: str, rounded: int) -> None:
    import transformers

    weights = base(tmp_path, name)
    job = ours(tmp_path, weights, f"model.vocab_multiple_of={rounded}")
    assert not preflight(job).problems
    components = build_components(job)
    model: Any = components.model.eval()
    assert components.tokenizer.vocab_size == model.vocab_size == TOKENS + 2
    before: Any = transformers.AutoModelForCausalLM.from_pretrained(weights).eval()
    old = before.get_input_embeddings().weight.detach()
    matrices = {"embedding.weight": old, "output.weight": before.lm_head.weight.detach()}
    for ours_of, matrix in matrices.items():
        found = dict(model.named_parameters()).get(ours_of)
        if found is None:
            assert model.config.tie_embeddings
            continue
        assert len(found) == -(-(TOKENS + 2) // rounded) * rounded
        assert torch.equal(found[:TOKENS], matrix)
        torch.testing.assert_close(found[TOKENS : TOKENS + 2], means(matrix), rtol=0, atol=1e-7)
        assert not found[TOKENS + 2 :].any()
    tokens = torch.arange(12).reshape(2, 6)
    with torch.no_grad():
        wanted = before(tokens).logits
        torch.testing.assert_close(model(tokens)[..., :TOKENS], wanted, rtol=1e-4, atol=1e-5)


def test_a_tokenizer_that_is_not_that_of_the_weights_is_a_caution(tmp_path: Path) -> None:
    weights = base(tmp_path, "llama")
    copied = shutil.copytree(weights, tmp_path / "copied")
    other = byte_level(tmp_path / "other", special=("<|a|>",))  # one token before the others
    for path, expected in ((copied, []), (other, ["other-tokenizer"])):
        job = ours(tmp_path, weights, f"tokenizer.path={path}")
        assert [caution.code for caution in verify(job, ("files",)).cautions] == expected


def test_a_run_with_new_tokens_is_what_transformers_loads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An adapter with the matrices trained whole: these change, and nothing else but it."""
    import transformers

    weights = base(tmp_path, "llama")
    adapter = "adapter={type: lora, rank: 2, train: [embedding, ^output]}"
    frozen = ours(tmp_path, weights, "adapter=lora")
    (caution,) = verify(frozen, ("files",)).cautions
    assert (caution.code, caution.valid) == ("added-tokens-frozen", ("[^embedding, ^output]",))
    tied = ours(tmp_path, base(tmp_path / "tied", "llama tied"), "adapter=lora")
    assert verify(tied, ("files",)).cautions[0].valid == ("[^embedding]",)
    job = ours(tmp_path, weights, adapter, "optimizer.lr=0.1")
    assert not verify(job, ("files",)).cautions
    run = train(job)
    (start,) = events(run.directory, "start")
    assert start["pretrained"]["grown"] == {"from": TOKENS, "to": TOKENS + 2}
    started = dict(build_components(job).model.named_parameters())
    changed = {
        name for name, each in run.components.model.named_parameters()
        if not torch.equal(each, started[name])
    }  # fmt: skip
    assert {"embedding.weight", "output.weight"} <= changed
    assert all(".adapter." in name or name.count(".") == 1 for name in changed), changed
    assert main(["export", str(run.directory), str(tmp_path / "merged")]) == 0
    assert main(["export", str(run.directory), str(tmp_path / "peft"), "--adapter"]) == 0
    capsys.readouterr()
    made: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(tmp_path / "merged")
    assert made.config.vocab_size == len(tokenizer) == TOKENS + 2
    assert tokenizer.encode("hello<|result|>")[-1] == TOKENS + 1
    assert tokenizer.decode([TOKENS], skip_special_tokens=True) == ""
    tokens = torch.tensor([[5, TOKENS, 7, TOKENS + 1, 9]])
    again = load_pretrained(tmp_path / "merged")
    with torch.no_grad():
        wanted = run.components.model.eval()(tokens)
        torch.testing.assert_close(made(tokens).logits, wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(again(tokens), wanted, rtol=1e-4, atol=1e-5)
    # PEFT's form belongs to the base with rows for the tokens.
    import peft

    grown: Any = transformers.AutoModelForCausalLM.from_pretrained(weights)
    grown.resize_token_embeddings(TOKENS + 2, mean_resizing=False)
    adapted: Any = peft.PeftModel.from_pretrained(grown, tmp_path / "peft").eval()
    with torch.no_grad():
        torch.testing.assert_close(adapted(tokens).logits, wanted, rtol=1e-4, atol=1e-5)


def test_a_run_grows_from_another(tmp_path: Path) -> None:
    """Also where its padding has room for the tokens, and where ranks wrote its parts."""
    weights = base(tmp_path, "llama")
    first = ours(tmp_path, weights, "tokenizer.added=[]", vocab_multiple_of=64)
    step = train(first).directory / "checkpoints/step-00000002"
    divided = tmp_path / "divided"
    convert(step, divided, 2)
    whole = dict(load_pretrained(step).named_parameters())
    assert len(whole["embedding.weight"]) == 320
    less = ours(tmp_path, weights, vocab_multiple_of=1, pretrained=str(step))
    (problem,) = preflight(less).problems
    assert (problem.path, problem.valid) == ("model.vocab_multiple_of", ("64",))
    with refused():
        build_components(less)
    for place, multiple, rows in ((step, 64, 320), (step, 128, 384), (divided, 128, 384)):
        job = ours(tmp_path, weights, vocab_multiple_of=multiple, pretrained=str(place))
        assert not preflight(job).problems
        found = dict(build_components(job).model.named_parameters())
        for name in ("embedding.weight", "output.weight"):
            assert found[name].shape[0] == rows
            assert torch.equal(found[name][:TOKENS], whole[name][:TOKENS])
            new = found[name][TOKENS : TOKENS + 2]
            torch.testing.assert_close(new, means(whole[name]), rtol=0, atol=1e-7)
            assert not found[name][TOKENS + 2 :].any()


def test_parts_of_a_grown_matrix_are_those_of_the_whole(tmp_path: Path) -> None:
    """As ranks read them that hold some rows or columns."""
    weights = base(tmp_path, "llama")
    job = ours(tmp_path, weights, vocab_multiple_of=64)
    model: Any = skeleton(job.model, TOKENS + 2)
    found = start_weights(locate(str(weights)), model, job.model)  # pyright: ignore[reportArgumentType]
    whole = build_components(job).model.get_parameter("output.weight")
    for rows, columns in (((0, 320), (0, 32)), ((280, 300), (8, 24)), ((295, 320), (0, 32))):
        box = found.read(TensorReader(), "output.weight", torch.float32, (rows, columns))
        assert torch.equal(box, whole[slice(*rows), slice(*columns)])


@pytest.mark.parametrize("name", FAMILIES)
def test_a_model_of_transformers_grows(tmp_path: Path, name: str) -> None:
    import transformers

    weights = base(tmp_path, name)
    job = theirs(tmp_path, weights)
    assert not preflight(job).problems
    run = train(job, directory=tmp_path / "run")
    model: Any = build_components(job).model.eval()
    before: Any = transformers.AutoModelForCausalLM.from_pretrained(weights).eval()
    for now, then in (
        (model.model.get_input_embeddings(), before.get_input_embeddings()),
        (model.model.get_output_embeddings(), before.get_output_embeddings()),
    ):
        assert torch.equal(now.weight[:TOKENS], then.weight)
        torch.testing.assert_close(now.weight[TOKENS:], means(then.weight), rtol=0, atol=1e-7)
    tokens = torch.arange(12).reshape(2, 6)
    with torch.no_grad():
        assert torch.equal(model(tokens)[..., :TOKENS], before(tokens).logits)
    # From a run of the same kind, too.
    more = f"model.pretrained={run.directory}", f"model.config={weights}"
    again = theirs(tmp_path, weights, *more, "model.overrides.vocab_size=300")
    grown: Any = build_components(again).model
    trained: Any = run.components.model
    assert grown.vocab_size == 300
    assert torch.equal(
        grown.model.get_input_embeddings().weight[: TOKENS + 2],
        trained.model.get_input_embeddings().weight,
    )
    assert main(["export", str(run.directory), str(tmp_path / "exported")]) == 0
    made: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported").eval()
    assert made.config.vocab_size == TOKENS + 2
    assert len(transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")) == TOKENS + 2
    with torch.no_grad():
        torch.testing.assert_close(made(tokens).logits, trained.eval()(tokens))


def test_check_refuses_what_train_refuses(tmp_path: Path) -> None:
    weights = base(tmp_path, "llama")
    few = "model.overrides.vocab_size"
    cases = {
        "294 embedding rows are fewer than the 296": theirs(tmp_path, weights, f"{few}=294"),
        "is already a token of": theirs(tmp_path, weights, "tokenizer.added=[<|endoftext|>]"),
        "the pretrained weights have 294": small_job(
            tmp_path, *SHORT, "tokenizer=bytes", "model={type: huggingface, pretrained: "
            f"{weights}, overrides: {{vocab_size: 260}}}}", without=THEIRS
        ),
        "the pretrained weights have 294, but the tokenizer has 257 tokens": small_job(
            tmp_path, *SHORT, "model=" + json.dumps({
                **to_minimal(config_from_pretrained(weights)), "type": "transformer",
                "pretrained": str(weights), "vocab_size": None,
            }), without=THEIRS
        ),
    }  # fmt: skip
    for words, job in cases.items():
        (problem,) = preflight(job).problems
        assert words in problem.message
        with refused():
            build_components(job)


def test_what_is_no_model_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    directory(tmp_path / "models/llama")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.safetensors").write_bytes(b"")
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    assert locate_here("models/llama") is not None
    assert locate_here("organization/name@v2") is None
    names = ["models/lama", "llama", "/nowhere/model", "empty", "file.safetensors", "run", "a b/c"]
    names += ["s3://bucket/model"]
    cases = {name: partial(load_pretrained, name) for name in names}
    compare("model/pretrained_not_found", refusals(cases))
    with pytest.raises(SetpointError):
        locate_here("a" * 300)
