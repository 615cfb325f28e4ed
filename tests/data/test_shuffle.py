"""`data.shuffle = false`: every source is read in its own order, in each epoch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from setpoint.config import SetpointError
from setpoint.config.composition import compose
from setpoint.data.cache import corpora
from setpoint.shapes.batch import IGNORE_INDEX
from setpoint.train.build.job_data import build_training_data
from setpoint.train.config import Job

S = 16
# Listed against the order of their names; more rows than a number of one digit sorts by itself.
FILES = ("z", "b", "k")
TEXTS = {
    name: [f"{name}{row}" + "." * ((row * 7 + at) % 23) for row in range(12)]
    for at, name in enumerate(FILES)
}


def whole(folder: Path) -> dict[str, Any]:
    for name, texts in TEXTS.items():
        (folder / f"{name}.txt").write_text("\n--\n".join(texts))
    return {"type": "text", "separator": "\n--\n", "paths": [f"{folder}/{n}.txt" for n in FILES]}


def jsonl(folder: Path) -> dict[str, Any]:
    for name, texts in TEXTS.items():
        lines = (json.dumps({"text": text}) + "\n" for text in texts)
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return {"type": "text", "paths": [f"{folder}/{name}.jsonl" for name in FILES]}


def parquet(folder: Path) -> dict[str, Any]:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for name, texts in TEXTS.items():
        parquet.write_table(pa.table({"text": texts}), folder / f"{name}.parquet")
    return {"type": "text", "paths": [f"{folder}/{name}.parquet" for name in FILES]}


def hub(folder: Path) -> dict[str, Any]:
    datasets = pytest.importorskip("datasets")
    texts = [text for name in FILES for text in TEXTS[name]]
    datasets.Dataset.from_dict({"text": texts}).save_to_disk(folder / "set", num_proc=None)
    return {"type": "huggingface", "path": str(folder / "set")}


def tokens(folder: Path) -> dict[str, Any]:
    for name, texts in TEXTS.items():
        ids = [id for text in texts for id in [*text.encode(), 256]]
        np.array(ids, np.uint16).tofile(folder / f"{name}.bin")
    paths = [f"{folder}/{name}.bin" for name in FILES]
    return {"type": "tokens", "paths": paths, "token_dtype": "uint16"}


def streamed(folder: Path) -> dict[str, Any]:
    return {**jsonl(folder), "streaming": True}


def mixed(folder: Path) -> dict[str, Any]:
    return {**jsonl(folder), "weight": 1.0}


SOURCES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "text": whole, "jsonl": jsonl, "parquet": parquet, "huggingface": hub, "tokens": tokens,
    "streamed": streamed, "mixed": mixed,
}  # fmt: skip


def job_of(source: dict[str, Any], *flags: str) -> Job:
    return compose(
        Job,
        flags=[
            f"data.sources=[{json.dumps(source)}]", "data.held_out=0", "evaluation=null",
            "data.shuffle=false", f"batch.sequence_length={S}", *flags,
        ],
    ).resolve()  # fmt: skip


def rows_of(job: Job, count: int) -> list[tuple[list[int], list[int]]]:
    sides = corpora(job.data, job.tokenizer.build(), job.data.is_mixture)
    sequences, sampler = build_training_data(job, sides.train)
    batch = sequences.rows(sampler.take(count))
    sampler.close()
    return [
        (inputs[: (kept := sum(t != IGNORE_INDEX for t in targets))], targets[:kept])
        for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True)
    ]


def expected_windows() -> list[tuple[list[int], list[int]]]:
    """One epoch, laid in a row and cut every S + 1 tokens, as a plain loop does it."""
    row = [256]
    for name in FILES:
        for text in TEXTS[name]:
            row += [*text.encode(), 256]
    cut = [row[at : at + S + 1] for at in range(0, len(row) - S, S + 1)]
    return [(window[:-1], window[1:]) for window in cut]


@pytest.mark.parametrize("kind", SOURCES)
def test_windows_follow_the_files(kind: str, tmp_path: Path) -> None:
    one = expected_windows()
    # A second epoch is in the same order, and prepared data is the same again.
    job = job_of(SOURCES[kind](tmp_path))
    assert rows_of(job, 2 * len(one)) == 2 * one
    if kind in ("text", "mixed"):
        prepared = ("data.prepare.above=1", f"data.prepare.folder={tmp_path}/cache")
        job = job_of(SOURCES[kind](tmp_path), *prepared, "data.prepare.workers=1")
        assert rows_of(job, 2 * len(one)) == 2 * one
        assert (tmp_path / "cache").is_dir()


@pytest.mark.parametrize("kind", ["jsonl", "streamed"])
@pytest.mark.parametrize("method", ["next_fit", "first_fit_decreasing", "none"])
def test_packing_takes_documents_in_their_order(method: str, kind: str, tmp_path: Path) -> None:
    job = job_of(
        SOURCES[kind](tmp_path), f"data.packing.method={method}", "batch.sequence_length=48"
    )
    rows = rows_of(job, 36 if method == "none" else 8)
    texts = [text for name in FILES for text in TEXTS[name]]
    seen = "".join("".join(map(chr, targets)) for _, targets in rows).split(chr(256))[:-1]
    if method == "first_fit_decreasing":  # by length, but no longer at random
        assert len(seen[0]) == max(map(len, texts)) and rows == rows_of(job, len(rows))
    else:
        assert seen == texts[: len(seen)]


def test_a_position_is_refused_in_another_order(tmp_path: Path) -> None:
    source = jsonl(tmp_path)
    for method in ("concatenate", "next_fit"):
        packing = f"data.packing.method={method}"
        jobs = [job_of(source, packing), job_of(source, packing, "data.shuffle=true")]
        samplers = [
            build_training_data(job, corpora(job.data, job.tokenizer.build()).train)[1]
            for job in jobs
        ]
        with pytest.raises(
            SetpointError, match=r"data\.shuffle: .* the order sources, and now it is shuffled"
        ):
            samplers[1].load_state_dict(samplers[0].state_dict())
        with pytest.raises(
            SetpointError, match=r"data\.shuffle: .* the order shuffled, and now it is sources"
        ):
            samplers[0].load_state_dict(samplers[1].state_dict())
