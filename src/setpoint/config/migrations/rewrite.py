"""A file of an older schema as text of today's, with its comments and its layout."""

from __future__ import annotations

import json
import re
from typing import Any

from ..files.document import Document
from ..files.read import parse
from ..words.errors import SetpointError
from ..words.shown import same
from .chain import HEADER, Tree, guessed


def rewrite_document(document: Document, tree: Tree, schema: int) -> str:
    """Do to a text what a migration did to its data.

    Arguments:
        tree: its data without the header, after the migration.
        schema: the schema that it is of now; written into the header, which is added if need be.

    Returns:
        the new text; what was not touched is as it was, as well as the format's tools can.

    Raises:
        SetpointError: if the text cannot be changed so that it reads as exactly the migrated data.
    """
    before: Any = guessed(document.data.get(HEADER))
    header: dict[str, Any] = {**(before if isinstance(before, dict) else {}), "schema": schema}
    wanted = {HEADER: header, **tree.data}
    try:
        if document.format == "toml":
            from .rewrite_toml import rewrite_toml

            text = rewrite_toml(document.text, tree.steps, header)
        elif document.format == "yaml":
            from .rewrite_yaml import rewrite_yaml

            text = rewrite_yaml(document.text, tree.steps, header)
        else:
            text = _json(document.text, wanted)
        data = _parse(text, document)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise SetpointError(_refusal(document, f"{type(error).__name__}: {error}")) from error
    if not same(guessed(data), guessed(wanted)):
        raise SetpointError(_refusal(document, "the new text would not read as the new values"))
    return text


def _parse(text: str, document: Document) -> dict[str, object]:
    return parse(text, document.format, document.name).data


def _refusal(document: Document, reason: str) -> str:
    return (
        f"{document.name} cannot be rewritten with its layout ({reason}); nothing was written. "
        f"Change it by hand; the file is read as it is as long as it says which schema it is of"
    )


def _json(text: str, data: dict[str, Any]) -> str:
    indent = re.search(r"^([ \t]+)\S", text, re.MULTILINE)
    width = indent.group(1) if indent else None
    return json.dumps(data, indent=width, ensure_ascii=False) + ("\n" if text[-1:] == "\n" else "")
