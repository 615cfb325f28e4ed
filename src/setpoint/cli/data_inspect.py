"""`setpoint data inspect`: what a model is trained on, as people read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from setpoint.cli.data import JobData, open_data, require_source
from setpoint.cli.options import COMMON, JSON, SOURCE_HELP, Arguments, Command, Option
from setpoint.cli.output import bold, colours, dim, styled, table
from setpoint.config import SetpointError

if TYPE_CHECKING:
    from setpoint.data.samples import Sample, Token

COUNT, SOURCE = "--count", "--source"
SHOWN = 3
STREAMED = 10_000  # rows of streamed data that are looked through
COMMAND = Command(
    "data inspect",
    "SOURCE [OVERRIDES]",
    "Print the first rows that a job is trained on, as its batches have them: text, where tokens\n"
    "end, which tokens are trained on, control tokens, and where documents begin. On a terminal\n"
    "colours say so; elsewhere `|` ends a token, and what is between [[ and ]] is read and not\n"
    "trained on.\n" + SOURCE_HELP,
    [
        Option(SOURCE, "Only rows of this source of the data.", "NAME"),
        Option(COUNT, f"Number of rows; default {SHOWN}.", "N"),
        Option("--tokens", "One token a line: place, id, text, document, trained or not."),
        *COMMON,
        JSON,
    ],
    [
        ("setpoint data inspect tiny", "the first rows of a preset"),
        ("setpoint data inspect chats.toml --count 1 --tokens", "each token of one row"),
    ],
)


@COMMAND
def run(arguments: Arguments) -> int:
    """Print the rows."""
    count = arguments.integer(COUNT) or SHOWN
    data = open_data(arguments)
    require_source(data.job, arguments.value(SOURCE))
    samples = _first(data, count, arguments.value(SOURCE))
    if arguments.has(JSON.name):
        import json

        print(json.dumps([sample.to_json() for sample in samples]))
        return 0
    show = _tokens if arguments.has("--tokens") else _text
    print("\n\n".join(f"{_title(sample)}\n{show(sample)}" for sample in samples))
    return 0


def _first(data: JobData, count: int, source: str | None) -> list[Sample]:
    """The first rows of the stream, of all ranks together."""
    from setpoint.data.samples import samples_of
    from setpoint.train.build.job_data import build_training_data

    job = data.job
    if job.seed is None:
        raise SetpointError("seed is null, and the order of rows depends on it: --seed 1")
    sequences, sampler = build_training_data(job, data.corpora.train)
    found: list[Sample] = []
    taken, most = 0, max(sequences.epoch_rows or STREAMED, count)
    while len(found) < count and taken < most:
        # Rows that are packed together come out the same however many are taken at once.
        step = min(max(count, 16 if source else count), most - taken)
        samples = samples_of(sequences, sampler.take(step), data.tokenizer, taken)
        found += [sample for sample in samples if source in (None, sample.source)]
        taken += step
    sampler.forget()
    if not found:
        raise SetpointError(f"{SOURCE} {source}: none of the first {taken:,} rows is of it")
    return found[:count]


def _title(sample: Sample) -> str:
    source = f" of {sample.source}" if sample.source is not None else ""
    documents = sample.documents
    return bold(
        f"row {sample.number}{source}: {len(sample.tokens)} tokens, {sample.trained} trained on, "
        f"{documents} document{'s' * (documents != 1)}"
    )


def _text(sample: Sample) -> str:
    """The text, with a heading where a document begins."""
    marks = not colours()
    # Between bytes there are too many marks to read anything.
    ends = marks and any(len(token.data) > 1 for token in sample.tokens if not token.control)
    lines: list[str] = []
    document: int | None = -1
    run: list[str] = []
    masked = False
    for at, token in enumerate(_whole_characters(sample.tokens)):
        if token.document != document:
            if masked:
                run.append("]]")
                masked = False
            lines += ["".join(run)] * bool(run)
            document, run = token.document, []
            if document is None:
                count = sum(each.document is None for each in sample.tokens)
                lines.append(dim(f"--- {count} tokens of padding"))
            else:
                name = sample.names[document]
                lines.append(dim(f"--- document {document}" + (f": {name}" if name else "")))
        if document is None:
            continue
        text = token.data.decode(errors="backslashreplace")
        if not marks:
            run.append(_coloured(token, text, at))
            continue
        # The first token of a row is never a target, and looks like the one behind it.
        if (token if at or len(sample.tokens) < 2 else sample.tokens[1]).trained == masked:
            run.append("]]" if masked else "[[")
            masked = not masked
        run.append(text + "|" * ends)
    lines += ["".join(run) + "]]" * masked] * bool(run)
    return "\n".join(lines)


def _coloured(token: Token, text: str, at: int) -> str:
    """Dim what is not trained on, magenta for control tokens, every other token on a ground."""
    codes = ["35"] if token.control else []
    codes += ["1"] if token.trained else ["2"]
    codes += ["48;5;236"] * (at % 2)
    # A ground that is still on at the end of a line would fill the line.
    return "\n".join(styled(line, ";".join(codes)) if line else "" for line in text.split("\n"))


def _whole_characters(tokens: tuple[Token, ...]) -> list[Token]:
    """Tokens with those that share a character as one, so that it can be read."""
    from dataclasses import replace

    joined: list[Token] = []
    for token in tokens:
        last = joined[-1] if joined else None
        alike = (
            last is not None
            and not (last.control or token.control)
            and ((last.trained, last.document) == (token.trained, token.document))
        )
        if last is not None and alike and _is_cut(last.data) and token.data[:1] > b"\x7f":
            joined[-1] = replace(last, data=last.data + token.data)
        else:
            joined.append(token)
    return joined


def _is_cut(data: bytes) -> bool:
    """Whether a text ends within a character of UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return False


def _tokens(sample: Sample) -> str:
    rows = [
        [
            str(at),
            str(token.position),
            str(token.id),
            "" if token.document is None else str(token.document),
            "yes" if token.trained else "-",
            token.data.decode() if token.control else _quoted(token.data),
        ]
        for at, token in enumerate(sample.tokens)
    ]
    return table(rows, ["place", "position", "id", "document", "trained", "text"])


def _quoted(data: bytes) -> str:
    try:
        return repr(data.decode())
    except UnicodeDecodeError:
        return repr(data)
