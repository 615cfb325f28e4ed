"""Prompts from a file."""

from __future__ import annotations

import json
import os
from pathlib import Path

from setpoint.config import SetpointError


def read_prompts(path: Path) -> list[str]:
    """Read the prompts of a file.

    Arguments:
        path: `.jsonl` with a text under "prompt" in each line; any other file holds a prompt in
            each line. Empty lines are left out.

    Raises:
        SetpointError: it cannot be read, is not UTF-8, holds no prompt, or a line is not what it
            should be, with its number.
    """
    try:
        text = Path(os.path.expanduser(path)).read_text(encoding="utf-8")
    except OSError as error:
        raise SetpointError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SetpointError(f"{path} is not UTF-8: {error}") from None
    # Not `splitlines`, which would also divide at characters that a text may hold.
    lines = [(number, line.removesuffix("\r")) for number, line in enumerate(text.split("\n"), 1)]
    found = [(number, line) for number, line in lines if line.strip()]
    if not found:
        raise SetpointError(f"{path} holds no prompt")
    if path.suffix == ".jsonl":
        return [_prompt_in(line, f"{path}:{number}") for number, line in found]
    return [line for _, line in found]


def _prompt_in(line: str, place: str) -> str:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise SetpointError(f"{place}: this is not JSON: {error}") from None
    prompt = value.get("prompt") if isinstance(value, dict) else None
    if not isinstance(prompt, str) or not prompt:
        raise SetpointError(f'{place}: expected a text under "prompt", as in {{"prompt": "def "}}')
    return prompt
