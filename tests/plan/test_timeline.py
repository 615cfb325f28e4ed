"""Drawings of a step: in characters, and as a page that runs nothing."""

import re

from setpoint.plan.step_time import StepEvent
from setpoint.plan.timeline import ROWS, Page, draw, html_of

EVENTS = [
    StepEvent("compute", "forward", "layer 0", 0.0, 1.0, True),
    StepEvent("compute", "backward", "layer 0", 2.0, 4.0, True),
    StepEvent("messages", "gather", "weights <of> layer 1", 1.0, 2.0, True),
    StepEvent("messages", "reduce", "gradients", 2.0, 3.0, False),
]


def test_rows_show_what_takes_most_of_each_column() -> None:
    text = draw(EVENTS, width=50)
    assert max(len(line) for line in text.splitlines()) <= 50
    assert text.splitlines()[:3] == [
        "          0" + " " * 36 + "4 s",
        "compute   FFFFFFFFFF..........BBBBBBBBBBBBBBBBBBBB",
        "messages  ..........GGGGGGGGGGrrrrrrrrrr..........",
    ]
    assert "R gradient reduction" in " ".join(text.split())


def test_columns_of_many_micro_batches_show_their_shares() -> None:
    events = [
        StepEvent("compute", kind, "x", 0.3 * number + begin, 0.3 * number + end, number % 2 == 0)
        for number in range(300)
        for kind, begin, end in (("forward", 0.0, 0.1), ("backward", 0.1, 0.3))
    ]
    text = draw(events)
    assert max(len(line) for line in text.splitlines()) <= 100
    row = text.splitlines()[1].removeprefix("compute  ").upper()
    assert abs(row.count("F") - len(row) / 3) <= 1 and set(row) == {"F", "B"}
    assert "BBB" not in row and "FF" not in row
    assert "alternate by their shares" in " ".join(text.split())
    assert "alternate" not in draw(EVENTS)


def test_many_ranks_are_left_out_in_the_middle() -> None:
    events = [StepEvent(f"pipeline {n}", "forward", "x", 0.0, 1.0, True) for n in range(64)]
    lines = draw(events).splitlines()
    assert len([line for line in lines if line.startswith("pipeline")]) == ROWS
    assert any(line.startswith("...") and line.endswith("48 more") for line in lines)
    page = html_of(Page("many", (), {}, (), events * 1000))
    assert page.count("<rect") < 25_000
    assert "of 64 rows are drawn" in page


def test_the_page_loads_and_runs_nothing() -> None:
    page = html_of(Page("a <b> & c", [("step", "4 s")], {"attention": 1.0}, ["<x>"], EVENTS))
    assert "<script" not in page
    assert not re.search(r"(?:src|href)=|url\(", page)
    assert "a &lt;b&gt; &amp; c" in page
    assert "weights &lt;of&gt; layer 1: 1 s from 1 s" in page
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page
    assert page.count('class="forward"') == 2  # in the key and in the drawing
