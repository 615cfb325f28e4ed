"""Cross-section checks of the model's vocabulary and the tokenizer's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from setpoint.config import Caution, Problem, SetpointError
from setpoint.data.sources.config import Conversations, SourceConfig, Tokens
from setpoint.data.tokenizers.config import BYTES_VOCABULARY, Bytes, TokenIds
from setpoint.model.config import HuggingFaceModel, Transformer
from setpoint.model.vocabulary import embedding_rows, misfit

if TYPE_CHECKING:
    from setpoint.data.tokenizers.config import TokenizerConfig
    from setpoint.train.config import Job

FACTOR = 4
S = TypeVar("S", bound=SourceConfig)


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


def row_problems(job: Job) -> Iterator[Problem]:
    """Hold a model's rows against the weights to start from, and those of transformers in files."""
    from setpoint.model.pretrained import check
    from setpoint.model.pretrained.difference import Different
    from setpoint.model.pretrained.locate import locate_here

    model, tokens, found = job.model, known_vocabulary(job.tokenizer), None
    also = ("tokenizer", *(() if model.pretrained is None else ("model.pretrained",)))
    try:
        place = None if model.pretrained is None else locate_here(model.pretrained)
        if isinstance(model, Transformer):
            words = model.vocab_size or tokens
            if place is not None and words is not None:
                found = check.vocabulary_difference(model, words, place)
        elif isinstance(model, HuggingFaceModel):
            rows = check.declared_vocabulary(model)
            known = None if place is None else check.vocabulary_of(place)
            if rows is not None and tokens is not None and rows < tokens:
                yield _too_few(rows, tokens, also)
            elif rows is not None and known is not None and rows < known:
                found = Different("overrides.vocab_size", str(rows), str(known))
    except SetpointError:
        return  # a check of the model's own says why
    if found is not None:
        field, size, theirs = found
        given = f", and the tokenizer has {tokens} tokens" if size.startswith("null") else ""
        yield Problem(
            f"model.{field}",
            f"the weights to start from have {theirs}{given}",
            valid=(theirs,),
            also=also,
        )


def _too_few(rows: int, tokens: int, also: tuple[str, ...]) -> Problem:
    return Problem(
        "model.overrides.vocab_size",
        f"{rows} rows of the embedding do not hold the {tokens} tokens of the tokenizer",
        valid=(str(tokens),),
        also=also,
    )


def template_problems(job: Job) -> Iterator[Problem]:
    """Find chat templates that are not there, or write tokens that the tokenizer does not have."""
    from setpoint.data.sources.chat_template import ChatTemplate
    from setpoint.data.sources.named_templates import fitting_template
    from setpoint.data.tokenizers.vocabulary import chat_facts

    given = list(sources_of(job, Conversations))
    # The files of a tokenizer have megabytes, so they are read only where that is of use.
    facts = chat_facts(job.tokenizer) if given else None
    for path, source in given:
        if facts is None or (source.template is None and not needs_template(source)):
            continue
        try:
            found = fitting_template(source.template, "", facts)
            template = ChatTemplate(*found, facts.variables, facts.controls)
            if path.startswith("data.sources.") and template.turn_end is None:
                yield Caution(
                    "no-stop-token",
                    f"{path}.template",
                    f"{found.title} writes no control token of {facts.title} behind an answer, so "
                    "that none is trained that ends generation",
                    also=("tokenizer",),
                    hint="End the assistant's messages with a control token, such as eos_token.",
                )
        except SetpointError as error:
            message, _, valid = str(error).removeprefix(": ").partition("\nValid: ")
            yield Problem(f"{path}.template", message, hint=f"Valid: {valid}", also=("tokenizer",))


