"""The page of a report: one HTML file that loads nothing and runs no script but its own."""

from __future__ import annotations

import json
import os
import re
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from setpoint.config import RunError, SetpointError
from setpoint.files.atomic import replacing
from setpoint.report.page.content import document
from setpoint.report.page.run_data import read_run

NAME = "report.html"
"""In a run directory and in the folder of a sweep."""
MARK = '<meta name="generator" content="setpoint report">'
"""By which a report is known before it is replaced."""
SCRIPTS = ("text.js", "chart.js", "tables.js", "sweep.js", "page.js")
HERE = Path(__file__).parent


def html_of(content: Mapping[str, Any]) -> str:
    """The page.

    What comes from runs stands in one block of JSON, in which no character ends it or begins a
    comment, and in the title, which is escaped; the script inserts it as text. The policy allows
    this script and this style alone, by their hashes, and no connection.
    """
    style = (HERE / "page.css").read_text(encoding="utf-8")
    scripts = "".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{scripts}\n}})();'
    policy = (
        f"default-src 'none'; script-src '{hash_of(script)}'; style-src '{hash_of(style)}'; "
        f"img-src data:; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "mark": MARK,
        "policy": policy,
        "title": escape(str(content["title"])),
        "style": style,
        "data": json_block(content),
        "script": script,
    }
    template = (HERE / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def json_block(value: Any) -> str:
    """JSON that can stand in an element `script`: ASCII without <, > and &."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def hash_of(text: str) -> str:
    """A script or style in the words of a policy that allows it alone."""
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def refuse_foreign(path: Path, option: str = "--output") -> None:
    """Refuse to replace a file that is no page of ours, or to begin what cannot be written.

    Arguments:
        option: by which another one is given.

    Raises:
        SetpointError: if it is something else, a link to nothing, or no file can be made beside it.
    """
    if not path.parent.is_dir():
        raise SetpointError(f"{path}: there is no folder {path.parent}")
    if path.is_dir():
        raise SetpointError(f"{path} is a folder; give the name of a file, such as {path / NAME}")
    if path.is_symlink() and not path.exists():
        raise SetpointError(
            f"{path} is a link to {os.readlink(path)}, which is not there, and is not replaced; "
            f"give another {option}, or remove it"
        )
    if not path.exists():
        _refuse_read_only(path)
        return
    try:
        is_report = False
        if path.is_file():
            with path.open("rb") as file:
                is_report = MARK.encode() in file.read(4096)
    except OSError as error:
        raise SetpointError(f"{path} cannot be read: {error.strerror}") from error
    if not is_report:
        raise SetpointError(
            f"{path} is no report of setpoint and is not replaced; give another {option}, or "
            f"remove it"
        )
    _refuse_read_only(path)


def _refuse_read_only(path: Path) -> None:
    """Refuse a path beside which no file can be made: permissions alone do not tell root."""
    staged = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    try:
        staged.unlink(missing_ok=True)
        staged.open("xb").close()
        staged.unlink()
    except OSError as error:
        raise SetpointError(f"{path} cannot be written: {error.strerror}") from error


def write_page(page: str, path: Path) -> int:
    """Write a page, or replace it in one step.

    Returns:
        its size in bytes.

    Raises:
        RunError: if it cannot be written; what was there before is unchanged.
    """
    data = page.encode("utf-8", "xmlcharrefreplace")
    try:
        # It can be made again at any time, so that nothing waits for the disk.
        with replacing(path) as staged, staged.open("xb") as file:  # follows no link
            file.write(data)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}") from error
    return len(data)


def write_run_report(run: Path) -> Path:
    """Write the report of one run into its directory.

    Raises:
        RunError: if it cannot be written.
    """
    path = run / NAME
    name = run.resolve().name
    write_page(html_of(document([read_run(run, name)], name)), path)
    return path
