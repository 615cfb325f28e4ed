"""Effects of the fields of `[data]` and `[tokenizer]`."""

import json
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from setpoint.config import RunError
from setpoint.data.order import EpochCursor
from setpoint.data.prepare import workers_of
from setpoint.train.build.components import build_components
from setpoint.train.config import Job
from setpoint.train.evaluation.scores import evaluate

from .observations import Row, corpora, rates


def model_vocabulary(job: Job) -> int:
    """The vocabulary size of the initial model."""
    model: Any = build_components(job).model
    return model.vocab_size


OTHER = "{type=random, name=other, documents=20, seed=5, weight=1.0}"
# Each kind of source, with which a mixture is made.
KINDS = {
    "Stdlib": 'type=stdlib, include=["json/*"]',
    "Text": 'type=text, paths=["{tmp}/text/*.txt"]',
    "Conversations": 'type=conversations, paths=["{tmp}/chats/*.jsonl"], template=plain, '
    "untrained=drop",
    "Random": "type=random, documents=20",
    "Questions": "type=questions, documents=200",
    "Tokens": 'type=tokens, paths=["{tmp}/a.npy"]',
    "HubDataset": 'type=huggingface, path="{tmp}/saved"',
}
MIXED = (f"data.sources=[{{{KINDS['Random']}, weight=1.0}}, {OTHER}]",)


def stream(job: Job) -> list[Any]:
    """The first rows of a feed, and what they are from."""
    feed = build_components(job).feed
    steps = [feed.take() for _ in range(4)]
    feed.close()
    return [[batch.inputs.tolist() for batch in step.batches] for step in steps]


def processes(job: Job) -> int:
    """Processes that a feed starts for its first step."""
    feed = build_components(job).feed
    feed.take()
    found = len(multiprocessing.active_children())
    feed.close()
    return found


def ahead(job: Job) -> int:
    """Number of micro-batches requested when the first is taken."""
    feed = build_components(job).feed
    feed.take()
    (cursor,) = feed.sampler.cursors
    named = round(cursor.epoch * cast(EpochCursor, cursor).size) // feed.micro_size
    feed.close()
    return named


def pinned(job: Job) -> list[bool]:
    """True for training and evaluation if batches for a GPU are pinned."""
    section = job.data.loader
    return [
        options.on("cuda").pin_memory for options in (section.of_training, section.of_evaluation)
    ]


def evaluating(job: Job) -> list[int]:
    """Processes left by an evaluation, and batches requested after it."""
    components = build_components(job)
    feed = components.eval_feed
    assert feed is not None
    evaluate(job, components)
    loader: Any = feed._loader  # pyright: ignore[reportPrivateUsage]
    found = [len(multiprocessing.active_children()), *([] if loader is None else loader.planned)]
    feed.close()
    return found


class Slow:
    """Sequences that take half a second to make."""

    def __init__(self, sequences: Any) -> None:
        self.describe, self.make = sequences.describe, sequences.batch_of
        self.sources = getattr(sequences, "sources", ())

    def batch_of(self, rows: Any) -> Any:
        time.sleep(0.5)
        return self.make(rows)


def training_hangs(job: Job) -> str:
    """The outcome of a step whose worker is slow."""
    feed: Any = build_components(job).feed
    feed.sequences = Slow(feed.sequences)
    return outcome(feed, feed.take)


def evaluation_hangs(job: Job) -> str:
    """The outcome of an evaluation whose worker is slow."""
    components = build_components(job)
    feed: Any = components.eval_feed
    feed.texts = Slow(feed.texts)
    return outcome(feed, lambda: evaluate(job, components))


def outcome(feed: Any, read: Callable[[], object]) -> str:
    """The field that the error names, if there is one."""
    try:
        read()
        return "done"
    except RunError as error:
        return str(error).partition(":")[0]
    finally:
        feed.close()


