"""Needs of losses and data of other sections, checked before anything is built."""

import json
from pathlib import Path

from setpoint.config import Problem
from setpoint.config.resolving.checks import verify

from ...data.tokenizers_here import CHAT, END, byte_level
from ...support.snapshots import compare
from ..small import small_job
from .refusals import refusals

IMPORTED = (
    "model=import", "model.target=torch.nn.Embedding",
    "model.num_embeddings=257", "model.embedding_dim=257",
)  # fmt: skip
REFUSED: dict[str, tuple[str, ...]] = {
    "hidden states of an imported model": ("loss=chunked_cross_entropy", *IMPORTED),
    "a token that is not there": ("loss.ignore_index=257",),
    "the weight of such": ("loss.token_weights={300: 0.5}",),
    "no token": ("loss.token_weights={x: 1, '01': 2, 1.5: 3}",),
    "a token that is left out": ("loss.token_weights={7: 2}", "loss.ignore_index=7"),
    "no weights": ("loss.token_weights={}",),
    "another type's field": ("loss=cross_entropy", "loss.chunk_size=8"),
    "another system's name": ("loss.ce_chunk_size=4096",),
}  # fmt: skip


def test_what_is_refused(tmp_path: Path) -> None:
    compare("train/loss", refusals(tmp_path, REFUSED))


def test_what_is_taken(tmp_path: Path) -> None:
    assert small_job(tmp_path, "loss=chunked_cross_entropy", "model.logit_soft_cap=30")
    assert small_job(tmp_path, "loss.token_weights={33: 0.5}")
    assert small_job(tmp_path, *IMPORTED, "loss.ignore_index=256")


def test_which_tokens_are_left_out(tmp_path: Path) -> None:
    cases: dict[tuple[str, ...], tuple[int, ...]] = {
        ("loss.token_weights={33: 0.5}",): (),
        ("loss.ignore_index=40",): (40,),
        ("loss.token_weights={33: 0, 7: 0, 8: 2}",): (7, 33),
        ("loss.token_weights={33: 0}", "loss.ignore_index=4"): (4, 33),
        ("loss=import", "loss.target=torch.nn.CrossEntropyLoss"): (),
    }
    for flags, wanted in cases.items():
        assert small_job(tmp_path, *flags).loss.left_out == wanted


CHATS = "data.sources=[{type=conversations, paths=[%s]%s}]"


def problems(folder: Path, template: str, *flags: str, row: str = "") -> list[Problem]:
    path = folder / "chats.jsonl"
    path.write_text(row or json.dumps({"prompt": "a", "completion": "b"}))
    more = f", template='{template}'" if template else ""
    job = small_job(folder, CHATS % (path, more), *flags)
    return list(verify(job, {"files"}).problems)


def test_tokens_that_are_missing(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, "chatml")
    assert found.path == "data.sources.0.template"
    assert "<|im_start|>, <|im_end|>, and the tokenizer 'bytes'" in found.message
    assert "setpoint tokenizer train --template" in found.hint
    byte_level(tmp_path / "with", special=CHAT)
    byte_level(tmp_path / "without")
    tokenizer = "tokenizer={type=huggingface, path=%s}"
    assert not problems(tmp_path, "chatml", tokenizer % (tmp_path / "with"))
    (found,) = problems(tmp_path, "chatml", tokenizer % (tmp_path / "without"))
    assert "which" not in found.message and str(tmp_path / "without") in found.message


def test_answers_that_nothing_ends_are_a_caution(tmp_path: Path) -> None:
    byte_level(tmp_path / "tok", special=CHAT)
    tokenizer = f"tokenizer={{type=huggingface, path={tmp_path / 'tok'}}}"
    ended, endless = tmp_path / "ended.jinja", tmp_path / "endless.jinja"
    loop = "{%% for m in messages %%}{{ %s + m.content + '\\n' }}{%% endfor %%}"
    ended.write_text(loop % "('<|im_start|>' if m.role == 'user' else '')")
    endless.write_text(loop % "m.role + ': '")

    def codes(template: Path, source: str = "sources") -> list[str]:
        (tmp_path / "c.jsonl").write_text('{"prompt": "a", "completion": "b"}')
        chats = f"[{{type=conversations, paths=[{tmp_path / 'c.jsonl'}], template='{template}'}}]"
        job = small_job(tmp_path, f"data.{source}={chats}", tokenizer)
        return [caution.code for caution in verify(job, {"files"}).cautions]

    missing = tmp_path / "missing.jinja"
    missing.write_text(loop % "'<|speaker|>' + eos_token")
    assert "template-markers-as-text" in codes(missing)
    assert "template-markers-as-text" not in codes(ended)
    assert "no-stop-token" in codes(endless)
    assert "no-stop-token" not in codes(ended)
    assert "no-stop-token" not in codes(endless, "validation")


def test_texts_that_spell_control_tokens_are_a_caution(tmp_path: Path) -> None:
    byte_level(tmp_path / "tok", special=CHAT)
    tokenizer = f"tokenizer={{type=huggingface, path={tmp_path / 'tok'}}}"

    def warns(name: str, text: str, *more: str) -> bool:
        (tmp_path / name).write_text(text)
        source = f"data.sources=[{{type=text, paths=[{tmp_path / name}]}}]"
        cautions = verify(small_job(tmp_path, source, tokenizer, *more), {"files"}).cautions
        return "control-tokens-in-text" in [caution.code for caution in cautions]

    row = json.dumps({"text": "<|im_start|>user\na<|im_end|>"})
    assert warns("rendered.jsonl", row)
    assert not warns("plain.txt", "a b c")
    stories = f"once{END}twice"
    assert warns("stories.txt", stories)
    assert not warns("stories.txt", stories, f"data.sources.0.separator={END}")
    lines = f"once\n{END}\ntwice"
    assert not warns("stories.txt", lines, f'data.sources.0.separator="\\n{END}\\n"')


def test_rows_of_messages_need_a_template_and_tokens_none(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, "")
    assert "the tokenizer 'bytes' has no chat template" in found.message
    assert not problems(tmp_path, "", row='{"input_ids": [1, 2]}')
    # What is on another machine is looked at when the run starts.
    remote = "data.sources=[{type=conversations, paths=['memory://none/chats.jsonl']}]"
    assert not list(verify(small_job(tmp_path, remote), {"files"}).problems)


def test_templates_of_texts_that_are_evaluated(tmp_path: Path) -> None:
    chats = f"[{{type=conversations, paths=[{tmp_path / 'chats.jsonl'}], template=chatlm}}]"
    (found,) = problems(tmp_path, "plain", f"data.validation={chats}")
    assert found.path == "data.validation.0.template"
    sets = f"evaluation.datasets=[{{name=a, sources={chats}}}]"
    (found,) = problems(tmp_path, "plain", sets)
    assert found.path == "evaluation.datasets.0.sources.0.template"
    assert "'chatlm' is neither the name of a chat template nor a file" in found.message


def test_a_phase_in_epochs_is_refused_once(tmp_path: Path) -> None:
    sources = ("data.sources=[{type: stdlib, weight: 1}, {type: random, weight: 1}]",)
    phases = "data.phases=[{start: 5 steps, lr_factor: 2}, {start: 0.1 epochs, lr_factor: 3}]"
    text = refusals(tmp_path, {"a phase in epochs": (*sources, phases)})
    assert text.count("data.phases.1.start") == 1 and "is not a number of steps" in text
