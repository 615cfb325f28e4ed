"""What a command says about itself, and how its arguments are split up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from setpoint.config import SetpointError

N = TypeVar("N", int, float)
LARGEST = 2**63 - 1
"""The largest whole number that an option takes: what 64 bits hold, as torch's numbers do."""


class Option:
    """One option of a command, as opposed to an override of the configuration.

    Arguments:
        name: with its dashes.
        help: one sentence.
        metavar: what stands for its value in the manual; None for a switch.
        repeat: whether it may be given several times.
        choices: the words it takes, for completion; empty where they cannot be listed.
    """

    __slots__ = ("choices", "help", "metavar", "name", "repeat")

    def __init__(
        self,
        name: str,
        help: str,
        metavar: str | None = None,
        repeat: bool = False,
        choices: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.help = help
        self.metavar = metavar
        self.repeat = repeat
        self.choices = choices


WITH = Option("--with", "Apply a modifier, as in smoke or 'smoke(steps=5)'.", "MODIFIER", True)
FILE = Option("--file", "Put a further configuration file on top of the source.", "FILE", True)
IMPORT = Option("--import", "Import a module first: classes and presets of yours.", "MODULE", True)
WORLD_SIZE = Option("--world-size", "Resolve for this many ranks.", "N")
JSON = Option("--json", "Print JSON for machines.")
HELP = Option("--help", "Show this manual.")


class Arguments:
    """The arguments of one call: `positional`, `overrides` as typed, and `options`.

    Arguments:
        command: what they are for.
    """

    __slots__ = ("command", "options", "overrides", "positional")

    def __init__(self, command: Command) -> None:
        self.command = command
        self.positional: list[str] = []
        self.overrides: list[str] = []
        self.options: dict[str, list[str]] = {}

    def has(self, name: str) -> bool:
        """Whether an option was given.

        Arguments:
            name: the option, with its dashes.

        Returns:
            True if it was.
        """
        return name in self.options

    def value(self, name: str) -> str | None:
        """An option's value.

        Arguments:
            name: the option, with its dashes.

        Returns:
            the last one given, or None.
        """
        return self.options[name][-1] if name in self.options else None

    def integer(self, name: str, at_least: int = 1) -> int | None:
        """An option's value as a whole number.

        Arguments:
            name: the option.
            at_least: the smallest value that is accepted.

        Returns:
            the number, or None if the option was not given.

        Raises:
            SetpointError: if it is not such a number, or above `LARGEST`.
        """
        result = self._number(name, int, at_least, "a whole number")
        if result is not None and result > LARGEST:
            raise SetpointError(f"{name} must be at most {LARGEST}, got {result}")
        return result

    def number(self, name: str, at_least: float) -> float | None:
        """An option's value as a number; see `integer`.

        Arguments:
            name: the option.
            at_least: the smallest value that is accepted.

        Returns:
            the number, which is finite, or None if the option was not given.
        """
        return self._number(name, float, at_least, "a number")

    def _number(self, name: str, read: Callable[[str], N], at_least: N, kind: str) -> N | None:
        text = self.value(name)
        if text is None:
            return None
        try:
            result = read(text)
        except ValueError:
            raise SetpointError(f"{name} needs {kind}, got {text!r}") from None
        if not result >= at_least or result == float("inf"):
            raise SetpointError(f"{name} must be at least {at_least}, got {text}")
        return result


class Command:
    """A command's manual page and its options.

    Arguments:
        name: as typed.
        usage: the arguments, without `setpoint NAME`.
        description: paragraphs of the manual.
        options: its options; `--help` is added.
        examples: pairs of command line and what it does.
        positional: how many positional arguments it takes: at least, at most.
    """

    def __init__(
        self,
        name: str,
        usage: str,
        description: str,
        options: Sequence[Option],
        examples: Sequence[tuple[str, str]],
        positional: tuple[int, int] = (1, 1),
    ) -> None:
        self.name = name
        self.usage = usage
        self.description = description
        self.options = [*options, HELP]
        self.examples = examples
        self.positional = positional

    def parse(self, tokens: Sequence[str]) -> Arguments:
        """Split the tokens into positional arguments, options and overrides.

        Arguments:
            tokens: the arguments after the command's name.

        Returns:
            the parts; overrides are not interpreted yet.

        Raises:
            SetpointError: if an option lacks its value, or the positional arguments do not fit.
        """
        table = {option.name: option for option in self.options}
        parsed = Arguments(self)
        at = 0
        while at < len(tokens):
            token = tokens[at]
            at += 1
            name, equals, text = token.partition("=")
            option = HELP if token == "-h" else table.get(name.replace("_", "-"))
            if option is not None:
                if option.metavar is None:
                    if equals:
                        raise SetpointError(f"{name} is a switch and takes no value")
                elif not equals:
                    # A value that looks like an option is far more often a value left out.
                    if at >= len(tokens) or tokens[at].startswith("--"):
                        raise SetpointError(f"{name} needs a value: {name} {option.metavar}")
                    text, at = tokens[at], at + 1
                if option.name in parsed.options and option.metavar and not option.repeat:
                    raise SetpointError(f"{option.name} is given twice")
                parsed.options.setdefault(option.name, []).append(text)
            elif token.startswith("-") or equals or parsed.overrides:
                parsed.overrides.append(token)
            else:
                parsed.positional.append(token)
        if not parsed.has("--help"):
            self._count(parsed.positional, bool(parsed.overrides))
        return parsed

    def _count(self, given: list[str], overrides: bool) -> None:
        least, most = self.positional
        if len(given) < least:
            missing = self.usage.split()[len(given) : least]
            verb = "is" if len(missing) == 1 else "are"
            before = ", before what sets fields" if overrides else ""
            raise SetpointError(
                f"{' and '.join(missing)} {verb} missing{before}: "
                f"setpoint {self.name} {self.usage}\n"
                f"for instance: {self.examples[0][0]}"
            )
        if len(given) > most:
            raise SetpointError(
                f"unexpected argument {given[most]!r}; an override is written "
                f"--section.field value or section.field=value"
            )

    def manual(self) -> str:
        """The manual page.

        Returns:
            text of several paragraphs.
        """
        from .style import bold

        lines = [bold(f"setpoint {self.name} {self.usage}"), "", self.description.strip(), ""]
        lines.append(bold("Options"))
        for option in self.options:
            left = f"{option.name} {option.metavar}" if option.metavar else option.name
            repeat = " May be repeated." if option.repeat else ""
            lines.append(f"  {left:<22}{option.help}{repeat}")
        if self.examples:
            lines += ["", bold("Examples")]
            width = max(len(command) for command, _ in self.examples) + 2
            lines += [f"  {command:<{width}}{what}" for command, what in self.examples]
        return "\n".join(lines)


SOURCE_HELP = """
SOURCE is a preset (see `setpoint list presets`), a TOML, YAML or JSON file, a run directory, or
module:function. OVERRIDES set fields: --optimizer.lr 1e-3, --optimizer.lr=1e-3 and
optimizer.lr=1e-3 mean the same, and a later one beats an earlier one. `--optimizer adamw` chooses
a variant; `--evaluation null` switches a section off. Layers, later beats earlier: defaults,
preset, modifiers, files, environment (SETPOINT__OPTIMIZER__LR=1e-3), command line."""
