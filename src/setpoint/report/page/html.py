"""The HTML page of a report, which loads nothing and runs only its own script."""

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
"""File name in a run directory or sweep folder."""
MARK = '<meta name="generator" content="setpoint report">'
"""Marker of a report, required before it is replaced."""
SCRIPTS = ("text.js", "chart.js", "tables.js", "sweep.js", "page.js")
HERE = Path(__file__).parent


def html_of(content: Mapping[str, Any]) -> str:
    """The page.

    Data of runs is only in a JSON block, escaped for HTML, and in the escaped title; the script
    inserts it as text. The content security policy allows only this script and style, by hash, and
    no connections.
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
    """JSON for a `script` element: ASCII without <, > and &."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def hash_of(text: str) -> str:
    """The source expression of a script or style in a content security policy."""
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


def refuse_foreign(path: Path, option: str = "--output") -> None:
    """Refuse a path that is not a replaceable report, or that cannot be written.

    Raises:
        SetpointError: the path is another file or a broken link; `option` chooses another.
        RunError: no file can be written there.
    """
    if not path.parent.is_dir():
        raise SetpointError(f"{path}: there is no folder {path.parent}")
    if path.is_dir():
        raise SetpointError(f"{path} is a folder; give the name of a file, such as {path / NAME}")
    if path.is_symlink() and not path.exists():
        raise SetpointError(
            f"{path} is a link to {os.readlink(path)}, which does not exist, and is not replaced; "
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
            f"{path} is not a report of setpoint and is not replaced; give another {option}, or "
            f"remove it"
        )
    _refuse_read_only(path)


def _refuse_read_only(path: Path) -> None:
    """Refuse a path if no file can be created next to it."""
    staged = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    try:
        staged.unlink(missing_ok=True)
        staged.open("xb").close()
        staged.unlink()
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}") from error


def write_page(page: str, path: Path) -> int:
    """Write or replace a page atomically, and return its size in bytes.

    Raises:
        RunError: the page cannot be written; an existing page is unchanged.
    """
    data = page.encode("utf-8", "xmlcharrefreplace")
    try:
        # It can be generated again at any time, so there is no wait for the disk.
        with replacing(path) as staged, staged.open("xb") as file:  # follows no link
            file.write(data)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}") from error
    return len(data)


def write_run_report(run: Path) -> Path:
    """Write the report of one run into its directory.

    Raises:
        RunError: the report cannot be written.
    """
    path = run / NAME
    name = run.resolve().name
    write_page(html_of(document([read_run(run, name)], name)), path)
    return path
