"""Cross-section checks of the model's vocabulary and the tokenizer's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from setpoint.config import Caution, Problem, SetpointError
from setpoint.data.sources.config import Conversations
from setpoint.data.tokenizers.config import BYTES_VOCABULARY, Bytes
from setpoint.model.config import Transformer
from setpoint.model.vocabulary import embedding_rows, misfit

if TYPE_CHECKING:
    from setpoint.data.tokenizers.config import TokenizerConfig
    from setpoint.train.config import Job

FACTOR = 4


def known_vocabulary(tokenizer: TokenizerConfig) -> int | None:
    """Find how many tokens a tokenizer has, where that is known without building it.

    Arguments:
        tokenizer: its section; of one in files these are read, if they are here.
    """
    if isinstance(tokenizer, Bytes):
        return BYTES_VOCABULARY
    from setpoint.data.tokenizers.vocabulary import vocabulary_size

    return vocabulary_size(tokenizer)


def vocabulary_problems(job: Job) -> Iterator[Problem]:
    """Compare the model's vocabulary with the tokenizer's."""
    model = job.model
    if not isinstance(model, Transformer):
        return
    tokens = known_vocabulary(job.tokenizer)
    if tokens is None:
        return
    field = "vocab_multiple_of" if model.vocab_size is None else "vocab_size"
    reason, rows = misfit(model, tokens), embedding_rows(model, tokens)
    if reason is not None:
        yield Problem(
            "model.vocab_size",
            reason,
            valid=(str(tokens), "null"),
            also=("tokenizer",),
        )
    elif rows > FACTOR * tokens:
        yield Caution(
            "vocabulary-mostly-unused",
            f"model.{field}",
            f"of {rows} rows of the embedding only {tokens} stand for tokens of the tokenizer; the "
            f"others cost memory and time",
            valid=("null",) if field == "vocab_size" else ("1", "64"),
            also=("tokenizer",),
        )


def template_problems(job: Job) -> Iterator[Problem]:
    """Find chat templates that are not there, or write tokens that the tokenizer does not have."""
    from setpoint.data.sources.named_templates import fitting_template
    from setpoint.data.tokenizers.vocabulary import chat_facts

    given = list(conversations_of(job))
    # The files of a tokenizer have megabytes, so they are read only where that is of use.
    facts = chat_facts(job.tokenizer) if given else None
    for path, source in given:
        if facts is None or (source.template is None and not needs_template(source)):
            continue
        try:
            fitting_template(source.template, "", facts)
        except SetpointError as error:
            message, _, valid = str(error).removeprefix(": ").partition("\nValid: ")
            yield Problem(f"{path}.template", message, hint=f"Valid: {valid}", also=("tokenizer",))


def conversations_of(job: Job) -> Iterator[tuple[str, Conversations]]:
    """The sources of conversations, with their paths."""
    sections = [("data.sources", job.data.sources), ("data.validation", job.data.validation)]
    if job.evaluation is not None:
        for number, each in enumerate(job.evaluation.datasets):
            sections.append((f"evaluation.datasets.{number}.sources", each.sources))
    for path, sources in sections:
        for number, source in enumerate(sources):
            if isinstance(source, Conversations):
                yield f"{path}.{number}", source


def needs_template(source: Conversations) -> bool:
    """Whether a source's first row is messages, and not tokens."""
    from setpoint.data.sources.conversations import ConversationsSource
    from setpoint.data.sources.remote import is_remote

    if any(map(is_remote, source.paths)):  # looked at when the run starts
        return False
    try:
        return ConversationsSource(source).starts_with_messages()
    except (OSError, SetpointError):
        return False  # a check of its own says why, or the start of the run
