"""Named data sets: read whole, refused where they cannot be judged on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from setpoint.config import SetpointError
from setpoint.config.record.record import fingerprint
from setpoint.config.resolving.checks import verify
from setpoint.config.schema.field import NEEDS
from setpoint.data.tokenizers.tokenizer import ByteTokenizer
from setpoint.train.build.components import build_components
from setpoint.train.build.job_data import build_datasets, trained_on
from setpoint.train.run import train

from ..small import events, rows, small_job


def files(folder: Path) -> str:
    """A data set of three files, as a flag."""
    (folder / "web").mkdir(exist_ok=True)
    for name, text in (("a", "first text " * 9), ("b", "second " * 9), ("c", "")):
        (folder / "web" / f"{name}.txt").write_text(text)
    source = f'{{type=text, paths=["{folder}/web/*.txt"]}}'
    return f"evaluation.datasets=[{{name=web, sources=[{source}]}}]"


def test_all_text_is_tokenized(tmp_path: Path) -> None:
    job = small_job(tmp_path, files(tmp_path))
    (web,) = (each.corpus for each in build_datasets(job, ByteTokenizer()).values())
    texts = [(tmp_path / "web" / f"{name}.txt").read_bytes() for name in "ab"]
    orders = [[256, *a, 256, *b, 256] for a, b in (texts, texts[::-1])]
    assert web.tokens.tolist() in orders, "a document without a byte is none"
    assert web.byte_count == sum(len(text) for text in texts)
    assert np.array_equal(build_components(job).eval_sets["web"].corpus.tokens, web.tokens)


def test_none_without_an_evaluation(tmp_path: Path) -> None:
    job = small_job(tmp_path, "evaluation=null")
    assert build_datasets(job, ByteTokenizer()) == {} == build_components(job).eval_sets


def test_they_are_no_part_of_what_is_learned(tmp_path: Path) -> None:
    job = small_job(tmp_path, files(tmp_path))
    assert fingerprint(job) == fingerprint(small_job(tmp_path))


def test_a_set_without_text_is_refused_and_a_short_one_is_not(tmp_path: Path) -> None:
    job = small_job(tmp_path, files(tmp_path), "batch.sequence_length=16")
    for name in "abc":
        (tmp_path / "web" / f"{name}.txt").write_text("")
    where = r"evaluation\.datasets\.0\.sources: the sources have no text"
    with pytest.raises(SetpointError, match=where):
        build_components(job)
    (tmp_path / "web" / "a.txt").write_text("short")
    assert len(build_components(job).eval_sets["web"]) == 1


def test_missing_files_are_found_by_check(tmp_path: Path) -> None:
    flag = files(tmp_path).replace("*.txt", "*.text")
    found = verify(small_job(tmp_path, flag), NEEDS).problems
    (problem,) = [p for p in found if p.path.startswith("evaluation")]
    assert problem.path == "evaluation.datasets.0.sources.0.paths.0"
    assert "text" in problem.message
    with pytest.raises(SetpointError, match=r"evaluation\.datasets\.0\.sources\.0\.paths\.0"):
        build_components(small_job(tmp_path, flag))


def test_documents_that_are_learned_from_as_well_are_named(tmp_path: Path) -> None:
    same = "{name=same, sources=[{type=random, documents=40, length=200, alphabet=8}]}"
    other = "{name=other, sources=[{type=random, documents=4, length=200, seed=3}]}"
    job = small_job(tmp_path, f"evaluation.datasets=[{same}, {other}]")
    components = build_components(job)
    (line,) = trained_on(components.train_data, components.eval_sets)
    trained = len(components.train_data.identity.files)
    assert line.startswith(f"caution: {trained} of 40 evaluated documents of same are also tr")
    assert list(trained_on(components.train_data, {"held_out": components.held_out})) == []


def test_a_run_goes_on_with_another_text_under_the_same_name(tmp_path: Path) -> None:
    """A source is what is learned among the data, and a setting of the run here."""
    web = "evaluation.datasets=[{name=web, sources=[{type=random, documents=3, seed=SEED}]}]"

    def run(seed: int) -> Path:
        flags = ("schedule=constant", f"duration={seed} steps", web.replace("SEED", str(seed)))
        return train(small_job(tmp_path, *flags)).directory

    folder = run(3)
    assert run(4) == folder
    paths = [item["path"] for item in events(folder, "resume")[-1]["accepted"]]
    assert set(paths) == {"duration", "evaluation.datasets.0.sources.0.seed"}
    assert [row["step"] for row in rows(folder) if row["kind"] == "evaluation"] == [3, 4]
