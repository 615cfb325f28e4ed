"""Writes records of today's schema into `schema-N/`; a program, run once for each schema.

    python -m tests.corpus.make

What is there already is frozen: it is not written again, unless `--replace` is given, which is
right only while the schema has not been released.
"""

import json
import os
import sys
from pathlib import Path

import setpoint.presets  # noqa: F401 - registers them
from setpoint.config.composition import compose
from setpoint.config.record.fingerprint import canonical, fingerprint
from setpoint.config.record.record import record_files
from setpoint.train.config import Job

FOLDER = Path(__file__).parent
TEXTS = "[{type: text, paths: ['books/*.txt', notes.md]}, {type: random, documents: 40}]"
LINEAR = ["--schedule.warmup", "${schedule.horizon // 10}"]
PHASES = "[{length: 9, target: 1}, {target: 0.5}, {length: 25 %, target: 0}]"
MIXED = "[{type: stdlib, weight: 3}, {type: random, weight: 1, epochs: 2}]"
ANNEAL = "{start: 200 steps, weights: {random: 2}, lr_factor: 0.5}"
IN_PHASES = "[{start: 40 steps, weights: {random: 2}}, {start: 3e5 tokens, lr_factor: 0.5}]"
PACKED = ["--data.packing.method", "first_fit_decreasing", "--data.packing.group_size", "500"]
LOADED = ["--data.loader.workers", "2", "--data.loader.evaluation.workers", "1"]
NOT_SAVED = "evaluated-but-not-saved"

# Name -> modifiers and flags, all on the preset `tiny`.
CASES: dict[str, tuple[list[str], list[str]]] = {
    "tiny": ([], []),
    "tiny-smoke-reproducible": (["smoke(steps=5)", "reproducible"], ["--seed", "7"]),
    "text-sources": ([], ["--data.sources", TEXTS, "--data.held_out", "0.1"]),
    "no-evaluation": ([], ["--evaluation", "null"]),
    "no-trackers": ([], ["--tracking.trackers", "[]"]),
    "constant": ([], ["--schedule", "constant", "--schedule.warmup", "20"]),
    "cosine-references": ([], [*LINEAR, "--model.ffn_dim", "${model.dim * 4}"]),
    "tokens": ([], ["--duration", "2e6 tokens, 30 min"]),
    "epochs": ([], ["--duration", "3 epochs", "--schedule", "wsd", "--schedule.warmup", "9"]),
    "phases": ([], ["--schedule", "piecewise", "--schedule.phases", PHASES]),
    "user-area": ([], ["--user.note", "a word", "--user.a.list", "[1, 2.5, true, null]"]),
    "batch": ([], ["--batch.global_size", "32", "--batch.micro_size", "4"]),
    "mixture": ([], ["--data.sources", MIXED, "--data.anneal", ANNEAL]),
    "mixture-phases": (
        [],
        ["--data.sources", MIXED, "--data.mixture.temperature", "2", "--data.phases", IN_PHASES],
    ),
    "packing": ([], [*PACKED, "--data.packing.too_long", "truncate", *LOADED]),
    "silence": ([], ["--silence", "[warmup-longer-than-run]"]),
    "plateau": ([], ["--schedule", "plateau", "--silence", f"[{NOT_SAVED}]"]),
}


def write(name: str, folder: Path) -> None:
    """Write one record with what is expected of it.

    Arguments:
        name: one of `CASES`.
        folder: where.
    """
    modifiers, flags = CASES[name]
    config = compose(Job, "tiny", modifiers=modifiers, flags=flags).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in record_files(config).items():
        (folder / file).write_text(text, encoding="utf-8")
    expected = {"fingerprint": fingerprint(config), "canonical": json.loads(canonical(config))}
    text = json.dumps(expected, indent=1, sort_keys=True)
    (folder / "expected.json").write_text(f"{text}\n", encoding="utf-8")


def main() -> None:
    """Write every case that is not there yet."""
    os.chdir(FOLDER.parents[1])
    for name in CASES:
        folder = FOLDER / f"schema-{Job.__setpoint__.schema}" / name
        if "--replace" in sys.argv or not folder.exists():
            write(name, folder)
            print(folder.relative_to(FOLDER))


if __name__ == "__main__":
    main()
