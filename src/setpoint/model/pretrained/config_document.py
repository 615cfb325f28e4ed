"""A config.json in which every key is read, known to have no effect, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from setpoint.config import ConfigError, SetpointError
from setpoint.model.pretrained.tensor_files import KEY, unread_quantization

_ABSENT: Final = object()

LARGEST: Final = 2**31
"""Upper bound of numbers in a config.json; larger ones would exhaust memory in derived lists."""

_NO_EFFECT: Final = {
    "metadata of the file": "model_type architectures transformers_version "
    "_name_or_path name_or_path _commit_hash is_llama_config transformers.js_config "
    "unsloth_fixed unsloth_version",
    "the dtype of the weights, which their files also record": "dtype torch_dtype use_bfloat16",
    "generation settings and special tokens": "use_cache bos_token_id "
    "eos_token_id pad_token_id unk_token_id sep_token_id decoder_start_token_id "
    "cache_implementation max_length min_length do_sample early_stopping num_beams "
    "num_beam_groups diversity_penalty temperature top_k top_p typical_p repetition_penalty "
    "length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids "
    "num_return_sequences output_scores return_dict_in_generate forced_bos_token_id "
    "forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens "
    "begin_suppress_tokens tokenizer_class prefix max_sequence_length",
    "implementations with equal results": "attn_implementation _attn_implementation "
    "_attn_implementation_autoset _attn_implementation_internal experts_implementation "
    "_experts_implementation_internal pretraining_tp chunk_size_feed_forward torchscript "
    "tf_legacy_loss gradient_checkpointing",
    "additional outputs": "return_dict output_attentions output_hidden_states output_router_logits "
    "output_past",
    "heads for other tasks": "id2label label2id num_labels _num_labels problem_type "
    "finetuning_task task_specific_params",
}
NO_EFFECT: Final = frozenset(key for keys in _NO_EFFECT.values() for key in keys.split())
"""Keys that affect neither the weights nor the logits of a decoder."""

_MUST_BE: Mapping[str, tuple[object, ...]] = {
    "is_encoder_decoder": (False,),
    "is_decoder": (False, True),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "tie_encoder_decoder": (False,),
    "pruned_heads": ({},),
    "tie_last_hidden_states": (None,),
    "per_layer_config": (None, {}),
    "partial_rotary_factor": (None, 1, 1.0),
    "rope_interleaved": (None, False),
    "use_mrope": (None, False),
}
_REFUSED: Mapping[str, str] = {"auto_map": "refers to code in the repository, which is not run"}


class ConfigDocument:
    """The keys of a config.json, with a record of those that were read.

    Findings are collected, and reported together by `finish`.
    """

    def __init__(self, keys: Mapping[str, Any], path: str) -> None:
        self.path = path
        self._keys = keys
        self._read: set[str] = set()
        self.findings: list[tuple[str, str]] = []
        """Keys, each with a message."""

    def has(self, name: str) -> bool:
        """True if a key is present and not null.

        This does not count as reading it.
        """
        return self._keys.get(name) is not None

    def value(self, name: str, default: Any = None) -> Any:
        """Read a key of any type."""
        self._read.add(name)
        return self._keys.get(name, default)

    def integer(
        self, name: str, default: Any = _ABSENT, *, at_least: int = 1, optional: bool = False
    ) -> Any:
        """Read an int.

        Arguments:
            default: value if the key is absent; without it, the key is required.
        """

        def is_valid(value: Any) -> bool:
            return type(value) is int and value >= at_least

        kind = f"an int of at least {at_least}"
        number = self._typed(name, default, is_valid, kind, optional)
        if number is not None and number >= LARGEST:
            self.refuse(name, "is too large")
            return at_least
        return number

    def number(self, name: str, default: Any = _ABSENT, *, optional: bool = False) -> Any:
        """Read a float.

        Arguments:
            default: value if the key is absent; without it, the key is required.
        """

        def is_valid(value: Any) -> bool:
            return type(value) in (int, float) and -LARGEST < value < LARGEST

        number = self._typed(name, default, is_valid, "a number", optional)
        return number if number is None else float(number)

    def flag(self, name: str, default: bool) -> bool:
        """Read a bool; null counts as false."""
        if self._keys.get(name, default) is None:
            self._read.add(name)
            return False
        return self._typed(name, default, lambda value: type(value) is bool, "true or false", False)

    def choice(self, name: str, default: str, meanings: Mapping[str, str]) -> str:
        """Read a string, mapped to a field's value."""
        value = self.value(name, default)
        if isinstance(value, str) and value in meanings:
            return meanings[value]
        self.refuse(name, f"is not supported. Valid: {', '.join(meanings)}")
        return meanings[default]

    def must_be(self, name: str, allowed: Collection[object], why: str) -> None:
        """Refuse a key with a value other than those allowed."""
        value = self.value(name, _ABSENT)
        if value is not _ABSENT and value not in allowed:
            self.refuse(name, why)

    def refuse(self, name: str, why: str) -> None:
        """Add a finding."""
        self._read.add(name)
        shown = f"= {_shown(self._keys[name])}: " if name in self._keys else ": "
        self.findings.append((name, f"{shown}{why}"))

    def finish(self) -> None:
        """Refuse keys that were not read, and report all findings.

        Raises:
            SetpointError: names the key and value of each finding.
        """
        for name, allowed in _MUST_BE.items():
            if name not in self._read:
                self.must_be(name, allowed, "changes the model in a way that is not supported")
        for name, why in _REFUSED.items():
            if name not in self._read:
                self.must_be(name, (None, {}), why)
        quantization = self.value(KEY)
        if quantization and (reason := unread_quantization(quantization)):
            self.refuse(KEY, reason)
        unknown = [name for name in self._keys if name not in self._read | NO_EFFECT]
        for name in unknown:
            if self._keys[name] is not None:
                self.refuse(name, "is unknown, and might change the model")
        if self.findings:
            # Weight files have the same reader for every type.
            same = all(name.startswith(KEY) for name, _ in self.findings)
            lines = [f"{name}{'' if why[0] == ':' else ' '}{why}" for name, why in self.findings]
            raise SetpointError(
                f"{self.path} describes a model that Setpoint's transformer does not support:\n  "
                + "\n  ".join(lines)
                + ("" if same else '\n`type = "huggingface"` trains it with transformers.')
            )

    def _typed(
        self, name: str, default: Any, is_valid: Callable[[Any], bool], kind: str, optional: bool
    ) -> Any:
        self._read.add(name)
        value = self._keys.get(name, default)
        if value is _ABSENT:
            self.refuse(name, f"is missing; it must be {kind}")
        elif (value is None and (optional or default is None)) or is_valid(value):
            return value
        else:
            self.refuse(name, f"must be {kind}")
        # Anything built from it is discarded with the findings.
        return 1 if default is _ABSENT or default is None else default


def reasons(error: SetpointError) -> str:
    """Problems with values converted from a file, without locations in Setpoint's code."""
    if not isinstance(error, ConfigError):
        return str(error)
    texts = (f"{p.path} = {p.value}: {p.message}" for p in error.problems)
    return "; ".join(text.replace(" = None:", ":") for text in texts)


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
