"""Timeline of a step: drawn in characters, or as an HTML page without scripts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from setpoint.plan.step_time import StepEvent
from setpoint.report.page.html import MARK, hash_of

SIGNS = {
    "forward": "F",
    "backward": "B",
    "weight": "W",
    "gather": "G",
    "reduce": "R",
    "optimizer": "O",
}
"""Letters of event kinds; lower case off the critical path."""
WORDS = {
    "forward": "forward pass",
    "backward": "backward pass with recomputation",
    "weight": "gradients of weights",
    "gather": "weight all-gather",
    "reduce": "gradient reduction",
    "optimizer": "update",
}
IDLE = "."
SEEN = 0.2
"""Minimum share of an event in an otherwise idle column to be drawn."""
ROWS = 16
"""Maximum rows of a drawing in characters."""
RECTANGLES = 20_000
"""Maximum rectangles of a page; further rows are left out."""


def draw(events: Sequence[StepEvent], width: int = 100) -> str:
    """Draw events in characters: one row per rank or stream, time from left to right.

    A column shows the kind that takes most of its time, unless the column is mostly idle. Kinds
    that share columns, as with many micro-batches, alternate in proportion to their shares.
    """
    names = list(dict.fromkeys(event.row for event in events))
    end = max((event.end for event in events), default=0.0)
    if not end:
        return ""
    shown, left_out = _shown(names)
    margin = max(len(name) for name in shown) + 2
    columns = width - margin
    lines = [f"{'':{margin}}{_scale(end, columns)}"]
    for number, name in enumerate(shown):
        if left_out and number == ROWS // 2:
            lines.append(f"{'...':{margin}}{left_out} more")
        row = [event for event in events if event.row == name]
        lines.append(f"{name:{margin}}{_row(row, end, columns)}")
    used = {event.kind for event in events}
    legend = ", ".join(f"{SIGNS[kind]} {WORDS[kind]}" for kind in SIGNS if kind in used)
    if any(not event.critical for event in events):
        legend += "; lower case: off the critical path"
    if any(count > columns for count in Counter(event.row for event in events).values()):
        legend += "; kinds that share a column alternate by their shares"
    return "\n".join([*lines, *_folded(legend, margin, width)])


def _shown(names: list[str]) -> tuple[list[str], int]:
    if len(names) <= ROWS:
        return names, 0
    half = ROWS // 2
    return [*names[:half], *names[-half:]], len(names) - ROWS


def _scale(end: float, columns: int) -> str:
    right = seconds(end)
    return f"0{right:>{columns - 1}}"


def _row(events: Sequence[StepEvent], end: float, columns: int) -> str:
    width = end / columns
    cells: list[dict[str, float]] = [{} for _ in range(columns)]
    for event in events:
        symbol = SIGNS[event.kind] if event.critical else SIGNS[event.kind].lower()
        first = min(columns - 1, int(event.start / width))
        last = min(columns - 1, int(event.end / width))
        for number in range(first, last + 1):
            inside = min(event.end, (number + 1) * width) - max(event.start, number * width)
            cells[number][symbol] = cells[number].get(symbol, 0.0) + max(0.0, inside)
    signs: list[str] = []
    owed: dict[str, float] = {}
    for cell in cells:
        kinds: dict[str, float] = {}
        for symbol, time in cell.items():
            kinds[symbol.upper()] = kinds.get(symbol.upper(), 0.0) + time
        idle = width - sum(kinds.values())
        if max(kinds.values(), default=0.0) <= SEEN * idle:
            signs.append(IDLE)
            owed = {}
            continue
        # What columns before it did not show of the kinds that go on.
        owed = {kind: owed.get(kind, 0.0) + time for kind, time in kinds.items()}
        kind = max(owed, key=lambda kind: owed[kind])
        owed[kind] -= sum(kinds.values())
        critical, other = cell.get(kind, 0.0), cell.get(kind.lower(), 0.0)
        signs.append(kind if critical >= other else kind.lower())
    return "".join(signs)


def _folded(text: str, margin: int, width: int) -> list[str]:
    import textwrap

    indent = " " * margin
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent)


def seconds(value: float) -> str:
    """Format a time with three digits and its unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}" if value < 1000 else f"{value:,.0f} s"
    return f"{value / 1e-6:.3g} us"


class Page(NamedTuple):
    """Contents of the timeline page.

    Arguments:
        facts: names and values.
        parts: seconds of a step by category.
    """

    title: str
    facts: Sequence[tuple[str, str]]
    parts: Mapping[str, float]
    assumptions: Sequence[str]
    events: Sequence[StepEvent]


