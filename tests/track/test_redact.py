"""Secrets stay out of records."""

from __future__ import annotations

import pytest

from setpoint.track.redact import hide_secrets, is_secret_name, redact_command, without_secrets


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "--tracking.wandb.api_key", "AWS_SECRET_ACCESS_KEY", "password", "api-key"]
)
def test_secret_names(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["--tokens", "tokenizer.type", "keys", "monkey", "--keep", "seed"])
def test_other_names(name: str) -> None:
    assert not is_secret_name(name)


def test_command() -> None:
    command = [
        "setpoint", "train", "tiny", "--optimizer.lr", "3e-4", "tracking.wandb.api_key=abc",
        "--hub.token", "def", "--token=ghi", "--password", "--steps", "5",
        "--data=https://me:pw@host/x", "hf_abcdefghijklmnopqrstuvwxyz", "batch.tokens=4096",
    ]  # fmt: skip
    recorded = redact_command(command)
    assert recorded == [
        "setpoint", "train", "tiny", "--optimizer.lr", "3e-4", "tracking.wandb.api_key=***",
        "--hub.token", "***", "--token=***", "--password", "--steps", "5",
        "--data=https://***@host/x", "***", "batch.tokens=4096",
    ]  # fmt: skip


def test_texts() -> None:
    assert hide_secrets("git@host:x https://host/x@y") == "git@host:x https://host/x@y"
    assert hide_secrets("key=AKIAABCDEFGHIJKLMNOP;") == "key=***;"


def test_data_of_any_shape() -> None:
    url = "https://me:hunter2@host"
    data = {"a": [url, 3, None], url: {"b": (url,)}}
    hidden = "https://***@host"
    assert without_secrets(data) == {"a": [hidden, 3, None], hidden: {"b": [hidden]}}
