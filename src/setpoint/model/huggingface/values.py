"""Values of a config.json with the overrides of a section, as far as they are known as numbers.

Nothing here needs transformers, so that `check` asks the same functions as the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from setpoint.config import ConfigError, Problem, SetpointError, is_mapping
from setpoint.config.resolving.checks import describe_value
from setpoint.model.divisors import nearest_divisors, nearest_multiples

if TYPE_CHECKING:
    from setpoint.model.config import HuggingFaceConfig

COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""Names of the number of experts of a layer."""
CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k")
"""Names of the number of experts that a token is given to."""


class Unfit(SetpointError):
    """A field of the section that no model can be made with.

    Arguments:
        problem: relative to `model`.
    """

    def __init__(self, section: HuggingFaceConfig, problem: Problem) -> None:
        super().__init__(section, problem)
        self.section = section
        self.problem = problem

    def __str__(self) -> str:
        value, origin = self._describe(self.problem.path)
        also = ["model.{} = {} ({})".format(name, *self._describe(name))
                for name in self.problem.also]  # fmt: skip
        placed = self.problem.placed(f"model.{self.problem.path}", value, origin, also)
        return str(ConfigError([placed]))

    def _describe(self, path: str) -> tuple[str | None, str | None]:
        return describe_value(self.section, ("model",), path)


def value_problems(
    section: HuggingFaceConfig, read: Callable[[str], Any], vocab_size: int | None = None
) -> Iterator[Problem]:
    """Find numbers that do not go together, or with the section.

    Arguments:
        read: gives the value of a key, with the overrides; None: there is none.
        vocab_size: how many tokens the tokenizer has; None: it is not known.
    """
    given = section.overrides.dump()
    rows, longest = _number(read, ("vocab_size",))[1], longest_in(read)
    if None not in (rows, vocab_size) and rows < vocab_size:
        yield Problem(
            "overrides.vocab_size",
            f"{rows} rows of the embedding do not hold the {vocab_size} tokens of the tokenizer",
            valid=(str(vocab_size),),
            also=("config",),
            hint="Rows of new tokens begin as the mean of those of pretrained weights."
            if section.pretrained is not None
            else f"Or a tokenizer with {rows} tokens or less.",
        )
    if longest is not None and section.max_sequence_length > longest:
        yield Problem(
            "max_sequence_length",
            f"{section.max_sequence_length} is more than the {longest} positions of config.json",
            valid=(str(longest),),
            also=("config",),
        )
    heads, shared = read("num_attention_heads"), read("num_key_value_heads")
    names = [key for key in ("num_key_value_heads", "num_attention_heads") if key in given]
    # Latent attention has a key-value head for each head, whatever this says.
    is_read = type(heads) is type(shared) is int and not read("kv_lora_rank")
    if names and is_read and (shared < 1 or heads % shared):
        yield Problem(
            f"overrides.{names[0]}",
            f"{heads} heads cannot be shared evenly by {shared} key-value heads",
            valid=[str(each) for each in nearest_divisors(heads, shared)]
            if names[0] == "num_key_value_heads"
            else [str(each) for each in nearest_multiples(heads, shared)],
            also=[*(f"overrides.{key}" for key in names[1:]), "config"],
        )
    # Overrides may name a key by another of its names.
    counts, choices = (sorted(each, key=lambda key: key not in given) for each in (COUNTS, CHOSEN))
    (count_key, count), (key, chosen) = _number(read, counts), _number(read, choices)
    if count is not None and chosen is not None and chosen > count > 0:
        own = [each for each in (*CHOSEN, *COUNTS) if each in given]
        path = f"overrides.{own[0]}" if own else "config"
        too_few = bool(own) and own[0] in COUNTS
        yield Problem(
            path,
            f"a token cannot be given to {chosen} experts ({key}), as there are {count} "
            f"({count_key})",
            valid=(f"{chosen} or more" if too_few else f"1 to {count}",) if own else (),
            also=[f"overrides.{each}" for each in own[1:]],
        )


def type_problems(given: Mapping[str, Any], stored: Mapping[str, Any]) -> Iterator[Problem]:
    """Find overrides of another type than the value that a config.json has."""
    for key, value in given.items():
        wanted, found = _type_of(stored.get(key)), _type_of(value)
        if None in (wanted, found) or wanted == found or key.endswith("_token_id"):
            continue
        yield Problem(
            f"overrides.{key}",
            f"must be {wanted}, as in config.json ({stored[key]!r}), and is {found}",
            also=("config",),
        )


def longest_in(read: Callable[[str], Any]) -> int | None:
    """The most positions that the model takes; None where its config.json does not say."""
    return _number(read, ("max_position_embeddings", "n_positions"))[1]


def _number(read: Callable[[str], Any], names: Sequence[str]) -> tuple[str, Any]:
    """The first of some keys that has an int, with it; an int of None where none has."""
    values = ((name, read(name)) for name in names)
    return next(((name, value) for name, value in values if type(value) is int), (names[0], None))


def _type_of(value: object) -> str | None:
    """The type of a JSON value in words; None for null, which stands for any."""
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a str"
    if is_mapping(value):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else None