STYLE = """
:root { --page: #f6f7f9; --card: #fff; --text: #1b2129; --soft: #5c6773; --line: #dfe3e8;
  --forward: #0072b2; --backward: #d55e00; --weight: #c98a00; --gather: #009e73;
  --reduce: #b4509a; --optimizer: #5b5b5b; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --page: #11151a; --card: #191f26; --text: #e6eaef;
  --soft: #9aa6b2; --line: #303842; --forward: #4fa8e8; --backward: #ff8a3d; --weight: #f0c04a;
  --gather: #2fc79a; --reduce: #e58fc9; --optimizer: #b9bfc6; } }
body { margin: 0 auto; max-width: 1360px; padding: 1.25rem; background: var(--page);
  color: var(--text); font: 15px/1.5 system-ui, sans-serif; font-variant-numeric: tabular-nums; }
h1 { font-size: 1.45rem; margin: 0 0 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 0 0 .5rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 6px;
  padding: 1rem; margin-bottom: 1rem; }
.wide { overflow-x: auto; }
.tables { display: flex; flex-wrap: wrap; gap: 1rem 3rem; }
table { border-collapse: collapse; } td { padding: .1rem 1.5rem .1rem 0; vertical-align: top; }
td.number { text-align: right; } li, .soft { color: var(--soft); }
svg { display: block; } text { fill: var(--soft); font-size: 12px; }
line { stroke: var(--line); }
.forward { fill: var(--forward); } .backward { fill: var(--backward); }
.weight { fill: var(--weight); } .gather { fill: var(--gather); } .reduce { fill: var(--reduce); }
.optimizer { fill: var(--optimizer); } .off { opacity: .55; }
.key { display: inline-block; margin-right: 1.25rem; } .key svg { display: inline; }
"""


def html_of(page: Page) -> str:
    """Make the page, with HTML and SVG that follow the browser's light or dark scheme."""
    policy = f"default-src 'none'; style-src '{hash_of(STYLE)}'; base-uri 'none'"
    facts = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in page.facts
    )
    total = sum(page.parts.values()) or 1.0
    components = "".join(
        f'<tr><td>{escape(name)}</td><td class="number">{escape(seconds(duration))}</td>'
        f'<td class="number">{duration / total:.1%}</td></tr>'
        for name, duration in page.parts.items()
    )
    used = {event.kind for event in page.events}
    keys = "".join(
        f'<span class="key"><svg width="12" height="12"><rect class="{kind}" width="12" '
        f'height="12"/></svg> {escape(WORDS[kind])}</span>'
        for kind in SIGNS
        if kind in used
    )
    drawing, note = _drawing(page.events)
    assumed = "".join(f"<li>{escape(assumption)}</li>" for assumption in page.assumptions)
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            MARK,
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(page.title)}</title><style>{STYLE}</style></head><body>",
            f"<h1>{escape(page.title)}</h1>",
            f'<section><div class="tables"><table>{facts}</table>'
            f"<table>{components}</table></div></section>",
            f"<section><h2>One step</h2><p>{keys}</p>"
            f'<p class="soft">{escape(note)}</p><div class="wide">{drawing}</div></section>',
            f"<section><h2>Assumed</h2><ul>{assumed}</ul></section>",
            "</body></html>",
            "",
        ]
    )


def _drawing(events: Sequence[StepEvent]) -> tuple[str, str]:
    """The events as SVG, and a note about the drawing."""
    names = list(dict.fromkeys(event.row for event in events))
    end = max((event.end for event in events), default=0.0) or 1.0
    note = "Paler: off the critical path. Point at a bar for its name and times."
    per_name = max(1, len(events) // max(1, len(names)))
    most = max(2, RECTANGLES // per_name)
    if len(names) > most:
        step = -(-len(names) // most)
        kept = names[::step]
        note += f" {len(kept)} of {len(names)} rows are drawn."
        names = kept
    left, high, width = 90, 24, min(24_000, max(1180, 5 * per_name))
    scale = (width - left - 60) / end
    height = high * len(names) + 30
    lines = [f'<svg width="{width}" height="{height}" role="img" aria-label="timeline">']
    ticks = max(8, width // 150)
    for number in range(ticks + 1):
        x, time = left + number / ticks * end * scale, end * number / ticks
        lines.append(f'<line x1="{x:.1f}" y1="20" x2="{x:.1f}" y2="{height}"/>')
        lines.append(
            f'<text x="{x + 2:.1f}" y="14">{escape(seconds(time) if time else "0")}</text>'
        )
    places = {name: 24 + high * number for number, name in enumerate(names)}
    lines += [f'<text x="0" y="{y + 14}">{escape(name)}</text>' for name, y in places.items()]
    for event in events:
        if event.row not in places:
            continue
        kind = event.kind if event.critical else f"{event.kind} off"
        label = f"{event.label}: {seconds(event.end - event.start)} from {seconds(event.start)}"
        lines.append(
            f'<rect class="{kind}" x="{left + event.start * scale:.2f}" y="{places[event.row]}" '
            f'width="{max(0.4, (event.end - event.start) * scale - 0.4):.2f}" height="18">'
            f"<title>{escape(label)}</title></rect>"
        )
    return "\n".join([*lines, "</svg>"]), note