def mixed_with(kind: str) -> tuple[str]:
    return (f"data.sources=[{{{KINDS[kind]}, weight=1.0}}, {OTHER}]",)


def isolation(job: Job) -> list[Any]:
    """Document numbers of the first rows."""
    steps = [build_components(job).feed.take() for _ in range(2)]
    return [None if b.documents is None else b.documents.tolist() for s in steps for b in s.batches]


NEXT_FIT = (
    "data.packing.method=next_fit",
    "data.sources=random",
    "data.sources.0.length=20",
    "batch.sequence_length=64",
)
UNPACKED = ("data.packing.method=none", *NEXT_FIT[1:])
LONG = (*NEXT_FIT, "data.sources.0.length=100", "batch.sequence_length=64")


def prepare_sources(folder: Path) -> None:
    """Write what rows name."""
    import datasets

    ids = np.arange(20_000) * 7919 % 251
    ids[::200] = 256  # the separator of bytes
    np.save(folder / "a.npy", ids.astype(np.uint16))
    np.save(folder / "b.npy", ids[::-1].astype(np.uint16))
    (ids % 251).astype(np.uint8).tofile(folder / "raw.bin")
    # Either reading of the labels fits.
    constant = [{"input_ids": [5, 5, 5], "labels": [-100, 5, 5]}] * 90
    (folder / "shifted.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in constant))
    datasets.Dataset.from_list(constant).save_to_disk(folder / "shifted")
    rows = [f"the text of row {n}, which is long enough" for n in range(90)]
    table = datasets.Dataset.from_dict({"text": rows, "title": [f"title of {row}" for row in rows]})
    scored = [{"text": row, "q": n * 7 % 90, "r": n * 11 % 90} for n, row in enumerate(rows)]
    (folder / "scored.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in scored))
    datasets.Dataset.from_list(scored).save_to_disk(folder / "scored")
    splits = {"train": table, "other": table.select(range(40))}
    datasets.DatasetDict(splits).save_to_disk(folder / "saved")
    datasets.DatasetDict({"train": table.select(range(80))}).save_to_disk(folder / "saved2")


def documents(job: Job) -> list[str]:
    """Names of all documents, with the hashes of what is in them."""
    found = build_components(job).corpora[0].files
    return [f"{file.name} {file.sha256}" for file in found]


def asked(job: Job) -> dict[str, Any]:
    """Arguments of `datasets.load_dataset`."""
    import datasets

    seen: dict[str, Any] = {}

    def load_dataset(path: str, **options: Any) -> Any:
        seen.update(options, path=path)
        table = datasets.Dataset.from_dict({"text": ["a text"]})
        return table.to_iterable_dataset() if options["streaming"] else table

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.load_dataset", load_dataset)
        patch.setenv("SOME_TOKEN", "x")
        list(job.data.sources[0].build(where="data.sources.0").documents())
    return seen


def vocabulary(job: Job) -> int:
    """The vocabulary size of the tokenizer."""
    return build_components(job).tokenizer.vocab_size


FIRST = "data.sources.0"
ALONE = ("data.held_out=0", "evaluation=null")
TOKENS = (f"data.sources=[{{{KINDS['Tokens']}}}]", "data.held_out=0", "evaluation=null")
STREAMED = (f"data.sources=[{{{KINDS['Text']}}}]", *ALONE, "batch.sequence_length=8")
HUB = ("data.sources=[{type=huggingface, path=owner/name}]",)
SAVED = (f"data.sources=[{{{KINDS['HubDataset']}}}]",)
SCORED = ('data.sources=[{type=huggingface, path="{tmp}/scored", score=q}]', *ALONE,
          "data.curriculum.by=score")  # fmt: skip
RANDOM = (f"data.sources=[{{{KINDS['Random']}, filter={{}}}}]", *ALONE)


def prepared(job: Job) -> Any:
    """Folder of prepared data and number of preparing processes."""
    folder = build_components(job).corpora[0].prepared
    return folder and Path(folder).parent.name, workers_of(job.data.prepare)


HELPED = ("data.loader.evaluation.workers=1", "evaluation.sequences=2")
PREPARED = ("data.prepare.above=0", "data.prepare.folder={tmp}/one")
STDLIB = ('data.sources=[{type=stdlib, include=["json/*", "csv.py", "ast.py"]}]',)
TEXT = ('data.sources=[{type=text, paths=["{tmp}/text/*.txt"]}]',)
ROWS_OF_TEXT = ("data.sources=[{type=text, paths=[{tmp}/rows.jsonl]}]",)
CHATS = ('data.sources=[{type=conversations, paths=["{tmp}/chats/*.jsonl"], template=plain, '
         "untrained=drop}]",)  # fmt: skip
QUESTIONS = ("data.sources=[{type=questions, documents=200}]", "batch.sequence_length=32")
TOKENIZER = ("tokenizer={type=huggingface, path={tmp}/tokenizer}",)


ROWS: dict[str, Row] = {
    "Data.sources": (STDLIB[0], corpora),
    "Data.held_out": ("data.held_out=0.4", corpora),
    "Data.validation": ("data.validation=[{type=random, documents=9}]", corpora,
        ("data.sources=[{type=random, documents=200}]",), None, ("held_out",)),
    "Stdlib.name": (f"{FIRST}.name=library", corpora, STDLIB),
    "Stdlib.include": (f'{FIRST}.include=["email/*"]', corpora, STDLIB),
    "Text.name": (f"{FIRST}.name=mine", corpora, TEXT),
    "Text.paths": (f'{FIRST}.paths=["{{tmp}}/text/1*.txt"]', corpora, TEXT),
    "Text.separator": (f'{FIRST}.separator="five"', corpora, TEXT),
    "Text.format": (f"{FIRST}.format=text", corpora, ROWS_OF_TEXT),
    "Text.field": (f"{FIRST}.field=title", corpora, ROWS_OF_TEXT),
    "Conversations.name": (f"{FIRST}.name=mine", corpora, CHATS),
    "Conversations.paths": (f'{FIRST}.paths=["{{tmp}}/chats/1*.jsonl"]', corpora, CHATS),
    "Conversations.columns": (f"{FIRST}.columns={{prompt: completion, completion: prompt}}",
        corpora, CHATS),
    "Conversations.template": (f"{FIRST}.template=alpaca", corpora, CHATS),
    "Conversations.loss_on": (f"{FIRST}.loss_on=all", corpora, CHATS),
    "Conversations.untrained": (f"{FIRST}.untrained=error", corpora, CHATS,
        "refused: SetpointError"),
    "Random.name": (f"{FIRST}.name=other", corpora),
    "Random.documents": (f"{FIRST}.documents=50", corpora),
    "Random.length": (f"{FIRST}.length=300", corpora),
    "Random.pattern": (f"{FIRST}.pattern=uniform", corpora),
    "Random.alphabet": (f"{FIRST}.alphabet=9", corpora),
    "Random.seed": (f"{FIRST}.seed=1", corpora),
    "Questions.name": (f"{FIRST}.name=other", corpora, QUESTIONS),
    "Questions.documents": (f"{FIRST}.documents=150", corpora, QUESTIONS),
    "Questions.seed": (f"{FIRST}.seed=1", corpora, QUESTIONS),
    "HuggingFace.path": ("tokenizer.path={tmp}/other", corpora, TOKENIZER),
    "HuggingFace.separator": ('tokenizer.separator="<|begin|>"', corpora, TOKENIZER),
    "HuggingFace.added": ('tokenizer.added=["<|im_end|>"]', model_vocabulary, TOKENIZER, 295),
    "Prepare.folder": ("data.prepare.folder={tmp}/two", prepared, PREPARED),
    "Prepare.above": ("data.prepare.above=0", prepared, ("data.prepare.folder={tmp}/three",)),
    "Prepare.workers": ("data.prepare.workers=7", prepared, PREPARED),
    "Tokens.name": (f"{FIRST}.name=other", documents, TOKENS),
    "Tokens.paths": (f'{FIRST}.paths=["{{tmp}}/b.npy"]', documents, TOKENS),
    "Tokens.token_dtype": (f"{FIRST}.token_dtype=uint16", documents,
        (*TOKENS, f'{FIRST}.paths=["{{tmp}}/raw.bin"]', f"{FIRST}.token_dtype=uint8")),
    "TokenIds.count": ("tokenizer.count=300", vocabulary,
        (*TOKENS, "tokenizer=ids", "model.vocab_size=400"), 300),
    "TokenIds.separator": ("tokenizer.separator=256", documents,
        (*TOKENS, "tokenizer=ids", "model.vocab_size=300")),
    "Tokens.separator": (f"{FIRST}.separator=3", documents, TOKENS),
    "HubDataset.name": (f"{FIRST}.name=other", documents, SAVED),
    "HubDataset.path": (f"{FIRST}.path={{tmp}}/saved2", documents, SAVED),
    "HubDataset.split": (f"{FIRST}.split=other", documents, SAVED),
    "HubDataset.field": (f"{FIRST}.field=title", documents, SAVED),
    "HubDataset.subset": (f"{FIRST}.subset=en", asked, HUB),
    "HubDataset.revision": (f"{FIRST}.revision=main", asked, HUB),
    "HubDataset.data_files": (f'{FIRST}.data_files=["a*.parquet"]', asked, HUB),
    "HubDataset.token": (f"{FIRST}.token=env:SOME_TOKEN", asked, HUB),
    "HubDataset.streaming": (f"{FIRST}.streaming=true", asked, HUB),
    "Filter.shortest": (f"{FIRST}.filter.shortest=5000", documents,
        (f'data.sources=[{{{KINDS["Stdlib"]}, filter={{}}}}]', *ALONE)),
    "Filter.longest": (f"{FIRST}.filter.longest=900", documents,
        (*RANDOM, f"{FIRST}.filter.too_long=truncate", f"{FIRST}.filter.longest=2000")),
    "Filter.too_long": (f"{FIRST}.filter.too_long=error", documents,
        (*RANDOM, f"{FIRST}.filter.too_long=truncate", f"{FIRST}.filter.longest=90")),
    "Filter.shards": (f"{FIRST}.filter.shards=3", documents,
        (*RANDOM, f"{FIRST}.filter.shards=2")),
    "Filter.shard": (f"{FIRST}.filter.shard=1", documents, (*RANDOM, f"{FIRST}.filter.shards=2")),
    "Text.shifted_labels": (f"{FIRST}.shifted_labels=true", documents,
        ('data.sources=[{type=text, paths=["{tmp}/shifted.jsonl"], ' "field=input_ids}]", *ALONE)),
    "Conversations.shifted_labels": (f"{FIRST}.shifted_labels=true", documents,
        ('data.sources=[{type=conversations, paths=["{tmp}/shifted.jsonl"]}]', *ALONE,
         "batch.sequence_length=8")),
    "HubDataset.shifted_labels": (f"{FIRST}.shifted_labels=true", documents,
        ('data.sources=[{type=huggingface, path="{tmp}/shifted", field=input_ids}]', *ALONE)),
    "Text.streaming": (f"{FIRST}.streaming=true", stream, STREAMED),
    "Data.shuffle_buffer": ("data.shuffle_buffer=2", stream,
        (*STREAMED, f"{FIRST}.streaming=true")),
    "Data.shuffle": ("data.shuffle=false", stream),
    "Data.curriculum": ("data.curriculum={}", stream),
    "Curriculum.by": (
        'data={curriculum: {by: score}, sources: [{type: huggingface, '
        'path: "{tmp}/scored", score: q}]}',
        stream,
        ('data.sources=[{type=huggingface, path="{tmp}/scored"}]', *ALONE,
         "data.curriculum.by=length")),
    "Curriculum.descending": ("data.curriculum.descending=true", stream, SCORED),
    "Text.score": (f"{FIRST}.score=r", stream,
        ('data.sources=[{type=text, paths=["{tmp}/scored.jsonl"], score=q}]', *ALONE,
         "data.curriculum.by=score")),
    "HubDataset.score": (f"{FIRST}.score=r", stream, SCORED),
    "Data.seed": ("data.seed=5", stream),
    "Packing.method": ("data.packing.method=next_fit", stream, NEXT_FIT[1:]),
    "Packing.isolate": ("data.packing.isolate=true", isolation, NEXT_FIT[1:]),
    "Packing.too_long": ("data.packing.too_long=truncate", stream, LONG),
    "Packing.group_size": ("data.packing.group_size=2", stream, NEXT_FIT),
    "Packing.length_buckets": ("data.packing.length_buckets=true", stream,
        ("data.packing.method=none", "batch.sequence_length=64",
         "data.sources=[{type=random, length=20}, {type=random, name=b, length=50}]")),
    "Packing.pad_to_multiple_of": ("data.packing.pad_to_multiple_of=8", stream, UNPACKED),
    "Mixture.temperature": ("data.mixture.temperature=3", stream,
        (*MIXED, "data.sources.0.weight=9")),
    "Mixture.by": ("data.mixture.by=tokens", stream,
        (MIXED[0].replace("=20", "=20, length=5", 1), "data.packing.method=none")),
    "Data.phases": ("data.phases=[{start=2, weights={other=9.0}}]", stream, MIXED),
    "Data.anneal": ("data.anneal={start=2, weights={other=9.0}}", stream, MIXED),
    "MixturePhase.start": ("data.anneal.start=3", stream,
        (*MIXED, "data.anneal={start=1, weights={other=9.0}}")),
    "MixturePhase.weights": ("data.anneal.weights={other=0.1}", stream,
        (*MIXED, "data.anneal={start=1, weights={other=9.0}}")),
    "MixturePhase.lr_factor": ("data.anneal.lr_factor=0.5", rates,
        (*MIXED, "data.anneal={start=2, lr_factor=0.9}")),
    "Loader.workers": ("data.loader.workers=1", processes),
    "Loader.prefetch": ("data.loader.prefetch=5", ahead, ("data.loader.workers=1",)),
    "Loader.pin_memory": ("data.loader.pin_memory=false", pinned, ("data.loader.workers=1",)),
    "Loader.timeout": ("data.loader.timeout=0.2", training_hangs, ("data.loader.workers=1",),
        "data.loader.timeout"),
    "EvaluationLoader.workers": ("data.loader.evaluation.workers=1", evaluating),
    "EvaluationLoader.prefetch": ("data.loader.evaluation.prefetch=5", evaluating, HELPED),
    "EvaluationLoader.pin_memory": ("data.loader.evaluation.pin_memory=false", pinned, HELPED),
    "EvaluationLoader.timeout": ("data.loader.evaluation.timeout=0.2", evaluation_hangs, HELPED,
        "data.loader.evaluation.timeout"),
}  # fmt: skip
# Rows long enough for whole documents, whose last tokens are what is learned.
FITS = {"Questions": ("batch.sequence_length=32",), "Conversations": ("batch.sequence_length=64",)}
for kind in KINDS:
    fits = FITS.get(kind, ())
    alone = (f"data.sources=[{{{KINDS[kind]}}}]", *ALONE, *fits)
    ROWS[f"{kind}.filter"] = (f"{FIRST}.filter={{longest=20, too_long=truncate}}", documents,
                              alone)  # fmt: skip
    mixed = (*mixed_with(kind), *fits)
    ROWS[f"{kind}.weight"] = ("data.sources.0.weight=5", stream, mixed)
    ROWS[f"{kind}.epochs"] = ("data.sources.0.epochs=0.001", stream, mixed)
