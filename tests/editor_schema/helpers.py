"""What a schema says and what Setpoint says about the same file."""

import json
from typing import Any

from jsonschema import Draft202012Validator

from setpoint.config import Config
from setpoint.config.files.read import parse
from setpoint.config.layers.editor import Editor
from setpoint.config.values.origin import FILE, Origin
from setpoint.editor_schema.file_schema import json_schema


def validator(root: type[Config]) -> Draft202012Validator:
    """A validator of the files of a configuration; the schema itself is checked first."""
    schema = json.loads(json.dumps(json_schema(root)))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def findings(root: type[Config], text: str) -> list[str]:
    """What Setpoint finds wrong with the values of a JSON file, before anything is resolved."""
    editor = Editor(root())
    editor.merge(parse(text, "json", "exp.json").data, Origin(FILE, "exp.json"))
    return [f"{problem.path}: {problem.message}" for problem in editor.problems]


def complaints(known: Draft202012Validator, data: Any) -> list[str]:
    """What the validator says: where, and which keyword of the schema is not met."""
    return [
        f"{'.'.join(map(str, error.absolute_path))}: {error.validator}"
        for error in known.iter_errors(data)
    ]
