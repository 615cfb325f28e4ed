"""What the commands `setpoint checkpoint ...` share."""

from __future__ import annotations

from setpoint.checkpoint.survey import Found
from setpoint.cli.command import Arguments
from setpoint.config import SetpointError

RUN_HELP = """
RUN is a run directory, its folder checkpoints, or one checkpoint, as in
runs/tiny-3fa94c21/checkpoints/best. The training data is not needed."""


def refuse_overrides(arguments: Arguments) -> None:
    """Refuse words that are no argument of the command.

    Raises:
        SetpointError: if there are some.
    """
    if arguments.overrides:
        command = arguments.command
        options = ", ".join(option.name for option in command.options)
        raise SetpointError(
            f"unexpected argument {arguments.overrides[0]!r}: {command.title} sets no fields; an "
            f"option that it knows is one of {options}"
        )


def state_of(found: Found, names: list[str]) -> str:
    """What is to be said of a checkpoint beside its numbers.

    Arguments:
        names: of the pointers to it.
    """
    if found.kind == "unfinished":
        return "unfinished: being written or removed, or left by a process that died"
    words = [*names, *([found.kind] if found.kind == "set aside" else [])]
    return ", ".join([*words, *([f"damaged: {found.damage}"] if found.damage else [])])
