"""Files of a PEFT adapter, and their checks without torch."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setpoint.config import MissingPathError, Problem, RunError, SetpointError
from setpoint.files.tensor_header import read_header
from setpoint.model.pretrained.locate import Place, is_on_hub, locate_here

if TYPE_CHECKING:
    from setpoint.model.config import TransformerConfig

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BEFORE = "base_model.model."
"""Prefix of the names of modules in the files."""
LOW_RANK = re.compile(
    r"(?P<module>.+)\.lora_(?P<what>A|B|embedding_A|embedding_B|magnitude_vector)(\.weight)?"
)
"""Names of an adapter's own tensors; others are fully trained."""
BASE = ".base_layer"
"""Part of the names of base matrices, which PEFT writes with adapters of embeddings."""
_EMBEDDINGS, _HEAD = ("embed_tokens", "wte"), "lm_head"
_UNKNOWN = ("use_bdlora", "arrow_config", "alora_invocation_tokens", "trainable_token_indices",
            "layer_replication", "target_parameters", "use_qalora", "kasa_config",
            "monteclora_config")  # fmt: skip
"""PEFT settings that change an adapter's computation and are not supported."""
_OF_OTHER_BASE = ("pissa", "corda", "olora", "loftq", "lora_ga")
"""Prefixes of init_lora_weights with which PEFT subtracts the initial A and B from the base."""


class PeftFiles:
    """The files of an adapter.

    Raises:
        SetpointError: they are missing, or the adapter is neither LoRA nor DoRA.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(os.path.expanduser(path))
        try:
            self.keys: dict[str, Any] = json.loads((self.path / CONFIG).read_bytes())
        except NotADirectoryError:
            raise SetpointError(
                f"{path} is a file\nValid: the directory with {CONFIG} and {WEIGHTS}"
            ) from None
        except FileNotFoundError:
            kind = SetpointError if self.path.is_dir() else MissingPathError
            raise kind(f"{path} has no {CONFIG}, so it is not a PEFT adapter") from None
        except (OSError, ValueError, RecursionError) as error:
            raise SetpointError(f"{path}/{CONFIG} cannot be read: {error}") from None
        if not isinstance(self.keys, dict) or self.keys.get("peft_type") != "LORA":
            kind = self.keys.get("peft_type") if isinstance(self.keys, dict) else None
            raise SetpointError(f"{path} has peft_type = {kind}\nValid: LORA, with DoRA")
        if unknown := [name for name in _UNKNOWN if self.keys.get(name)]:
            raise SetpointError(f"{path}/{CONFIG}: {unknown[0]} is not supported")
        start = self.keys.get("init_lora_weights")
        if isinstance(start, str) and start.lower().startswith(_OF_OTHER_BASE):
            raise SetpointError(
                f"{path}/{CONFIG}: init_lora_weights = {start}: the adapter belongs to a base that "
                f"PEFT changed at the start, not to its base model\nValid: an adapter that "
                f"save_pretrained(path_initial_model_for_weight_conversion=...) has written"
            )
        if not (self.path / WEIGHTS).is_file():
            raise SetpointError(
                f"{path} has no {WEIGHTS}. save_pretrained of PEFT writes it; pickles (.bin) are "
                f"not read"
            )

    def saved(self) -> list[str]:
        """Names of fully trained tensors, without base matrices.

        Raises:
            RunError: the weights are damaged.
        """
        names = [name.removeprefix(BEFORE) for name in read_header(self.path / WEIGHTS)]
        return [name for name in names if not LOW_RANK.fullmatch(name) and BASE not in name]

    def modules(self) -> set[str]:
        """Last components of the names of all adapted or fully trained modules.

        Raises:
            RunError: the weights are damaged.
        """
        modules: set[str] = set()
        for name in read_header(self.path / WEIGHTS):
            match = LOW_RANK.fullmatch(name)
            module = match["module"] if match else name.rpartition(".")[0].removesuffix(BASE)
            modules.add(module.rpartition(".")[2])
        return modules

    def digest(self) -> str:
        """SHA-256 of the weights."""
        return _hash(self.path / WEIGHTS)

    def scale_of(self, module: str, rank: int) -> float:
        """Scale of a module's update."""
        alpha = float(self._alpha(module, self.keys.get("lora_alpha", rank)))
        return alpha / rank**0.5 if self.keys.get("use_rslora") else alpha / rank

    def _alpha(self, module: str, default: Any) -> Any:
        """Alpha of a module; PEFT matches patterns against the end of its name."""
        patterns: Mapping[str, Any] = self.keys.get("alpha_pattern") or {}
        matching = (v for k, v in patterns.items() if re.match(rf"(.*\.)?({k})$", module))
        return next(matching, default)


