"""A value that says what holds anyway is not a dead value, wherever a rule refuses others."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from setpoint.config import PROGRAM, Config, ConfigError, Invalid, Origin, is_set, to_plain
from setpoint.config.composition import compose
from setpoint.config.draft.config import fields_of
from setpoint.config.draft.walk import sections
from setpoint.config.resolving.checks import verify
from setpoint.config.schema.field import MARK
from setpoint.config.words.names import dotted
from setpoint.infer.config import Inference

from ..small import small_job
from ..test_every_field_is_read import JOBS, job_flags

REASON = "it is dead in this test"
# What holds in a mode by itself, which rules compare in words of their own.
HOLDING: tuple[tuple[tuple[str, ...], str], ...] = (
    ((), "precision.reduce=fp32"),
    ((), "precision.master=fp32"),
    ((), "precision.gather=fp32"),
    (("precision={params: bf16, compute: bf16}",), "precision.gather=bf16"),
    (("parallel.device=cpu",), "parallel.init_device=cpu"),
    (("parallel.world_size=2", "parallel.engine=deepspeed", "batch.accumulation=1"),
     "precision={reduce: fp32, optimizer_state: fp32}"),
    (("model.vocab_size=512",), "model.vocab_multiple_of=64"),
    (("optimizer.weight_decay=0",),
     "optimizer.groups=[{pattern: embedding, lr_multiplier: 2, weight_decay_multiplier: 0}]"),
    (("schedule=constant",), "schedule.warmup_from=1"),
    (("schedule=polynomial", "schedule.floor=0"), "schedule.hard_floor=true"),
    (("loss.ignore_index=0",), 'loss.token_weights={"0": 0, "1": 0.5}'),
    (("evaluation=null",), "checkpoint.keep_best=false"),
    (("precision={compute: bf16, float8: {recipe: mxfp8}}", "parallel.device=cuda",
      "model={dim: 32, ffn_dim: 64, heads: 1, moe: {experts: 4, packed: false}}"),
     "precision.float8.experts=true"),
    (("checkpoint.save=false",), "checkpoint.last=none"),
    (("checkpoint.save=false",), "checkpoint.at=[]"),
    (("checkpoint.every=9 steps",), "checkpoint.also_every=never"),
    (("compile.backend=aot_eager",), "compile.mode=default"),
)  # fmt: skip


def test_a_value_that_holds_in_a_mode_is_accepted(tmp_path: Path) -> None:
    for mode, value in HOLDING:
        small_job(tmp_path, *mode, value)


def test_each_field_that_can_be_dead_may_say_what_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[str] = set()
    for number, name in enumerate(JOBS):
        folder = tmp_path / str(number)
        folder.mkdir()
        flags = job_flags(name, folder)
        seen |= may_say_what_holds(functools.partial(small_job, folder), flags, monkeypatch, seen)

    def inference(*flags: str) -> Config:
        return compose(Inference, flags=[*flags]).resolve()

    flags = ["weights.path=run", "generation.prompts=[a]", 'harness={tasks: ["arc_easy"]}']
    seen |= may_say_what_holds(inference, flags, monkeypatch, seen)
    assert len(seen) > 90


def may_say_what_holds(
    make: Callable[..., Any], flags: list[str], monkeypatch: pytest.MonkeyPatch, seen: set[str]
) -> set[str]:
    """Give each field of a job that can be dead what holds; the fields, as `Class.field`."""
    tried, refused = set[str](), list[str]()
    for path, section in sections(make(*flags)):
        for name in type(section).__setpoint__.deads:
            function = getattr(type(section), name)
            mark = getattr(function, MARK)
            for field in mark.names:
                label = f"{type(section).__name__}.{name}.{field}"
                *outer, last = field.split(".")
                owner = functools.reduce(lambda s, n: getattr(s, n, None), outer, section)
                if label in seen or not isinstance(owner, Config) or last not in fields_of(owner):
                    continue  # of a section that is null, or of another variant
                if is_set(owner, last):
                    continue  # what the job gives would be dead as well
                tried.add(label)

                @functools.wraps(function)
                def reason(_: Any) -> str:
                    return REASON

                with monkeypatch.context() as patch:
                    patch.setattr(type(section), name, reason)
                    for value in held(owner, last, mark.holds):
                        place = dotted((*path, field))
                        if REASON in said_of(make, flags, f"{place}={value}", place):
                            refused.append(f"{label} = {value}")
    assert not refused
    return tried


def held(section: Config, field: str, holds: tuple[object, ...]) -> list[str]:
    """The values to give, as texts: the default, null, and what the rule says."""
    info = type(section).__setpoint__.fields[field]
    default = () if info.required or info.derived else (info.initial(),)
    texts: list[str] = []
    for value in (*default, None, *holds):
        try:
            info.read(value, Origin(PROGRAM))
        except Invalid:
            continue
        texts.append(value if isinstance(value, str) else json.dumps(value, default=plain))
    return list(dict.fromkeys(texts))


def plain(value: Any) -> Any:
    """A section or scalar as JSON can hold it."""
    return to_plain(value) if isinstance(value, Config) else value.dump()


def said_of(make: Callable[..., Any], flags: list[str], flag: str, place: str) -> str:
    """The problems of a place with a value."""
    try:
        make(*flags, flag)
    except ConfigError as error:
        return "\n".join(each.message for each in error.problems if each.path == place)
    return ""


FUSED = ("optimizer=sgd", "optimizer.implementation=fused")
SHORT = ("precision.params=bf16", "precision.compute=bf16")
IMPORTED = "model={type=import, target=torch.nn.Linear, in_features=8, out_features=8}"
PATTERN = ("optimizer.no_decay_patterns=[norm]",)
NEEDS_GPU, NEEDS_MODEL = "need a GPU", "optimizer settings that apply to no parameter of the built"


@pytest.mark.parametrize(
    ("flags", "words", "wanted"),
    [
        ((*FUSED, *SHORT), NEEDS_GPU, True),
        (FUSED, NEEDS_GPU, False),
        ((*FUSED, *SHORT, "precision.master=fp32"), NEEDS_GPU, False),
        ((*FUSED, *SHORT, "parallel.device=cuda"), NEEDS_GPU, False),
        (("optimizer.implementation=fused", *SHORT), NEEDS_GPU, False),
        (("memory.activation_checkpointing=full",), NEEDS_GPU, False),
        (("memory.empty_cache=9 steps",), NEEDS_GPU, True),
        (PATTERN, NEEDS_MODEL, False),
        ((*PATTERN, IMPORTED), NEEDS_MODEL, True),
        ((IMPORTED,), NEEDS_MODEL, False),
    ],
)
def test_only_checks_that_a_job_needs_are_said_to_be_skipped(
    flags: tuple[str, ...], words: str, wanted: bool, tmp_path: Path
) -> None:
    skipped = [str(each) for each in verify(small_job(tmp_path, *flags), ()).skipped]
    assert any(words in text for text in skipped) is wanted
