"""`setpoint data stats`: how much data there is, how long, from where, and what is there twice."""

from __future__ import annotations

from typing import Any

from setpoint.cli.data import JobData, open_data
from setpoint.cli.options import COMMON, JSON, SOURCE_HELP, Arguments, Command
from setpoint.cli.output import bold, table
from setpoint.config import SetpointError

WIDTH = 50
COMMAND = Command(
    "data stats",
    "SOURCE [OVERRIDES]",
    "Read and tokenize the data of a job, and print of each source and side: documents, bytes,\n"
    "tokens and how many of them are trained on, the share of all tokens, lengths in tokens,\n"
    "documents longer than batch.sequence_length, and documents with the same content.\n"
    + SOURCE_HELP,
    [*COMMON, JSON],
    [
        ("setpoint data stats tiny", "the data of a preset"),
        ("setpoint data stats mine.toml --json", "for a program"),
    ],
)


@COMMAND
def run(arguments: Arguments) -> int:
    """Print tables, and the lengths as bars."""
    found = open_data(arguments)
    facts = _facts(found)
    if arguments.has(JSON.name):
        import json

        print(json.dumps(facts, indent=2))
        return 0
    print("\n\n".join(_page(facts)))
    return 0


def _facts(found: JobData) -> dict[str, Any]:
    import numpy as np

    from setpoint.data.corpus import Corpus
    from setpoint.data.stats import duplicates, histogram, lengths_of, source_stats
    from setpoint.train.build.job_data import phases_of

    job, held_out = found.job, found.corpora.held_out
    corpora = [each for each in found.corpora.train if isinstance(each, Corpus)]
    for index, source in enumerate(job.data.sources):
        if source.is_streamed:
            raise SetpointError(
                f"data.sources.{index}.streaming: true, and what is streamed is never counted.\n"
                "Valid: false, or setpoint data inspect."
            )
    length = job.batch.sequence_length
    names = [source.name for source in job.data.sources]
    train = source_stats(corpora, names, length)
    if job.data.is_mixture:
        for each, share in zip(train, phases_of(job)[0].shares, strict=True):
            each["mixture_share"] = share
    held: list[dict[str, Any]] = []
    if held_out is not None:
        held = source_stats([held_out], held_out.sources, length)
    lengths = np.concatenate([lengths_of(corpus) for corpus in corpora])
    bars = [{"from": a, "to": b, "documents": n} for a, b, n in histogram(lengths)]
    return {
        "sequence_length": length,
        "train": train,
        "held_out": held,
        "duplicates": duplicates(corpora, held_out),
        "histogram": bars,
        "rows": _rows(found),
    }


def _rows(found: JobData) -> dict[str, Any]:
    """How many rows an epoch has, and what became of documents on the way there."""
    from setpoint.train.build.job_data import build_training_data

    if found.job.seed is None:
        return {"note": "seed is null, and what is packed together depends on it"}
    try:
        sequences, _ = build_training_data(found.job, found.corpora.train)
    except SetpointError as error:  # too little data for one row; the rest is worth knowing
        return {"note": str(error)}
    members = getattr(sequences, "members", (sequences,))
    notes = [note for each in members if (note := getattr(each, "note", ""))]
    rows = sequences.epoch_rows or 0
    steps = rows / found.job.batch.global_size
    return {"rows": rows, "steps": steps, "note": "; ".join(notes)}


def _page(facts: dict[str, Any]) -> list[str]:
    """The facts in paragraphs."""
    length = facts["sequence_length"]
    parts: list[str] = []
    for side, title in (("train", "Training"), ("held_out", "Held out")):
        if facts[side]:
            rows = [_row(each) for each in facts[side]]
            if len(rows) > 1:
                rows.append(_row(_total(facts[side])))
            drawn = ["drawn"] * ("mixture_share" in facts[side][0])
            headings = ["source", "documents", "bytes", "tokens", "share", *drawn, "trained on",
                        f"longer than {length}", "same content"]  # fmt: skip
            parts.append(f"{bold(title)}\n{table(rows, headings)}")
    names = list(facts["train"][0]["lengths"])
    rows = [
        [each["source"], *(f"{each['lengths'][name]:,.0f}" for name in names)]
        for each in facts["train"]
        if each["lengths"]
    ]
    parts.append(f"{bold('Tokens of a training document')}\n{table(rows, ['source', *names])}")
    parts.append(_bars(facts["histogram"]))
    rows = facts["rows"]
    counted = ""
    if "rows" in rows:
        count, steps = rows["rows"], rows["steps"]
        counted = f"rows in an epoch: {count:,} of {length} tokens, {steps:,.4g} steps"
    parts.append("; ".join(filter(None, [counted, rows["note"]])))
    twice = facts["duplicates"]
    if twice["documents"]:
        pairs = "; ".join(" = ".join(group) for group in twice["examples"])
        pairs = f"{twice['documents']:,}, such as {pairs}"
        parts.append(f"training documents with the content of another one: {pairs}")
    if twice["held_out_in_training"]:
        parts.append(f"held-out documents that are trained on: {twice['held_out_in_training']:,}")
    return parts


def _row(facts: dict[str, Any]) -> list[str]:
    tokens = facts["tokens"]
    part = facts["trained_tokens"] / tokens if tokens else 0.0
    return [
        facts["source"],
        *(f"{facts[name]:,}" for name in ("documents", "bytes", "tokens")),
        f"{facts['share']:.1%}",
        *([f"{facts['mixture_share']:.1%}"] if "mixture_share" in facts else []),
        f"{part:.1%}",
        *(f"{facts[name]:,}" for name in ("longer_than_sequence", "duplicates")),
    ]


def _total(sources: list[dict[str, Any]]) -> dict[str, Any]:
    names = ("documents", "bytes", "tokens", "share", "trained_tokens", "longer_than_sequence",
             "duplicates")  # fmt: skip
    names += ("mixture_share",) * ("mixture_share" in sources[0])
    return {"source": "all", **{name: sum(each[name] for each in sources) for name in names}}


def _bars(classes: list[dict[str, int]]) -> str:
    """Documents by length, as bars."""
    most = max(each["documents"] for each in classes)
    rows = [
        [
            f"{each['from']:,} to {each['to']:,}",
            f"{each['documents']:,}".rjust(len(f"{most:,}")),
            "#" * -(-each["documents"] * WIDTH // most),
        ]
        for each in classes
    ]
    width = max(len(row[0]) for row in rows)
    rows = [[row[0].rjust(width), *row[1:]] for row in rows]
    return f"{bold('Training documents by tokens')}\n{table(rows)}"
