"""Llama 3 8B in pure bf16 and 1B with fp32 weights on one H200, beside a bare loop.

    cd benchmarks && python -m train.h200 [--cells 8b-full 8b-operators] [--output rows.jsonl]

Sequences of 4,096 tokens, 32,768 tokens an update, fused AdamW, clipping at 1.0. The two sides do
not fit beside each other, so each run is a process of its own, in the order A B A B (`--order`);
20 updates warm up, and then 50 are timed, each of them waited for. The bare loop has the same
model, loss, checkpointing and compiler. A speed without equal loss is void. Leaves with status 1
if losses differ, a run fails, or Setpoint is below 0.98 of the bare loop. `--small` runs the same
cells in small on a CPU. Rows go to `--output` one by one, so that a broken session loses one run;
`--order A` and such let runs be spread over several.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from setpoint.cli.style import table
from train.h200_cells import CELLS

SIDES = {"A": "setpoint", "B": "bare"}
BOUND, TOLERANCE = 0.98, 2e-2
WARM, TIMED = 20, 50
PUBLISHED = {
    "8b-full": 10_471
}  # tokens/s of KempnerForge on one H200 (benchmarks/mfu_scaling, 2026)
DEFAULT = ("8b-full", "8b-operators", "8b-none", "1b-autocast", "1b-master")
HEADINGS = (
    "cell",
    "side",
    "tokens/s",
    "10 %-90 %",
    "x bare",
    "palm",
    "palm_causal",
    "all_par.",
    "GiB",
    "first s",
    "last loss",
    "apart",
)


def main(given: Sequence[str] | None = None) -> int:
    """Run the benchmark.

    Arguments:
        given: the command line; that of the process if None.

    Returns:
        0 if all runs succeeded, losses agree and the bound is kept, else 1.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", nargs="+", choices=tuple(CELLS), default=[*DEFAULT])
    parser.add_argument("--order", default="ABAB", help="A is Setpoint, B the bare loop")
    parser.add_argument("--warm", type=int, default=WARM, help="updates that warm up")
    parser.add_argument("--steps", type=int, default=TIMED, help="updates that are timed")
    parser.add_argument("--small", action="store_true", help="in small, on a CPU")
    parser.add_argument("--output", type=Path, help="file that gets a line of JSON for each run")
    arguments = parser.parse_args(given)
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    for cell in arguments.cells:
        for letter in arguments.order:
            updates = arguments.warm + arguments.steps
            row = _run(cell, SIDES[letter], updates, arguments.small)
            if row is None:
                failed.append(f"FAILED {cell} {SIDES[letter]}: the run failed; see above")
                continue
            rows.append(row)
            speed = row["tokens"] / statistics.median(row["seconds"][arguments.warm :])
            print(f"{cell} {SIDES[letter]}: {speed:,.0f} tokens/s", flush=True)
            if arguments.output is not None:
                with arguments.output.open("a") as file:
                    file.write(json.dumps(row) + "\n")
        failed += judge([row for row in rows if row["cell"] == cell], arguments.warm)
    print("\n" + table(cells_of(rows, arguments.warm), headings=HEADINGS))
    for cell, figure in PUBLISHED.items():
        ours = [row for row in rows if (row["cell"], row["side"]) == (cell, SIDES["A"])]
        if ours and not arguments.small:
            share = speed_of(ours, arguments.warm) / figure
            print(f"\n{cell}: {share:.3f} of the published {figure:,} tokens/s")
    for row in rows[:1]:
        print(f"\n{row['device']}, torch {row['torch']}, clocks {row['clocks_after'] or 'unknown'}")
    print("\n".join(failed) or f"ok: losses agree; at least {BOUND} of the bare loop")
    # In small there is next to no arithmetic, so that speed says nothing.
    real = [line for line in failed if not (arguments.small and "of the bare loop" in line)]
    return 1 if real else 0


def _run(cell: str, side: str, updates: int, small: bool) -> dict[str, Any] | None:
    """One run in a process of its own; None if it fails, which it tells itself."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "row.json"
        words = (cell, side, str(updates), "small" if small else "full", str(answer))
        command = [sys.executable, "-m", "train.h200_run", *words]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
        return json.loads(answer.read_text()) if done.returncode == 0 else None


def judge(rows: Sequence[dict[str, Any]], warm: int) -> list[str]:
    """Compare the sides of one cell.

    Arguments:
        rows: of the runs of a cell.
        warm: updates that are not timed.

    Returns:
        the bounds that were missed; none where one side did not run.
    """
    ours = [row for row in rows if row["side"] == "setpoint"]
    bare = [row for row in rows if row["side"] == "bare"]
    if not ours or not bare:
        return []
    failed: list[str] = []
    cell = rows[0]["cell"]
    apart = max(furthest(bare[0]["losses"], row["losses"]) for row in rows)
    if not apart <= TOLERANCE:
        failed.append(f"FAILED {cell}: losses are {apart:.1e} apart, above {TOLERANCE}")
    found = speed_of(ours, warm) / speed_of(bare, warm)
    if found < BOUND:
        failed.append(f"FAILED {cell}: {found:.3f} of the bare loop, below {BOUND}")
    return failed


def speed_of(rows: Sequence[dict[str, Any]], warm: int) -> float:
    """Tokens per second of several runs.

    Arguments:
        rows: of one side of one cell.
        warm: updates of each that are not timed.

    Returns:
        by the median of all timed updates.
    """
    seconds = [second for row in rows for second in row["seconds"][warm:]]
    return rows[0]["tokens"] / statistics.median(seconds)


def furthest(one: Sequence[float], other: Sequence[float]) -> float:
    """How far the losses of two runs lie apart.

    Arguments:
        one: of each update.
        other: the same.

    Returns:
        the largest difference.
    """
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def cells_of(rows: Sequence[dict[str, Any]], warm: int) -> list[list[str]]:
    """The rows of the table: one for each side of each cell, over all its runs.

    Arguments:
        rows: of all runs.
        warm: updates of each that are not timed.

    Returns:
        texts.
    """
    lines: list[list[str]] = []
    for cell, side in dict.fromkeys((row["cell"], row["side"]) for row in rows):
        runs = [row for row in rows if (row["cell"], row["side"]) == (cell, side)]
        bare = [row for row in rows if (row["cell"], row["side"]) == (cell, "bare")]
        speed, first = speed_of(runs, warm), runs[0]
        seconds = sorted(second for row in runs for second in row["seconds"][warm:])
        tenths = [seconds[int(share * (len(seconds) - 1))] for share in (0.9, 0.1)]
        spread = "-".join(f"{first['tokens'] / second:,.0f}" for second in tenths)
        peak, taken = first["peak_flops"], first["peak_bytes"]
        shares = [
            "" if peak is None else f"{speed * flops / peak:.1%}"
            for flops in first["flops"].values()
        ]
        lines.append(
            [
                cell,
                side,
                f"{speed:,.0f}",
                spread,
                f"{speed / speed_of(bare, warm):.3f}" if bare else "",
                *shares,
                "" if taken is None else f"{max(r['peak_bytes'] for r in runs) / 2**30:.1f}",
                f"{max(row['seconds'][0] for row in runs):.1f}",
                f"{first['losses'][-1]:.4f}",
                f"{max(furthest((bare or runs)[0]['losses'], r['losses']) for r in runs):.1e}",
            ]
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
