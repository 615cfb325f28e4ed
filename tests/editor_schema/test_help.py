import sys
from pathlib import Path

import pytest

from setpoint.config import Config
from setpoint.config.schema.tree import all_fields
from setpoint.editor_schema import help as helps
from setpoint.editor_schema.help import class_help, field_help

from ..config.sample import AdamW, Job, Sgd, Transformer

if True:

    class Indented(Config):
        """In a branch."""

        x: int = 1
        """Help over
        two lines."""

        y: int = 2
        # no help
        z: int = 3
        "Short."


def test_every_field_of_the_sample_has_help() -> None:
    for path, info in all_fields(Job):
        assert field_help(info.owner, info.name), path


def test_help_is_the_text_under_the_field() -> None:
    assert field_help(Job, "seed") == "Decides all random numbers."
    assert field_help(AdamW, "lr") == field_help(Sgd, "lr") == "Peak learning rate."
    assert field_help(Transformer, "head_dim") == "Width of a head; dim / heads unless given."
    assert field_help(Indented, "x") == "Help over two lines."
    assert field_help(Indented, "y") == ""
    assert field_help(Indented, "z") == "Short."
    assert field_help(Job, "nothing") == ""


def test_classes_in_functions_and_without_source() -> None:
    class Local(Config):
        x: int = 1
        """Local help."""

    assert field_help(Local, "x") == "Local help."
    made = type(Config)(
        "Made",
        (Config,),
        {"__annotations__": {"x": "int"}, "__module__": "builtins", "__qualname__": "Made", "x": 1},
    )
    assert field_help(made, "x") == ""


def test_class_help_is_the_first_line() -> None:
    assert class_help(Job) == "The root."
    assert (
        class_help(type(Config)("Bare", (Config,), {"__module__": __name__, "__qualname__": "B"}))
        == ""
    )


def told(found: dict[str, dict[str, str]] | None) -> dict[str, dict[str, str]]:
    return {name: docs for name, docs in (found or {}).items() if docs}


def test_docs_found_by_lines_are_those_of_the_parser() -> None:
    from setpoint.train.config import Job as TrainJob

    owners = {info.owner for _, info in all_fields(TrainJob)} | {Job, AdamW, Indented}
    files = {str(sys.modules[owner.__module__].__file__) for owner in owners}
    assert len(files) > 10
    sure = 0
    for file in [*files, *map(str, Path(helps.__file__).parent.glob("*.py"))]:
        text = Path(file).read_text()
        quick = helps._quickly(text)  # pyright: ignore[reportPrivateUsage]
        if quick is not None:
            sure += 1
            assert told(quick) == told(helps._exactly(text)), file  # pyright: ignore[reportPrivateUsage]
    assert sure > len(files) / 2  # else nothing is gained


@pytest.mark.parametrize(
    "body",
    [
        'x: int = 1\n    """Doc."""',
        'x: int = 1  # see (\n\n    # more\n    """Doc\n    of two lines."""  # end',
        'x: Literal[\n        "a",\n    ] = field(\n        default="a",\n    )\n    """Doc."""',
        "x: int = 1\n    'Doc.'",
        'x: int = 1\n    r"""Doc."""',
        'x: int = 1\n    ("Doc.")',
        'x: int = 1; y: int = 2\n    """Of y."""',
        'x: int = 1\n    """Doc.""".strip()',
        'x: int = 1\n    """Doc, \\"quoted\\"."""',
        'x: int = field(default=3,\n    ge=1)\n    """Doc."""',
        'x: str = """a\n    y: int = 1\n    """\n    """Doc."""',
        'x = 1\n    """No field."""',
        'def f(self):\n        x: int = 1\n        """Local."""\n    y: int = 1\n    """Doc."""',
        'if True:\n        x: int = 1\n        """Not taken."""\n    y: int = 1\n    """Doc."""',
        'class B(\n        A,\n    ):\n        x: int = 1\n        """Inner."""\n    y: int = 1',
        'def f(\n        a,\n    ) -> int:\n        class C:\n         x: int\n         """C"""',
        'x: dict = {\n        "a":\n            1,\n    }\n    """Doc."""',
        'try:\n        pass\n    except E:\n        class D:\n         x: int\n         """D"""',
        'x: int \\\n        = 1\n    """Doc."""',
        'x: str = "# no comment"\n    """Doc."""',
    ],
)
def test_docs_are_the_same_however_they_are_written(body: str) -> None:
    text = f'"""Module."""\n\nclass A:\n    """Class."""\n\n    {body}\n\nz: int = 1\n"""No."""\n'
    exact = helps._exactly(text)  # pyright: ignore[reportPrivateUsage]
    quick = helps._quickly(text)  # pyright: ignore[reportPrivateUsage]
    assert quick is None or told(quick) == told(exact)
