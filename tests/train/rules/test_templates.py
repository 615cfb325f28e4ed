"""Chat templates that do not fit the tokenizer, found without building it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from setpoint.config import Problem
from setpoint.config.resolving.checks import verify

from ...data.tokenizers_here import CHAT, byte_level
from ..small import small_job

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

    assert "no-stop-token" in codes(endless)
    assert "no-stop-token" not in codes(ended)
    assert "no-stop-token" not in codes(endless, "validation")


def test_rows_of_messages_need_a_template_and_tokens_none(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, "")
    assert "the tokenizer 'bytes' has no chat template of its own" in found.message
    assert not problems(tmp_path, "", row='{"input_ids": [1, 2]}')
    # What is on another machine is looked at when the run starts.
    remote = "data.sources=[{type=conversations, paths=['memory://none/chats.jsonl']}]"
    assert not list(verify(small_job(tmp_path, remote), {"files"}).problems)


@pytest.mark.parametrize(
    ("flags", "path"),
    [
        (("data.validation=[{type=conversations, paths=[%s], template=chatlm}]",),
         "data.validation.0.template"),
        (("evaluation.datasets=[{name=a, sources=[{type=conversations, paths=[%s], "
          "template=chatlm}]}]",), "evaluation.datasets.0.sources.0.template"),
    ],
)  # fmt: skip
def test_templates_of_texts_that_are_evaluated(
    tmp_path: Path, flags: tuple[str, ...], path: str
) -> None:
    given = [flag % (tmp_path / "chats.jsonl") for flag in flags]
    (found,) = problems(tmp_path, "plain", *given)
    assert found.path == path
    assert "'chatlm' is the name of no chat template, and no file" in found.message
