"""Time within one process: layers, validation, forks and serialization, beside peers.

    python -m config.warm [--rounds 25]

- layers: a parsed file and ten flags as texts become a checked config
- validate: the same values, merged into plain data of the right types, become a checked config
- fork: a config becomes another one with three fields changed, all of it checked
- serialize: the whole config to JSON and back to a checked config

Misses its bound if Setpoint takes more than the stated multiple of pydantic's time, or if the time
to compose and resolve grows with more than the power 1.2 of the number of values.
"""

from __future__ import annotations

import gc
import importlib
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import Report

from . import tree
from .cold import write_program

SECTIONS, STEEPEST = (12, 50, 200), 1.2
Steps = dict[str, Callable[[], Any]]
# How many times pydantic's time Setpoint's may be; it passes each value through Python with its
# origin, which pydantic does not keep.
BOUNDS = {"layers": 1, "validate": 50, "fork": 10, "serialize": 75}


def setpoint(cls: Any) -> Steps:
    from setpoint.config.draft.walk import to_plain
    from setpoint.config.files.read import parse
    from setpoint.config.files.write import write_json
    from setpoint.config.layers.editor import Editor
    from setpoint.config.layers.flags import put_flags, read_flags
    from setpoint.config.resolving.resolve import resolve
    from setpoint.config.values.origin import FILE, Origin

    flags = [f"--{path}={value}" for path, value in tree.FLAGS.items()]

    def read(values: Any, flags: list[str]) -> Any:
        editor = Editor(cls())
        editor.merge(values, Origin(FILE, "values.toml"))
        put_flags(editor, read_flags(cls, flags))
        return resolve(editor.root, problems=editor.problems)

    config = read(tree.file_values(), flags)
    assert to_plain(config) == tree.expected()

    def fork() -> Any:
        draft = config.evolve()
        for path, value in tree.FORK.items():
            section, _, name = path.rpartition(".")
            setattr(getattr(draft, section), name, value)
        return resolve(draft)

    return {
        "layers": lambda: read(tree.file_values(), flags),
        "validate": lambda: read(tree.merged(), []),
        "fork": fork,
        "serialize": lambda: read(
            parse(write_json(to_plain(config)), "json", "config.json").data, []
        ),
    }


def pydantic(cls: Any) -> Steps:
    from pydantic_settings import BaseSettings, CliApp, CliSettingsSource, SettingsConfigDict

    class Settings(BaseSettings, cls):
        model_config = SettingsConfigDict(extra="forbid", frozen=True, env_prefix="PEER__")

    # A parser is made once, and used for every call.
    source = CliSettingsSource(Settings, cli_parse_args=False)
    flags = [f"--{path}={value}" for path, value in tree.FLAGS.items()]
    config = cls.model_validate(tree.merged())
    assert config.model_dump(mode="json") == tree.expected()

    def fork() -> Any:
        changed = config.model_dump()
        for path, value in tree.FORK.items():
            tree.put(changed, path, value)
        return cls.model_validate(changed)

    return {
        "layers": lambda: CliApp.run(
            Settings, cli_args=flags, cli_settings_source=source, **tree.file_values()
        ),
        "validate": lambda: cls.model_validate(tree.merged()),
        "fork": fork,
        "serialize": lambda: cls.model_validate_json(config.model_dump_json()),
    }


def omegaconf(cls: Any) -> Steps:
    """The engine of Hydra: structured configs merged with plain data and a dot list."""
    from omegaconf import OmegaConf

    base = OmegaConf.structured(cls)
    flags = [f"{path}={value}" for path, value in tree.FLAGS.items()]
    fork = [f"{path}={value}" for path, value in tree.FORK.items()]
    config = OmegaConf.merge(base, tree.merged())
    return {
        "layers": lambda: OmegaConf.merge(base, tree.file_values(), OmegaConf.from_dotlist(flags)),
        "validate": lambda: OmegaConf.merge(base, tree.merged()),
        "fork": lambda: OmegaConf.merge(config, OmegaConf.from_dotlist(fork)),
        "serialize": lambda: OmegaConf.merge(base, OmegaConf.create(OmegaConf.to_yaml(config))),
    }


