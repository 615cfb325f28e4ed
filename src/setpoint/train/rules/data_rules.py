"""Rules of `[data]`, `[batch]` and the tokens that the loss counts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from setpoint.config import (
    Caution,
    Config,
    Problem,
    SetpointError,
    fields_of,
    is_set,
    plural,
    rule,
)
from setpoint.config.words.names import nearest_divisors, nearest_multiples
from setpoint.data.config import PHASE_UNITS, HuggingFace, TokenIds
from setpoint.data.sources.config import (
    Conversations,
    Questions,
    Random,
    SourceConfig,
    Text,
    Tokens,
)
from setpoint.loss.config import tokens_named
from setpoint.model.config import TransformerConfig
from setpoint.train.batch_ramp import MOST_STAGES
from setpoint.train.config import batch_equation, steps_before
from setpoint.train.rules.model_rules import known_vocabulary, tokenizer_needs
from setpoint.units import Duration

if TYPE_CHECKING:
    from setpoint.train.config import Job

S = TypeVar("S", bound=SourceConfig)


@rule(when=lambda job: isinstance(job.model, TransformerConfig) and job.model.moe is not None)
def load_problems(job: Job) -> Iterator[Problem]:
    """Micro-batches that the load-balancing groups of experts do not divide."""
    assert isinstance(job.model, TransformerConfig) and job.model.moe is not None
    size, micro = job.model.moe.load_sequences, job.batch.micro_size
    if size is not None and micro % size:
        yield Problem(
            "model.moe.load_sequences",
            f"{size} does not divide a micro-batch of {plural(micro, 'sequence')}",
            valid=[str(divisor) for divisor in nearest_divisors(micro, size)],
            also=("batch.micro_size",),
            hint=f"Or make batch.micro_size a multiple of {size}.",
        )


@rule(when=lambda job: not job.batch.sizes_match(job.parallel.data_ranks))
def sum_problems(job: Job) -> Iterator[Problem]:
    """Batch sizes whose product is not the global batch size."""
    batch, ranks = job.batch, job.parallel.data_ranks
    if prod(job.parallel.degrees.values()) != job.parallel.world_size:
        return  # already reported; the number of data ranks was not set
    portion = batch.micro_size * batch.accumulation * ranks
    given = [name for name in ("micro_size", "accumulation") if is_set(batch, name)]
    also = (*(f"batch.{name}" for name in given), "parallel.world_size")
    if len(given) == 2:
        total = batch_equation(portion, batch.micro_size, batch.accumulation, ranks)
        yield Problem(
            "batch.global_size",
            f"{batch.global_size} sequences contradict the other sizes: {total}",
            valid=(str(portion),),
            also=also,
            hint="Give two of the three sizes; the third is derived.",
        )
        return
    # Derived sizes are rounded; the given ones decide which sizes divide evenly.
    parts = [(getattr(batch, name), name.removesuffix("_size")) for name in given]
    parts.append((ranks, "ranks"))
    step = prod(size for size, _ in parts)
    factors = " * ".join(f"{size} ({name})" for size, name in parts)
    yield Problem(
        "batch.global_size",
        f"{batch.global_size} sequences cannot be divided by {step}"
        + (f" = {factors}" if given else " ranks"),
        valid=[str(size) for size in nearest_multiples(batch.global_size, step)],
        also=also,
    )


@rule(
    when=lambda job: job.batch.ramp is not None and job.batch.sizes_match(job.parallel.data_ranks)
)
def ramp_problems(job: Job) -> Iterator[Problem]:
    """Sizes of a ramp that miss the global batch size or that ranks cannot divide."""
    batch, ramp, ranks = job.batch, job.batch.ramp, job.parallel.data_ranks
    assert ramp is not None
    factors = {"micro": batch.micro_size, "ranks": ranks}
    if job.parallel.torchft is not None:
        factors["groups"] = job.parallel.torchft.group_size
    portion, growth = prod(factors.values()), batch.global_size - ramp.start
    product = " * ".join(f"{size} ({name})" for name, size in factors.items())
    indivisible = f"is not a multiple of {portion} = {product}"
    also = ("batch.global_size", "batch.micro_size", "parallel.world_size")
    if ramp.start % portion or growth <= 0:
        sizes = nearest_multiples(min(ramp.start, batch.global_size - 1), portion)
        yield Problem(
            "batch.ramp.start",
            indivisible if ramp.start % portion else "is not below the size after the ramp",
            valid=[str(size) for size in sizes if size < batch.global_size],
            also=also,
        )
        return
    if growth > ramp.increment * MOST_STAGES:
        least = -(-growth // (MOST_STAGES * portion))
        parts = nearest_divisors(growth // portion, least)
        yield Problem(
            "batch.ramp.increment",
            f"makes more than {MOST_STAGES:,} sizes",
            valid=[str(part * portion) for part in parts if part >= least],
            also=also,
        )
    elif growth % ramp.increment or ramp.increment % portion:
        why = indivisible
        if not ramp.increment % portion:
            why = f"does not divide the {growth} sequences between start and batch.global_size"
        parts = nearest_divisors(growth // portion, ramp.increment // portion)
        yield Problem(
            "batch.ramp.increment",
            why,
            valid=[str(part * portion) for part in parts],
            also=("batch.ramp.start", *also),
        )


@rule(when=lambda job: bool(job.data.all_phases))
def phase_problems(job: Job) -> Iterator[Problem]:
    """Phases of a mixture that are out of order or start after the end of the run."""
    end, before, last = job.total_steps(), 0, "the run"
    phases = [(f"data.phases.{index}", phase) for index, phase in enumerate(job.data.phases)]
    if job.data.anneal is not None:
        phases.append(("data.anneal", job.data.anneal))
    for path, phase in phases:
        if phase.start.unit not in PHASE_UNITS or not phase.start.count:
            continue  # the phase itself refuses it
        step = steps_before(phase.start, job.batch)
        if step <= before:
            yield Problem(
                f"{path}.start",
                f"starts at step {step}, but must start after {last}, which starts at step "
                f"{before}",
                valid=(f"{before + 1} steps",) if end is None or before + 1 < end else (),
                also=("batch.global_size", "batch.sequence_length")
                if phase.start.unit == "tokens"
                else (),
            )
        elif end is not None and step >= end:
            yield Problem(
                f"{path}.start",
                f"starts at step {step}, but the run has only {plural(end, 'step')}",
                valid=(f"{end - 1} steps",) if end - 1 > before else (),
                also=("duration",),
            )
        before, last = max(before, step), path


@rule(when=lambda job: bool(job.data.streams))
def stream_problems(job: Job) -> Iterator[Problem]:
    """Values in epochs with streamed data, whose length is unknown."""
    index = next(i for i, source in enumerate(job.data.sources) if source.is_streamed)
    for path, counts in _epoch_values(job, ""):
        if path.startswith("schedule."):
            message = "is in epochs, but the number of steps per epoch of streamed data is unknown"
            valid = ("10000 steps", "1e9 tokens")
        elif job.data.is_mixture:
            message = "is in epochs, but a mixture with a streamed source has no epochs"
            valid = ("10000 steps", "1e9 tokens")
        elif any(count != int(count) for count in counts):
            message = (
                "is a fraction of an epoch, but of streamed data only the end of an epoch is known"
            )
            valid = ("1 epoch",)
        else:
            continue
        also = ["duration"] if path == "schedule.horizon" else []
        yield Problem(path, message, valid=valid,
                      also=(*also, f"data.sources.{index}.streaming"))  # fmt: skip


def _epoch_values(section: Config, path: str) -> Iterator[tuple[str, list[float]]]:
    """Values in epochs, with their paths."""
    for name in fields_of(section):
        value = getattr(section, name)
        items = value if isinstance(value, tuple) else (value,)
        for number, item in enumerate(items):
            inner = f"{path}{name}.{number}" if isinstance(value, tuple) else f"{path}{name}"
            if isinstance(item, Config):
                yield from _epoch_values(item, f"{inner}.")
                continue
            limits = item.limits if isinstance(item, Duration) else (item,)
            counts = [x.count for x in limits if getattr(x, "unit", None) == "epochs"]
            if counts:
                yield inner, counts


@rule(needs="files")
def empty_problems(job: Job) -> Iterator[Problem]:
    """Sources without any text."""
    counts = [_documents(source) for source in job.data.sources]
    if counts and all(count == 0 for count in counts):
        yield Problem("data.sources", "have no text: all files are empty",
                      hint="Valid: at least one source with text.")  # fmt: skip


@rule(needs="files", when=lambda job: job.data.held_out and not job.data.validation)
def held_out_problems(job: Job) -> Iterator[Problem]:
    """A number of held-out documents that leaves none for training."""
    counts = [_documents(source) for source in job.data.sources]
    known = [count for count in counts if count is not None]
    total = sum(known)
    if len(known) < len(counts) or total == 0:  # no document: `empty_problems`
        return
    if job.data.held_out < 1:
        if total == 1 and (job.data.has_answers or job.data.streams):
            unit = "conversation" if job.data.has_answers else "streamed document"
            message = f"is a share of a single {unit}, which is not split"
            yield Problem("data.held_out", message, hint=f"Add more {unit}s, or data.validation.")
        return
    from setpoint.data.reading import held_out_count

    try:
        held_out_count(total, job.data.held_out)
    except SetpointError as error:
        yield Problem.of(error, "data.held_out", "data.held_out", also=("data.sources",))


def _documents(source: SourceConfig) -> int | None:
    if isinstance(source, Text) and source.filter is None:
        from setpoint.data.sources.texts import text_count  # most jobs have no files

        return text_count(source)
    if isinstance(source, Random | Questions) and source.filter is None:
        return source.documents
    return None


@rule(needs=tokenizer_needs, when=lambda job: any(tokens_named(job.loss)))
def unknown_tokens(job: Job) -> Iterator[Problem]:
    """Token ids of the loss that the tokenizer does not have."""
    size = known_vocabulary(job.tokenizer)
    for field, token in tokens_named(job.loss):
        if size is not None and token >= size:
            yield Problem(
                field,
                f"token {token} does not exist: the tokenizer has {size} tokens",
                valid=(f"0 to {size - 1}",),
                also=("tokenizer",),
            )


@rule(
    needs="files",
    when=lambda job: any(sources_of(job, Conversations)),
    cautions={
        "no-stop-token": "answers end without a control token that training could learn",
        "template-markers-as-text": "a template's control tokens that the tokenizer does not have",
    },
)
def template_problems(job: Job) -> Iterator[Problem]:
    """Chat templates that are missing, or write tokens that the tokenizer lacks."""
    from setpoint.data.sources.chat import fitting_template
    from setpoint.data.vocabulary import chat_facts

    facts = chat_facts(job.tokenizer)
    for path, source in sources_of(job, Conversations):
        if facts is None or (source.template is None and not needs_template(source)):
            continue
        try:
            template = fitting_template(source.template, "", facts)
            if path.startswith("data.sources.") and template.turn_end is None:
                yield Caution(
                    "no-stop-token",
                    f"{path}.template",
                    f"{template.title} ends answers without a control token of {facts.title}, so "
                    "the model never learns to stop",
                    also=("tokenizer",),
                    hint="End the assistant's messages with a control token, such as eos_token.",
                )
            if template.as_text and source.template is not None:
                yield Caution(
                    "template-markers-as-text",
                    f"{path}.template",
                    f"{', '.join(template.as_text)} are no tokens of {facts.title}, so they are "
                    "read as text, in several tokens each",
                    also=("tokenizer",),
                    hint="tokenizer.added makes control tokens of them.",
                )
        except SetpointError as error:
            yield Problem.of(error, f"{path}.template", "", also=("tokenizer",))


@rule(
    needs="files",
    when=lambda job: isinstance(job.tokenizer, HuggingFace) and any(sources_of(job, Text)),
    cautions={"control-tokens-in-text": "texts that spell control tokens, which are read as text"},
)
def spelled_tokens(job: Job) -> Iterator[Problem]:
    """Texts that spell control tokens."""
    from setpoint.data.sources.texts import beginnings
    from setpoint.data.vocabulary import chat_facts

    facts = chat_facts(job.tokenizer)
    if facts is None:
        return
    for path, source in sources_of(job, Text):
        controls = [token for token in facts.controls if token not in (source.separator or "")]
        for name, text in beginnings(source):
            # <s> inside a text may be HTML.
            first = text.lstrip()
            found = [
                token
                for token in controls
                if first.startswith(token) or (token.startswith("<|") and token in text)
            ]
            if found:
                shown = ", ".join(found[:3]) + (" ..." if len(found) > 3 else "")
                yield Caution(
                    "control-tokens-in-text",
                    f"{path}.paths",
                    f"{name} spells {shown}, which {facts.title} reads as text here, in several "
                    "tokens",
                    also=("tokenizer",),
                    hint="A source of type conversations writes control tokens around messages; "
                    "separator divides plain text into documents; rows with input_ids hold "
                    "tokens.",
                )
                break


@rule(needs="files", when=lambda job: any(sources_of(job, Tokens)))
def token_problems(job: Job) -> Iterator[Problem]:
    """Prepared data, or separators, that do not match the tokenizer."""
    from setpoint.data.sources.tokens import prepared_folders
    from setpoint.data.token_store import read_manifest
    from setpoint.data.vocabulary import tokenizer_name, vocabulary_size

    size, name = vocabulary_size(job.tokenizer), tokenizer_name(job.tokenizer)
    for path, source in sources_of(job, Tokens):
        yield from _wrong_ids(path, source, size)
        if size is not None and source.separator is not None and source.separator >= size:
            yield Problem(
                f"{path}.separator",
                f"is not a token of the tokenizer, which has {size:,}",
                valid=("null", f"0 to {size - 1}"),
                also=("tokenizer",),
            )
        for folder in prepared_folders(source, fetch=False):
            try:
                prepared = read_manifest(folder).tokenizer
            except SetpointError:
                continue  # reported by a check of the source
            if name is not None and prepared != name:
                yield Problem(
                    f"{path}.paths",
                    f"{folder} was prepared with the tokenizer {_brief(prepared)}, but "
                    f"the job's is {_brief(name)}",
                    hint="Use that tokenizer, or prepare the data again.",
                    also=("tokenizer",),
                )


def _wrong_ids(path: str, source: Tokens, size: int | None) -> Iterator[Problem]:
    """Find ids outside the vocabulary, or files of another dtype, at the start of each file."""
    if size is None:
        return
    from setpoint.data.sources.tokens import find_wrong_ids, layout_of, token_files

    for file in token_files(source, f"{path}.paths").files.values():
        with suppress(SetpointError, OSError):  # reported by a check of the source
            local = Path(str(file))
            wrong = find_wrong_ids(local, layout_of(local, source.token_dtype, path), size)
            if wrong is not None:
                yield Problem(
                    f"{path}.{wrong.field}",
                    wrong.message,
                    hint=f"Valid: {wrong.valid}",
                    also=("tokenizer", "model.vocab_size"),
                )
                return


@rule(when=lambda job: isinstance(job.tokenizer, TokenIds))
def text_problems(job: Job) -> Iterator[Problem]:
    """Text sources, and packing without a separator, with tokenizer.type = ids."""
    assert isinstance(job.tokenizer, TokenIds)
    for path, source in sources_of(job, SourceConfig):
        fields: str = getattr(source, "field", "")
        if isinstance(source, Tokens):
            if source.separator is not None and source.separator != job.tokenizer.separator:
                yield Problem(
                    f"{path}.separator",
                    "differs from tokenizer.separator, the token between documents",
                    valid=("null",),
                    also=("tokenizer.separator",),
                )
        elif not isinstance(source, Conversations) and fields.rpartition(".")[2] != "input_ids":
            yield Problem(
                f"{path}.type",
                "is text, but tokenizer.type = ids cannot tokenize text",
                valid=("tokens",),
                also=("tokenizer",),
            )
    packed = job.data.packing.method != "concatenate"
    if packed and job.tokenizer.separator is None and any(sources_of(job, Tokens)):
        yield Problem(
            "data.packing.method",
            "packs documents, but token files without a separator do not mark their ends",
            valid=("concatenate",),
            also=("tokenizer.separator",),
        )


def _brief(name: str) -> str:
    """Name of a tokenizer with an abbreviated hash."""
    kind, *more = name.split()
    return " ".join([kind, *(word[:12] for word in more)])


def sources_of(job: Job, kind: type[S]) -> Iterator[tuple[str, S]]:
    """Sources of a kind, with their paths."""
    sections = [("data.sources", job.data.sources), ("data.validation", job.data.validation)]
    if job.evaluation is not None:
        for number, dataset in enumerate(job.evaluation.datasets):
            sections.append((f"evaluation.datasets.{number}.sources", dataset.sources))
    for path, sources in sections:
        for number, source in enumerate(sources):
            if isinstance(source, kind):
                yield f"{path}.{number}", source


def needs_template(source: Conversations) -> bool:
    """True if the first row of a source consists of messages, not tokens."""
    from setpoint.data.sources.conversations import ConversationsSource
    from setpoint.hub.fetch import is_url

    if any(map(is_url, source.paths)):  # checked when the run starts
        return False
    try:
        return ConversationsSource(source).starts_with_messages()
    except (OSError, SetpointError):
        return False  # reported by a check of the source, or when the run starts
