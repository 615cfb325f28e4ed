"""`setpoint.partial`: a foreign component made in Python, checked at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..types.sections import fill
from ..values.origin import python_origin
from ..values.scalar import ImportPath
from ..words.errors import ConfigError, Invalid
from ..words.text import problem_of
from .arguments import arguments_of
from .signature import wrong_arguments

if TYPE_CHECKING:
    # Type checkers know `functools.partial`: they check the names and types of the arguments, and
    # know what calling the result gives.
    from functools import partial as partial

    Partial = partial
else:
    from .section import Partial as Partial

    def partial(target: Callable[..., Any] | str, /, *args: Any, **arguments: Any) -> Any:
        """A callable with some of its arguments, to be called when the configuration is built.

        Arguments:
            args: none; a record names its arguments.

        Returns:
            a foreign section; a family's field makes it the family's own variant.

        Raises:
            ConfigError: for every argument that the target does not take.
        """
        origin = python_origin(1)
        section = Partial()
        values = {"target": target, **arguments}
        errors: list[Invalid] = []
        if args:
            values["(positions)"] = args
            errors.append(Invalid("must be given by keyword").inside("(positions)"))
        try:
            fill(section, {"target": target, **arguments}, origin)
        except Invalid as error:
            errors.extend(error.parts)
        if not errors:
            path: ImportPath = section.target
            found = path.loaded() if isinstance(target, str) else target
            if found is not None:
                errors = wrong_arguments(found, str(path), arguments_of(section))
        if errors:
            title = getattr(target, "__name__", target)
            raise ConfigError(
                [
                    problem_of(error, (f"partial({title})",), values, origin.describe(error.at))
                    for error in errors
                ]
            )
        return section
