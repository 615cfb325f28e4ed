"""The files of an adapter in PEFT's format, as far as they are known without torch."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setpoint.config import Problem, SetpointError

if TYPE_CHECKING:
    from setpoint.model.config import Transformer

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_UNKNOWN = ("use_bdlora", "arrow_config", "alora_invocation_tokens", "trainable_token_indices",
            "layer_replication", "target_parameters")  # fmt: skip
"""Settings of PEFT that change what an adapter computes in other ways than these."""


class PeftFiles:
    """The files of an adapter.

    Raises:
        SetpointError: they are not there, or are of another kind than LoRA and DoRA.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(os.path.expanduser(path))
        try:
            self.keys: dict[str, Any] = json.loads((self.path / CONFIG).read_bytes())
        except FileNotFoundError:
            raise SetpointError(f"{path} holds no {CONFIG}: it is no adapter of PEFT") from None
        except (OSError, ValueError, RecursionError) as error:
            raise SetpointError(f"{path}/{CONFIG} cannot be read: {error}") from None
        if not isinstance(self.keys, dict) or self.keys.get("peft_type") != "LORA":
            kind = self.keys.get("peft_type") if isinstance(self.keys, dict) else None
            raise SetpointError(f"{path} is an adapter of the kind {kind}\nValid: LORA, with DoRA")
        if unknown := [name for name in _UNKNOWN if self.keys.get(name)]:
            raise SetpointError(f"{path}/{CONFIG}: {unknown[0]} is not known here")
        if not (self.path / WEIGHTS).is_file():
            raise SetpointError(
                f"{path} holds no {WEIGHTS}. PEFT writes it by save_pretrained; files with pickles "
                f"(.bin) are not read"
            )

    def digest(self) -> str:
        """SHA-256 of the weights."""
        with open(self.path / WEIGHTS, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def scale_of(self, module: str, rank: int) -> float:
        """What the update of a module is multiplied by."""
        alpha = float(self._of("alpha_pattern", module, self.keys.get("lora_alpha", rank)))
        return alpha / rank**0.5 if self.keys.get("use_rslora") else alpha / rank

    def _of(self, name: str, module: str, usual: Any) -> Any:
        """The value for a module, of which PEFT matches the end, or all of it."""
        patterns: Mapping[str, Any] = self.keys.get(name) or {}
        matching = (v for k, v in patterns.items() if re.match(rf"(.*\.)?({k})$", module))
        return next(matching, usual)


def adapter_file_problems(config: Transformer) -> Iterator[Problem]:
    """Find adapters whose files are not there."""
    for index, each in enumerate(config.adapters):
        try:
            PeftFiles(each.path)
        except SetpointError as error:
            yield Problem(f"adapters.{index}.path", str(error))
