"""How many rows the embedding has, and how many of them are tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from setpoint.config import SetpointError

if TYPE_CHECKING:
    from setpoint.model.config import Transformer


def embedding_rows(config: Transformer, vocab_size: int) -> int:
    """Count the rows of the embedding and of the output matrix.

    Arguments:
        vocab_size: how many tokens the tokenizer has.

    Returns:
        vocab_size of the configuration, or else the tokenizer's rounded up.
    """
    if config.vocab_size is not None:
        return config.vocab_size
    step = config.vocab_multiple_of
    return step * -(-vocab_size // step)


def predicted_tokens(config: Transformer, vocab_size: int) -> int:
    """Count the logits of one position: all rows that were asked for, none of those rounded up to.

    Arguments:
        vocab_size: how many tokens the tokenizer has.
    """
    return vocab_size if config.vocab_size is None else config.vocab_size


def misfit(config: Transformer, vocab_size: int) -> str | None:
    """Say why a vocabulary does not fit the tokenizer.

    Arguments:
        vocab_size: how many tokens the tokenizer has.

    Returns:
        The reason; None where it fits.
    """
    if config.vocab_size is None or config.vocab_size >= vocab_size:
        return None
    return (
        f"{config.vocab_size} rows do not hold the {vocab_size} tokens of the tokenizer, the "
        f"highest of which would have no embedding"
    )


def require_fit(config: Transformer, vocab_size: int) -> None:
    """Refuse a vocabulary that does not hold the tokenizer's.

    Arguments:
        vocab_size: how many tokens the tokenizer has.

    Raises:
        SetpointError: it does not.
    """
    reason = misfit(config, vocab_size)
    if reason is not None:
        raise SetpointError(
            f"model.vocab_size = {config.vocab_size}: {reason}; valid: {vocab_size} or more, or "
            f"null for as many as there are"
        )
