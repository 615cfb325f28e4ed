"""Values from environment variables such as `SETPOINT__OPTIMIZER__LR`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..edit import Editor
from ..files.plain import PlainScalar
from ..origin import ENVIRONMENT, Origin

PREFIX = "SETPOINT__"


def apply_environment(editor: Editor, environ: Mapping[str, str]) -> None:
    """Put the values of all variables with the prefix onto a draft.

    Arguments:
        editor: the draft; a variable that names no field becomes a problem.
        environ: usually `os.environ`.
    """
    for name, path in variables(environ):
        editor.set(path, PlainScalar(environ[name]), Origin(ENVIRONMENT, name))


def variables(environ: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The variables that are meant for the configuration, shallow paths first.

    Arguments:
        environ: usually `os.environ`.

    Returns:
        pairs of the variable's name and the path it stands for.
    """
    names = [name for name in environ if name.upper().startswith(PREFIX)]
    paths = {name: tuple(name[len(PREFIX) :].lower().split("__")) for name in names}

    def depth(name: str) -> tuple[int, str]:
        # A variable that chooses a variant must come before those that set its fields.
        path = paths[name]
        return len(path) - (path[-1] == "type"), name

    for name in sorted(names, key=depth):
        yield name, paths[name]
