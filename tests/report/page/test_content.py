"""What a report says of runs, and that data stays data."""

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from setpoint.config import RunError
from setpoint.report.page import html
from setpoint.report.page.content import document, page_status
from setpoint.report.page.html import html_of, refuse_foreign, write_page, write_run_report
from setpoint.report.page.run_data import read_run

from ...support.snapshots import refused
from .records import EVENTS, setting, train_row, write_run


def data_of(html: str) -> Any:
    """The data of a page, read as a browser does: up to the first end tag."""
    return json.loads(html.split('id="data">', 1)[1].split("</script", 1)[0])


def test_what_a_run_came_to(tmp_path: Path) -> None:
    events = [
        {**EVENTS[0], "cautions": [{"path": "a", "message": "high", "code": "c"}]},
        *EVENTS[1:],
    ]
    rows = [train_row(s, 5.0, sequences_web=3, sequences_code=1) for s in (1, 2)]
    [run] = document([read_run(write_run(tmp_path, rows, events=events), "r")], "r")["runs"]
    assert run["status"] == "finished" and run["cautions"] == [["a", "high", "c"]]
    assert dict(run["facts"])["tokens"] == 200 and ["fingerprint", "abcdef01"] in run["facts"]
    assert [(each["source"], each["sequences"]) for each in run["shares"]] == [
        ("web", 6), ("code", 2)
    ]  # fmt: skip
    assert [event["event"] for event in run["events"]] == ["start", "save", "end"]


def test_the_extent_of_the_evaluated_text(tmp_path: Path) -> None:
    score = {"held_out_loss": 2.5, "held_out_sequences": 64, "held_out_total_sequences": 1234}
    rows = [train_row(1, 5.0), {"kind": "evaluation", "step": 1, "tokens": 100, **score}]
    page = document([read_run(write_run(tmp_path, rows), "r")], "r")
    assert ["held-out sequences", "64 of 1,234"] in map(list, page["runs"][0]["facts"])
    drawn = [name for panel in page["panels"] for name in panel["columns"]]
    assert "evaluation.held_out_loss" in drawn
    assert not [name for name in drawn if name.endswith("_sequences")]


def test_the_last_event_says_how_a_run_stands(tmp_path: Path) -> None:
    for last, status in (
        ({"event": "end", "status": 75}, "stopped"), ({"event": "fault"}, "failed"),
        ({"event": "save"}, "killed"), ({"event": "resume"}, "killed"),
    ):  # fmt: skip
        assert page_status(read_run(write_run(tmp_path, events=[EVENTS[0], last]), "r")) == status


def test_only_what_differs_is_in_the_differences(tmp_path: Path) -> None:
    runs = []
    for place, lr in enumerate((0.1, 0.2)):
        settings = {
            "name": setting(f"r{place}"),
            "seed": setting(1),
            "optimizer.lr": setting(lr, f"job{place}.toml:3"),
            "schedule.warmup": setting(place, "derived from optimizer.lr", "derived"),
        }
        folder = write_run(tmp_path / str(place), settings=settings,
                           environment={"packages": {"torch": f"2.1{place}"}})  # fmt: skip
        runs.append(read_run(folder, str(place)))
    content = document(runs, "both")
    assert content["differences"] == [{
        "path": "optimizer.lr",
        "role": "identity",
        "cells": [["0.1", "job0.toml:3"], ["0.2", "job1.toml:3"]],
    }]  # fmt: skip
    assert [row["path"] for row in content["environment_differences"]] == ["packages.torch"]


HOSTILE = "</script><script>alert(1)</script><!--<script>\u2028'\"&lt;\ud800\x00"


def test_what_comes_from_a_run_cannot_end_its_block(tmp_path: Path) -> None:
    bad = HOSTILE
    run = write_run(
        tmp_path,
        [{**train_row(1, 1.0), bad: 2.0, "kind": bad}, {"kind": "sample", "text": bad}],
        {bad: setting(bad, bad, bad)},
        [{"event": bad, "time": bad, "step": bad, bad: {bad: [bad]}}],
        {bad: {bad: bad}, "command": [bad]},
    )
    html = html_of(document([read_run(run, bad)], bad))
    head, _, rest = html.partition('id="data">')
    assert "<script" not in head.removesuffix('<script type="application/json" ')
    block = rest.split("</script>", 1)[0]
    assert block.isascii() and not set("<>&") & set(block)
    assert data_of(html)["runs"][0]["label"] == bad
    assert html.count("<script") == 2 and html.count("</script") == 2


def test_the_policy_allows_the_one_script_and_style_alone(tmp_path: Path) -> None:
    html = html_of(document([read_run(write_run(tmp_path), "r")], "r"))
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    for kind, text in (
        ("script", html.rsplit("<script>", 1)[1].split("</script>")[0]),
        ("style", html.split("<style>", 1)[1].split("</style>")[0]),
    ):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy


def test_the_script_inserts_text_alone() -> None:
    scripts = "".join((html.HERE / name).read_text() for name in html.SCRIPTS)
    for way in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "Function(",
                "srcdoc", "DOMParser", "fetch(", "XMLHttp", "import(", "WebSocket"):  # fmt: skip
        assert way not in scripts, way


def test_a_file_that_is_no_report_is_not_replaced(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    path = write_run_report(run)
    assert path == run / "report.html" and not list(run.glob("*.tmp-*"))
    refuse_foreign(path)
    (tmp_path / "mine.html").write_text("<p>mine</p>")
    (tmp_path / "link.html").symlink_to("gone.html")
    for name in ("mine.html", "run", "none/a.html", "link.html"):
        with refused():
            refuse_foreign(tmp_path / name)
    assert not list(tmp_path.glob("*.tmp-*"))


def test_a_report_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    content = document([read_run(write_run(tmp_path / "run"), "r")], "r")
    target = tmp_path / "kept.txt"
    target.write_text("kept")
    link = tmp_path / "out.html"
    link.symlink_to(target)
    write_page(html_of(content), link)  # which replaces the link and leaves what it leads to
    assert target.read_text() == "kept" and not link.is_symlink()
    (tmp_path / "taken.html").mkdir()
    with refused(RunError):
        write_page(html_of(content), tmp_path / "taken.html")
    assert not list(tmp_path.glob("*.tmp-*"))