def token_problems(job: Job) -> Iterator[Problem]:
    """Find tokens of another tokenizer, as far as it is known without reading them."""
    from setpoint.data.prepared.names import read_facts
    from setpoint.data.sources.token_files import prepared_folders
    from setpoint.data.tokenizers.vocabulary import tokenizer_name, vocabulary_size

    size, name = vocabulary_size(job.tokenizer), tokenizer_name(job.tokenizer)
    for path, source in sources_of(job, Tokens):
        yield from _beyond(path, source, size)
        if size is not None and source.separator is not None and source.separator >= size:
            yield Problem(
                f"{path}.separator",
                f"is no token of the tokenizer, which has {size:,}",
                valid=("null", f"0 to {size - 1}"),
                also=("tokenizer",),
            )
        for folder in prepared_folders(source, fetch=False):
            facts = read_facts(folder)
            if name is not None and facts is not None and facts.tokenizer != name:
                yield Problem(
                    f"{path}.paths",
                    f"{folder} was prepared with the tokenizer {_brief(facts.tokenizer)}, and the "
                    f"job's is {_brief(name)}",
                    hint="Use that tokenizer, or prepare the data with this one.",
                    also=("tokenizer",),
                )


def _beyond(path: str, source: Tokens, size: int | None) -> Iterator[Problem]:
    """Find ids that are no tokens, or parts of them, among the first ones of each file."""
    if size is None:
        return
    from setpoint.data.sources.token_files import find_wrong_ids, token_files

    for file in token_files(source, f"{path}.paths").files.values():
        with suppress(SetpointError, OSError):  # a check of the source's own says why
            wrong = find_wrong_ids(Path(str(file)), source.token_dtype, path, size)
            if wrong is not None:
                yield Problem(
                    f"{path}.{wrong.field}",
                    wrong.message,
                    hint=f"Valid: {wrong.valid}",
                    also=("tokenizer", "model.vocab_size"),
                )
                return


def text_problems(job: Job) -> Iterator[Problem]:
    """Find data of text, and documents that are to be packed, where there are ids alone."""
    assert isinstance(job.tokenizer, TokenIds)
    for path, source in sources_of(job, SourceConfig):
        fields: str = getattr(source, "field", "")
        if isinstance(source, Tokens):
            if source.separator is not None and source.separator != job.tokenizer.separator:
                yield Problem(
                    f"{path}.separator",
                    "is not the separator of tokenizer, which stands between documents",
                    valid=("null",),
                    also=("tokenizer.separator",),
                )
        elif not isinstance(source, Conversations) and fields.rpartition(".")[2] != "input_ids":
            yield Problem(
                f"{path}.type",
                "is text, and tokenizer.type = ids makes no tokens of it",
                valid=("tokens",),
                also=("tokenizer",),
            )
    packed = job.data.packing.method != "concatenate"
    if packed and job.tokenizer.separator is None and any(sources_of(job, Tokens)):
        yield Problem(
            "data.packing.method",
            "packs documents, and nothing separates those of token files",
            valid=("concatenate",),
            also=("tokenizer.separator",),
        )


def _brief(name: str) -> str:
    """The name of a tokenizer with the start of its hash."""
    kind, *more = name.split()
    return " ".join([kind, *(each[:12] for each in more)])


def sources_of(job: Job, kind: type[S]) -> Iterator[tuple[str, S]]:
    """The sources of a kind, with their paths."""
    sections = [("data.sources", job.data.sources), ("data.validation", job.data.validation)]
    if job.evaluation is not None:
        for number, each in enumerate(job.evaluation.datasets):
            sections.append((f"evaluation.datasets.{number}.sources", each.sources))
    for path, sources in sections:
        for number, source in enumerate(sources):
            if isinstance(source, kind):
                yield f"{path}.{number}", source


def needs_template(source: Conversations) -> bool:
    """Whether a source's first row is messages, and not tokens."""
    from setpoint.data.sources.conversations import ConversationsSource
    from setpoint.hub.urls import is_url

    if any(map(is_url, source.paths)):  # looked at when the run starts
        return False
    try:
        return ConversationsSource(source).starts_with_messages()
    except (OSError, SetpointError):
        return False  # a check of its own says why, or the start of the run
