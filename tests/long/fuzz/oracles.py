"""What other readers make of a text that ours takes, and of one that ours refuses."""

import json
import math
import tomllib
import warnings
from collections.abc import Callable
from typing import Any

from setpoint.config.files.file_document import FileDocument, FileError

# Why ours refuses what the format allows.
_NARROWER = {
    "toml": (
        *("is not a type of any field", "too large for", "nested deeper"),
        "more digits than can be written",
    ),
    "json": (
        *("is given twice", "nested deeper", "too large for", "half a surrogate"),
        *("expected '{'", "NaN is not JSON", 'write "inf"', 'write "-inf"'),
    ),
}


def agree(document: FileDocument) -> None:
    """Compare what ours read with what another reader reads.

    Arguments:
        document: as ours read it.
    """
    text = document.text
    if document.format == "toml":
        assert _same(document.data, tomllib.loads(text), _same_value), text
    elif document.format == "json":
        read = json.loads(text) if text.strip(" \t\r\n") else {}
        assert _same(document.data, read, _same_value), text
    else:
        assert _same(document.data, _yaml(text) or {}, _same_word), text


def may_refuse(text: str, format: str, error: FileError) -> None:
    """Check that what ours refuses is refused by the other reader too, or broke a limit of ours.

    Arguments:
        text: what was refused.
        format: `"toml"`, `"json"` or `"yaml"`; the last is not compared, since ours takes no tags,
            merge keys or several documents.
        error: the refusal.
    """
    if format == "yaml" or any(reason in error.message for reason in _NARROWER[format]):
        return
    if "more than 4300 digits" in error.message or "bytes; at most" in error.message:
        return
    try:
        (tomllib.loads if format == "toml" else json.loads)(text)
    except (ValueError, RecursionError):
        return
    raise AssertionError(f"only ours refuses it: {error}")


def _yaml(text: str) -> Any:
    from ruamel.yaml import YAML

    loader: Any = YAML(typ="base", pure=True)  # every scalar stays the text that it is
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an anchor that is given twice
        return loader.load(text)


def _same(ours: Any, theirs: Any, same_leaf: Callable[[Any, Any], bool]) -> bool:
    if isinstance(ours, dict):
        return (
            isinstance(theirs, dict)
            and list(ours) == list(theirs)
            and all(_same(ours[key], theirs[key], same_leaf) for key in ours)
        )
    if isinstance(ours, list):
        same = isinstance(theirs, list) and len(ours) == len(theirs)
        return same and all(_same(*pair, same_leaf) for pair in zip(ours, theirs, strict=True))
    return same_leaf(ours, theirs)


def _same_value(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, float) and isinstance(theirs, float) and math.isnan(ours):
        return math.isnan(theirs)
    return type(ours) is type(theirs) and ours == theirs


def _same_word(ours: Any, theirs: Any) -> bool:
    if ours is None:
        return theirs is None or theirs in ("", "~", "null", "Null", "NULL")
    return isinstance(theirs, str) and str(ours) == theirs
