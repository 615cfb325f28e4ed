"""No dead knobs: each field of a job and its sections changes something, in a table of all."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from setpoint.config import Config, SetpointError
from setpoint.config.schema.class_info import section_classes
from setpoint.track.config import ServiceConfig
from setpoint.train.config import Job

from ..data.tokenizers_here import byte_level
from ..support.cases import few
from ..support.cuda_autocast import cuda_autocast
from .effects import (
    checkpoint_fields,
    data_fields,
    hardware_fields,
    model_fields,
    optimizer_fields,
    parallel_fields,
    resilience_fields,
    run_fields,
)
from .small import small_job

BASE = ("duration=4 steps", "model.dropout=0")
TABLES = (
    run_fields, model_fields, optimizer_fields, data_fields, parallel_fields, hardware_fields,
    checkpoint_fields, resilience_fields,
)  # fmt: skip


@dataclass(frozen=True)
class Effect:
    """One field that is changed, and where the change is seen.

    Arguments:
        change: the override; `{tmp}` is a folder with texts.
        see: gives what must differ.
        base: overrides on both sides.
        gives: what is seen with the change, where it can be said in short.
        without: fields that the file of the job must not set.
    """

    change: str
    see: Callable[[Job], Any]
    base: tuple[str, ...] = ()
    gives: Any = None
    without: tuple[str, ...] = ()


EFFECTS = {name: Effect(*row) for table in TABLES for name, row in table.ROWS.items()}

# Fields that one implementation serves in several classes; `make test` changes them in one or two.
SHARED_FIELDS = {
    "SGDConfig LionConfig ScheduleFreeAdamWConfig AnyPrecisionAdamWConfig AdafactorConfig "
    "ImportedOptimizer": "no_decay no_decay_patterns groups frozen frozen_spans clip_norm "
    "clip_value",
    "DoRA ReLoRA QLoRA": "alpha rank_stabilized ranks dropout b_std targets exclude train "
    "fused_projections quantize",
    "Stdlib Conversations Random Questions Tokens HubDataset": "filter weight epochs",
    "ChunkedCrossEntropy": "ignore_index token_weights",
    "CheckpointedParts Operators": "every reentrant",
    "Int8 FP8 NVFP4 MXFP4": "exclude noise",
    "Linear Polynomial Rex Wsd InverseSqrt Piecewise Plateau": "warmup warmup_from horizon "
    "horizon_share floor by",
}
RARELY = {
    f"{cls}.{field}"
    for classes, fields in SHARED_FIELDS.items()
    for cls in classes.split()
    for field in fields.split()
} & EFFECTS.keys()

# Sections that are always there and have no value of their own: what is in them has.
SECTIONS = {
    "Job.model", "Job.tokenizer", "Job.data", "Job.batch", "Job.optimizer", "Job.loss",
    "Job.precision", "Job.parallel", "Job.checkpoint", "Job.memory", "Job.tracking",
    "Job.resilience", "Parallel.pipelining", "Data.mixture", "Data.loader", "Loader.evaluation",
    "Data.packing", "Data.prepare", "Tracking.metrics",
}  # fmt: skip


def classes(cls: type[Config] = Job) -> Iterator[type[Config]]:
    """All config classes that a job can hold, itself included."""
    yield cls
    for info in cls.__setpoint__.fields.values():
        for below in section_classes(info.type):
            # Not made by another test, nor a service, whose fields are in test_services.py.
            if below.__module__.startswith("setpoint.") and not issubclass(below, ServiceConfig):
                yield from classes(below)


def observed(effect: Effect, folder: Path, flags: tuple[str, ...]) -> Any:
    try:
        seen = effect.see(small_job(folder, *flags, without=effect.without))
    except SetpointError as error:
        return f"refused: {type(error).__name__}"
    return seen.replace(str(folder), "HERE") if isinstance(seen, str) else seen


class Before:
    """Observations without a change, once for all rows that start from the same.

    Arguments:
        folder: for what rows name by `{tmp}`, and for the runs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen: dict[tuple[Any, ...], Any] = {}
        (folder / "text").mkdir()
        for number in range(24):
            text = f"{number}: one two three four five six seven eight nine ten " * 9
            (folder / "text" / f"{number}.txt").write_text(text)
        rows = [{"text": f"the text of row {n}", "title": f"row {n}, its title"} for n in range(99)]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "chats").mkdir()
        for number in range(24):
            rows = [{"prompt": f"{number}? " * 9, "completion": "one two three"}, {"prompt": "a"}]
            rows[1]["completion"] = "" if number == 3 else "b"
            text = "\n".join(json.dumps(row) for row in rows)
            (folder / "chats" / f"{number}.jsonl").write_text(text)
        data_fields.prepare_sources(folder)
        byte_level(folder / "tokenizer")
        byte_level(folder / "other", vocab_size=280)

    def __call__(self, effect: Effect, base: tuple[str, ...]) -> Any:
        key = (effect.see, base, effect.without)
        if key not in self._seen:
            self._seen[key] = observed(effect, self.folder / str(len(self._seen)), base)
        return self._seen[key]


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Before:
    return Before(tmp_path_factory.mktemp("before"))


def test_each_field_is_in_the_table() -> None:
    assert len(EFFECTS) == sum(len(table.ROWS) for table in TABLES), "a field in two tables"
    names = {f"{cls.__name__}.{name}" for cls in classes() for name in cls.__setpoint__.fields}
    assert names - SECTIONS == EFFECTS.keys()
    for name in SECTIONS:
        owner, _, field = name.partition(".")
        (cls,) = {cls for cls in classes() if cls.__name__ == owner}
        assert isinstance(cls.__setpoint__.fields[field].initial(), Config)


@pytest.mark.parametrize("name", few(EFFECTS, EFFECTS.keys() - RARELY))
def test_the_field_has_an_effect(before: Before, tmp_path: Path, name: str) -> None:
    has_effect(before, tmp_path, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(EFFECTS.keys() - {"Precision.compute"}))
def test_the_field_has_an_effect_on_a_gpu(before: Before, tmp_path: Path, name: str) -> None:
    """As far as autocast tells: in bf16, with the lists of operators that CUDA has."""
    with cuda_autocast():
        has_effect(before, tmp_path, name, "precision.compute=bf16")


def has_effect(before: Before, tmp_path: Path, name: str, *more: str) -> None:
    effect = EFFECTS[name]
    if name in model_fields.PRETRAINED_ROWS:
        model_fields.prepare(before.folder, name)
    if name.startswith("Checkpoint."):
        checkpoint_fields.prepare_loaded(before.folder)
    # Models of transformers have no dropout of that name.
    common = BASE[:1] if name.startswith("HuggingFaceConfig") else BASE
    flags = [flag.replace("{tmp}", str(before.folder)) for flag in (*common, *more, *effect.base)]
    change = effect.change.replace("{tmp}", str(before.folder))
    without = before(effect, tuple(flags))
    after = observed(effect, tmp_path, (*flags, change))
    assert not str(without).startswith("refused"), without
    assert after != without
    if effect.gives is not None:
        assert after == effect.gives
