"""A program that the Python of an old revision runs: it writes the record of one source.

It is started by its path with `src` of that revision first on the module path, so that `setpoint`
is that revision's. It uses what that revision offers, and must not rely on anything newer.
"""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from typing import Any

ERROR = "error.txt"
FAILED = 3


def main(request: dict[str, Any]) -> int:
    """Write the record, or say what is wrong.

    Arguments:
        request: `source`, `imports` (modules to import first) and `folder` (where to write).

    Returns:
        the exit status: 0, or `FAILED` with the words in the file `error.txt`.
    """
    folder = request["folder"]
    try:
        for name in request["imports"]:
            import_module(name)
        texts = _record(request["source"])
        for name, text in texts.items():
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)
    except BaseException as error:
        with open(os.path.join(folder, ERROR), "w", encoding="utf-8") as file:
            file.write(_explain(error))
        return FAILED
    return 0


class Refused(Exception):
    """What the old code answered, in its own words."""


def _record(source: str) -> dict[str, str]:
    try:
        import_module("setpoint.presets")
        root = import_module("setpoint.train.config").Job
        # By the names that users import, which lie where they do in every revision.
        package = import_module("setpoint")
        compose, record_files = package.compose, package.record_files
    except (ImportError, AttributeError):
        # There were no records yet, or they were made otherwise.
        return _shown(source)
    return record_files(compose(root, source).resolve())


def _shown(source: str) -> dict[str, str]:
    """The record made from what `setpoint show` prints; it lacks the roles and inner layers."""
    try:
        command = import_module("setpoint.cli.main").main
    except ImportError:
        raise Refused("it can neither record a configuration nor show one") from None
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        status = command(["show", source, "--json", "--origins"])
    if status:
        raise Refused(errors.getvalue().strip().removeprefix("error: "))
    found = json.loads(output.getvalue())
    chains: dict[str, Any] = {}
    for path, origin in found["origins"].items():
        value = _at(found["config"], path.split("."))
        layer = {"layer": origin.partition(" ")[0], "origin": origin, "value": value}
        chains[path] = {"value": value, "layers": [layer]}
    config = {"setpoint": {"schema": 1}, **found["config"]}
    return {"config.json": json.dumps(config), "origins.json": json.dumps(chains)}


def _at(value: Any, path: list[str]) -> Any:
    for part in path:
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value


def _explain(error: BaseException) -> str:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    known = kinds & {"SetpointError", "Refused"}
    return str(error) if known else f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