def adapter_file_problems(config: TransformerConfig) -> Iterator[Problem]:
    """Report adapters with missing files, or for another base model."""
    saved: dict[str, int] = {}
    for index, adapter in enumerate(config.adapters):
        path = f"adapters.{index}.path"
        try:
            files = PeftFiles(adapter.path)
            for name in files.saved():
                if saved.setdefault(name, index) != index:
                    yield Problem(path, saves_again(name, config.adapters[saved[name]].path))
                    break
            if config.tie_embeddings and (one := one_of_tied(files.modules())):
                yield Problem(path, changes_one(one), also=("tie_embeddings",), valid=(VALID_TIED,))
            base = files.keys.get("base_model_name_or_path")
            difference = None
            if isinstance(base, str) and base and config.pretrained is not None:
                difference = _difference(base, config.pretrained)
        except (SetpointError, RunError) as error:
            yield Problem.of(error, path)
            continue
        if difference is not None:
            yield Problem(
                path,
                f"was trained on {base}, {difference}",
                also=("pretrained",),
                hint=f"If these are the same weights, correct base_model_name_or_path in {CONFIG}.",
            )


VALID_TIED = "an adapter of both, as PEFT's ensure_weight_tying makes it"


def saves_again(name: str, other: str) -> str:
    """Message about a second adapter with the same fully trained matrix."""
    return f"replaces {name}, as {other} does; only one of them can"


def one_of_tied(modules: set[str]) -> str | None:
    """The embedding or the output matrix if an adapter changes only one of them."""
    matrices = [name for name in (*_EMBEDDINGS, _HEAD) if name in modules]
    return matrices[0] if len(matrices) == 1 else None


def changes_one(name: str) -> str:
    """Message about an adapter for only one of two tied matrices."""
    other = "embedding" if name == _HEAD else "output matrix"
    return (
        f"changes {name} and not the {other}, which are tied in the model, so that folding it in "
        "would change both"
    )


def _difference(base: str, pretrained: str) -> str | None:
    """Difference between an adapter's base model and the weights from which a run starts.

    Returns:
        None if there is none, or it is unknown because one of the two is not local or the formats
        differ.
    """
    if is_on_hub(base) and is_on_hub(pretrained):
        same = base.partition("@")[0] == pretrained.partition("@")[0]
        return None if same else f"and model.pretrained is {pretrained}"
    trained_on, start = _local_place(base), _local_place(pretrained)
    if trained_on is None or start is None or trained_on.kind != start.kind:
        return None
    if trained_on.directory.resolve() == start.directory.resolve():
        return None
    base_files, files = (
        {file.name: file for file in place.directory.glob("model*.safetensors")}
        for place in (trained_on, start)
    )
    if base_files.keys() != files.keys():
        return f"whose weight files differ from {pretrained}'s"
    for name, file in sorted(base_files.items()):
        if file.stat().st_size != files[name].stat().st_size or _hash(file) != _hash(files[name]):
            return f"whose {name} differs from that of {pretrained} in size or SHA-256"
    return None


def _local_place(name: str) -> Place | None:
    """Path of local weights; None for others, such as moved ones and Hub ids."""
    try:
        return locate_here(name)
    except SetpointError:
        return None


def _hash(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
