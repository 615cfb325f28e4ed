from setpoint.config import Config
from setpoint.config.schema.class_info import all_fields
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