SIDES = {"setpoint": setpoint, "pydantic-settings": pydantic, "Hydra": omegaconf}


def growth(rounds: int) -> list[tuple[int, float]]:
    """Numbers of values, and seconds to compose and resolve trees of them with ten flags."""
    from setpoint.config.composition import compose

    found: list[tuple[int, float]] = []
    for sections in SECTIONS:
        name = f"tree_of_{sections}"
        module: Any = type(sys)(name)
        sys.modules[name] = module
        exec(compile(tree.module("setpoint", sections), name, "exec"), vars(module))
        flags = [f"--s{sections * n // 10}.width={n + 1}" for n in range(10)]
        _seconds(lambda: compose(module.Tree, flags=flags).resolve(), 1)  # noqa: B023
        seconds = [
            _seconds(lambda: compose(module.Tree, flags=flags).resolve(), 1)  # noqa: B023
            for _ in range(rounds)
        ]
        found.append((sections * 20 + 10, statistics.median(seconds)))
    return found


def main(words: list[str] | None = None) -> int:
    report = Report("config.warm", __doc__, words, rounds=25)
    gc.disable()  # collections come at moments of their own
    with tempfile.TemporaryDirectory() as name:
        sys.path.insert(0, name)
        steps: dict[tuple[str, str], Callable[[], Any]] = {}
        for side, make in SIDES.items():
            write_program(Path(name), side)
            module = importlib.import_module(f"tree_{make.__name__}")
            steps |= {(make.__name__, step): run for step, run in make(module.Tree).items()}
    times: dict[tuple[str, str], list[float]] = {step: [] for step in steps}
    counts = {
        step: max(1, round(0.004 / max(_seconds(run, 2), 1e-6))) for step, run in steps.items()
    }
    for _ in range(report.options.rounds):
        for step, run in steps.items():
            times[step].append(1e6 * _seconds(run, counts[step]))
        gc.collect()
    medians = {step: statistics.median(values) for step, values in times.items()}
    report.rows = [
        (side, *(f"{medians.get((side, step), math.nan):.0f}" for step in BOUNDS))
        for side in dict.fromkeys(side for side, _ in steps)
    ]

    def against(*names: str) -> str:
        return "; ".join(
            f"{name}: " + ", ".join(f"{side} {medians[side, name]:.0f}" for side, step in medians
                                    if step == name)
            for name in names
        ) + " us"  # fmt: skip

    for step, most in BOUNDS.items():
        ratio = medians["setpoint", step] / medians["pydantic", step]
        report.bound(ratio <= most, f"{step}: {ratio:.2f} times pydantic's time, above {most}")
    (few, first), *_, (many, last) = growth(report.options.rounds)
    exponent = math.log(last / first, many / few)
    report.bound(exponent <= STEEPEST, f"time grows with the power {exponent:.2f} of the values")
    report.results = {
        "merging and checking parsed layers in one process, 250 values": against("layers"),
        "changing three fields, with a check": against("fork"),
        "validating plain data; serializing": against("validate", "serialize"),
        "growth of composing and resolving with the number of values; bound 1.2":
            f"exponent {exponent:.2f} from {few} to {many:,}; {1e3 * last:.1f} ms for these",
    }  # fmt: skip
    note = f"CPU us for {tree.LEAVES} leaves, medians of {report.options.rounds} interleaved runs"
    return report.finish(("side", *BOUNDS), note)


def _seconds(run: Callable[[], Any], count: int) -> float:
    before = time.process_time()
    for _ in range(count):
        run()
    return (time.process_time() - before) / count


if __name__ == "__main__":
    sys.exit(main())
