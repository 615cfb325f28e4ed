import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from setpoint.model import config_from_pretrained, load_pretrained

from ...support.snapshots import compare, refusals
from .ours import directory


def fake(monkeypatch: pytest.MonkeyPatch, answer: Any) -> list[tuple[Any, ...]]:
    """Let the hub give an answer or raise it; the calls that it gets."""
    import huggingface_hub

    calls: list[tuple[Any, ...]] = []

    def snapshot_download(
        name: str, *, revision: str | None, allow_patterns: list[str], **_: object
    ) -> str:
        calls.append((name, revision, tuple(allow_patterns)))
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return calls


def test_a_model_is_fetched_with_the_files_that_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = directory(tmp_path / "cache")
    calls = fake(monkeypatch, folder)
    monkeypatch.chdir(tmp_path)
    config_from_pretrained("org/name@v1.0")
    load_pretrained("org/name")
    (first, revision, patterns), (second, none, more) = calls
    assert (first, revision, second, none) == ("org/name", "v1.0", "org/name", None)
    assert "config.json" in patterns
    assert not [pattern for pattern in patterns if pattern.endswith(".safetensors")]
    assert {*more} - {*patterns} == {"model*.safetensors", "model.safetensors.index.json"}


def test_a_directory_wins_over_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake(monkeypatch, RuntimeError("asked"))
    directory(tmp_path / "org/name")
    monkeypatch.chdir(tmp_path)
    load_pretrained("org/name")
    assert calls == []


def test_what_the_hub_refuses_is_said_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import errors

    def http(kind: Any) -> Exception:
        return kind.__new__(kind)

    monkeypatch.chdir(tmp_path)
    answers: dict[str, Any] = {
        "unknown": http(errors.RepositoryNotFoundError),
        "gated": http(errors.GatedRepoError),
        "unknown revision": http(errors.RevisionNotFoundError),
        "offline": errors.LocalEntryNotFoundError("no"),
        "told to be offline": errors.OfflineModeIsEnabled("no"),
        "no id": errors.HFValidationError("no"),
        "anything else": ConnectionResetError(104, "reset by peer"),
        "no model": tmp_path,
    }

    def ask(answer: Any) -> None:
        fake(monkeypatch, answer)
        load_pretrained("org/name@main")

    told = refusals({case: partial(ask, answer) for case, answer in answers.items()})
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    more = refusals({"no package": partial(load_pretrained, "org/name")})
    compare("model/pretrained_hub", f"{told}\n{more}")
