"""Commands and their options: the manual page, and the arguments of one call, split and checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from setpoint.config import Config, SetpointError, did_you_mean, nearest
from setpoint.config.draft.hints import is_foreign_key
from setpoint.config.migrations import retired_hint

TRAINING = "setpoint.train.config:Job"
INFERENCE = "setpoint.infer.config:Inference"


class Program:
    """A command line and the config class that it is about.

    Arguments:
        name: what is typed before a command, as in `python train.py`.
        root: the class of the configuration; of Setpoint's own jobs the place where it is
            defined, which is imported when it is needed.
    """

    __slots__ = ("_root", "name")

    def __init__(self, name: str, root: type[Config] | str = TRAINING) -> None:
        self.name = name
        self._root = root

    @property
    def is_own(self) -> bool:
        """True if this is a user's script, with its own root class."""
        return not isinstance(self._root, str)

    @property
    def command(self) -> str:
        """The word that a shell knows it by: of `python train.py` and `./train.py` `train.py`."""
        return self.name.rpartition(" ")[2]

    @property
    def root(self) -> type[Config]:
        """The class of the configuration."""
        if isinstance(self._root, str):
            from importlib import import_module

            module, _, name = self._root.partition(":")
            return getattr(import_module(module), name)
        return self._root


SETPOINT = Program("setpoint")
"""The command `setpoint`, and its training jobs."""


CLOSE = 0.81
"""The likeness from which an unknown flag is taken for an option that is misspelt."""
LIKE_FIELD = 0.75
"""The likeness from which it is taken for a field instead, and reported with all other mistakes."""
ValueType: TypeAlias = type[int] | type[float] | type[str]
LARGEST = 2**63 - 1
"""The largest number that an option takes: what 64 bits hold, as torch's numbers do."""


class Option(NamedTuple):
    """One option of a command, as opposed to an override of the configuration.

    Arguments:
        metavar: what stands for its value in the manual; None for a switch.
        repeat: it may be given several times, and a value with `choices` lists them with commas.
        choices: the words it takes; with a number as `type`, words in place of one.
        type: `int` and `float` are read as fields read them.
        at_least: the smallest number; by default 1 for an int and 0 for a float.
        requires: options of which at least one must be given beside it.
        excludes: options that contradict it.
    """

    name: str
    help: str
    metavar: str | None = None
    repeat: bool = False
    choices: Sequence[str] = ()
    type: ValueType = str
    at_least: float | None = None
    requires: Sequence[str] = ()
    excludes: Sequence[str] = ()

    def check(self, text: str) -> None:
        """Check one value.

        Raises:
            SetpointError: if it is not of the type, out of range, or none of the choices.
        """
        for word in text.split(",") if self.repeat and self.choices else [text]:
            if word in self.choices:
                continue
            if self.choices and (self.type is str or not word.isdecimal()):
                valid = f"one of {', '.join(self.choices)}"
                if self.type is not str:
                    valid = f"{', '.join(self.choices)} or a number"
                raise SetpointError(
                    f"{self.name} is {valid}; got {word!r}." + did_you_mean(word, self.choices, " ")
                )
            if self.type is not str:
                self._check_number(word)

    def _check_number(self, text: str) -> None:
        kind, least = ("an int", 1) if self.type is int else ("a float", 0)
        least = least if self.at_least is None else self.at_least
        try:
            if not text.isascii() or "_" in text:  # which Python reads, and no field does
                raise ValueError
            number = self.type(text)
        except ValueError:
            raise SetpointError(f"{self.name} needs {kind}, got {text!r}") from None
        assert not isinstance(number, str)
        if not number >= least:
            raise SetpointError(f"{self.name} must be at least {least:g}, got {text}")
        if number > LARGEST:
            raise SetpointError(f"{self.name} must be at most {LARGEST}, got {text}")


WITH = Option("--with", "Apply a modifier, as 'smoke(steps=5)'; it beats files.", "MODIFIER", True)
FILE = Option("--file", "Put a further configuration file on top of the source.", "FILE", True)
STRICT = Option(
    "--strict", "Refuse a file of another system that is not converted without a report."
)
IMPORT = Option("--import", "Import a module first: classes and presets of yours.", "MODULE", True)
WORLD_SIZE = Option("--world-size", "Resolve for this many ranks.", "N", type=int)
STDIN = Option("--config-from-stdin", "Put a configuration file from standard input on top.")
STDIN_FORMAT = Option(
    "--stdin-format",
    "Format of standard input: toml, yaml or json; default: detected.",
    "FORMAT",
    choices=("toml", "yaml", "json"),
)
GPU = Option(
    "--gpu",
    "GPU, such as h100: check its memory; with --plan, estimate the step time.",
    "NAME",
)
GPU_FILE = Option(
    "--gpu-file", "File with GPUs and networks of your own.", "FILE", requires=("--gpu",)
)
PRICE = Option(
    "--price", "Price per GPU-hour, for the cost of the run.", "N", type=float, requires=("--gpu",)
)
POWER = Option(
    "--power",
    "Watts per GPU; default: its data sheet.",
    "N",
    type=float,
    requires=("--gpu",),
)
TIMELINE = Option("--timeline", "Draw the step into this HTML file.", "FILE", requires=("--gpu",))
GPU_OPTIONS = (GPU, GPU_FILE, PRICE, POWER, TIMELINE)
"""Options of commands that estimate the time of a step; see `setpoint.cli.plan`."""
JSON = Option("--json", "Print JSON for machines.")
HELP = Option("--help", "Show this manual.")
SOURCES = ("source", "other_source", "a", "b", "more")
"""Names of arguments that are configurations, in manuals."""
SHORT = {"-h": HELP.name, "-o": "--output"}
"""Options that can be typed with one letter."""
COMMON = (WITH, FILE, IMPORT, STRICT)
"""Options of each command that composes a configuration."""
RANKED = (*COMMON, WORLD_SIZE, JSON)
"""Options of commands that print one, for any number of ranks."""


class Arguments:
    """The arguments of one call: `positional`, `overrides` as typed, and `options`."""

    __slots__ = ("command", "options", "overrides", "positional")

    def __init__(self, command: Command) -> None:
        self.command = command
        self.positional: list[str] = []
        self.overrides: list[str] = []
        self.options: dict[str, list[str]] = {}

    @property
    def source(self) -> str | None:
        """The SOURCE; None where it may be left out and is, which means the defaults alone."""
        return self.positional[0] if self.positional else None

    def has(self, name: str) -> bool:
        """True if an option was given."""
        return name in self.options

    def value(self, name: str) -> str | None:
        """An option's value."""
        return self.options[name][-1] if name in self.options else None

    def values(self, name: str) -> list[str]:
        """The values of an option that may be repeated."""
        return self.options.get(name, [])

    def integer(self, name: str) -> int | None:
        """The value of an option of type int."""
        return int(self.options[name][-1]) if name in self.options else None

    def number(self, name: str) -> float | None:
        """The value of an option of type float."""
        return float(self.options[name][-1]) if name in self.options else None


class Command:
    """A command: its manual page, its options, and the function that it decorates.

    Arguments:
        usage: the arguments, without `setpoint NAME`.
        options: its options; `--help` is added.
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
        program: Program = SETPOINT,
    ) -> None:
        self.name = name
        self.usage = usage
        self.description = description
        self.options = [*options, HELP]
        if FILE in options and STDIN not in options:
            # What takes files takes one from standard input.
            after = self.options.index(FILE) + 1
            self.options[after:after] = [STDIN, STDIN_FORMAT]
        self.examples = examples
        self.positional = positional
        self.program = program
        self.run: Callable[[Arguments], int]

    def __call__(self, run: Callable[[Arguments], int]) -> Command:
        """Decorate the function that carries the command out and returns the exit status."""
        self.run = run
        return self

    @property
    def title(self) -> str:
        """Words that call it, such as `setpoint train`."""
        return f"{self.program.name} {self.name}".rstrip()

    def of(self, program: Program) -> Command:
        """The same command of a script with a root class of its own."""
        at_least, at_most = self.positional
        leading = self.usage.startswith("SOURCE")
        command = Command(
            self.name,
            f"[SOURCE]{self.usage.removeprefix('SOURCE')}" if leading else self.usage,
            self.description.replace(SOURCE_HELP, own_source_help(program)).replace(
                "`setpoint ", f"`{program.name} "
            ),
            [option for option in self.options if option not in (WORLD_SIZE, HELP)],
            (),
            (0 if leading else at_least, at_most),
            program,
        )
        return command(self.run) if hasattr(self, "run") else command

    def parse(self, tokens: Sequence[str]) -> Arguments:
        """Split the tokens into positional arguments, options and overrides.

        Returns:
            the parts; overrides are not interpreted yet.

        Raises:
            SetpointError: if an option lacks its value, or the positional arguments do not fit.
        """
        if any(token.startswith("@") for token in tokens):
            from setpoint.cli.response_files import expand_responses

            tokens = expand_responses(tokens, self._takes_section)
        table = {option.name: option for option in self.options}
        sets_fields = "OVERRIDES" in self.usage
        parsed = Arguments(self)
        at = 0
        while at < len(tokens):
            token = tokens[at]
            at += 1
            name, equals, text = token.partition("=")
            has_room = len(parsed.positional) < self.positional[1]
            option = table.get(SHORT.get(name, name.replace("_", "-")))
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
            elif not (_is_override(token) if sets_fields else _is_flag(token)) or (
                # A number below zero, as in `replay RUN -3`, is refused by the command.
                has_room and not parsed.overrides and token[0] == "-" and token[1:].isdecimal()
            ):
                if sets_fields and parsed.overrides and not has_room:
                    self._refuse_value(parsed.overrides, [token, *tokens[at:]])
                    self._refuse_file(token)
                    parsed.overrides.append(token)  # which is refused as no override
                else:
                    parsed.positional.append(token)
            else:
                if name == WORLD_SIZE.name and self.title == "setpoint train":
                    raise SetpointError(
                        f"{self.title} takes the number of ranks from the launcher (WORLD_SIZE), "
                        f"not from {name}; `setpoint check {name} N` verifies a plan for any number"
                    )
                joins = sets_fields and at < len(tokens)
                if joins and (word := self._joined(token, tokens[at], parsed, tokens)):
                    token, at = word, at + 1
                parsed.overrides.append(token)
        if not parsed.has("--help"):
            self._check(parsed, table)
            if not sets_fields:
                refuse_overrides(parsed)
            least, most = self.positional
            if not least <= len(parsed.positional) <= most:
                self._refuse_count(parsed, tokens)
        return parsed

    def _check(self, parsed: Arguments, table: dict[str, Option]) -> None:
        """Check the values of options, and that none is without effect or contradicts another."""
        # `-` stands for a source that arrives on standard input, also where no source is given.
        words = [word.strip("[]") for word in self.usage.split()]
        if parsed.has(STDIN.name) and words[len(parsed.positional) :][:1] == ["SOURCE"]:
            parsed.positional.append("-")
        if parsed.has(STDIN_FORMAT.name) and not (
            parsed.has(STDIN.name) or "-" in parsed.positional
        ):
            raise SetpointError("--stdin-format has no effect without --config-from-stdin")
        for name, texts in parsed.options.items():
            option = table[name]
            for text in texts:
                if option.metavar is not None:
                    option.check(text)
            required = [table[other] for other in option.requires if other in table]
            if required and not any(parsed.has(other.name) for other in required):
                needed = " or ".join(" ".join(filter(None, (o.name, o.metavar))) for o in required)
                raise SetpointError(f"{name} has no effect without {needed}")
            for other in option.excludes:
                if parsed.has(other):
                    raise SetpointError(f"{name} and {other} contradict each other; give one")

    def _takes_section(self, word: str) -> bool:
        """True if a word is a flag such as `--model`, whose value may be that of a preset."""
        from setpoint.config.layers.flags import is_section

        name = word.removeprefix("--").replace("-", "_")
        return word.startswith("--") and is_section(self.program.root, tuple(name.split(".")))

    def _joined(
        self, token: str, word: str, parsed: Arguments, tokens: Sequence[str]
    ) -> str | None:
        """An override with the word behind it, if that is its value."""
        if not token.startswith("--") or "=" in token or word.startswith("--"):
            return None
        from setpoint.config.layers.flags import with_value

        def is_argument(word: str) -> bool:
            slots = self.usage.replace("[OVERRIDES]", "").split()
            slot = slots[min(len(parsed.positional), len(slots) - 1)] if slots else ""
            return self._can_be(slot.strip("[].").lower(), word, tokens)

        return with_value(self.program.root, token, word, is_argument)

    def _can_be(self, slot: str, word: str, tokens: Sequence[str]) -> bool:
        """True if a word can be the argument of a place: a configuration, or anything else."""
        from setpoint.config.files.document import names_file
        from setpoint.config.layers.presets import preset_named
        from setpoint.config.types.base import TRUTH

        if slot in SOURCES:
            import_named(
                self.program, [name for word, name in pairwise(tokens) if word == "--import"]
            )
            if any(names_file(part) or preset_named(part) for part in word.split(",")):
                return True
        if word.lower() in TRUTH:  # a file of this name is written ./on
            return False
        is_path = os.path.exists(word) or word == "-" or ":" in word or os.sep in word
        return slot not in SOURCES or is_path

    def _refuse_count(self, parsed: Arguments, tokens: Sequence[str]) -> None:
        """Refuse too few or too many positional arguments."""
        given, (least, most) = parsed.positional, self.positional
        if len(given) < least:
            missing = self.usage.split()[len(given) : least]
            verb = "is" if len(missing) == 1 else "are"
            raise SetpointError(
                f"{' and '.join(missing)} {verb} missing: {self.title} {self.usage}"
                + _taken_as_value(self.program, parsed.overrides, tokens)
                + (f"\nfor instance: {self.examples[0][0]}" if self.examples else "")
            )
        from setpoint.config.layers.flags import unexpected

        self._refuse_file(given[most])
        if "OVERRIDES" not in self.usage:
            raise SetpointError(
                f"unexpected argument {given[most]!r}: {self.title} takes {self.usage}; what "
                f"holds spaces is put in quotes"
            )
        raise SetpointError(unexpected(given[most]))

    def _refuse_value(self, overrides: list[str], rest: Sequence[str]) -> None:
        """Refuse words behind a flag's value that belong to it, as in `--duration 2 epochs`."""
        from setpoint.config.layers.flags import one_word

        flag, _, text = overrides[-1].partition("=")
        end = next((at for at, word in enumerate(rest) if "=" in word or word[:2] == "--"), None)
        typed = one_word(self.program.root, flag, [text, *rest[:end]]) if flag[:2] == "--" else ""
        if typed:
            raise SetpointError(
                f"unexpected argument {rest[0]!r}; a value is one word of the shell: {typed}"
            )

    def _refuse_file(self, word: str) -> None:
        """Refuse a file in the place of an override with what it is given as."""
        if self.usage.partition(" ")[0] != "SOURCE" or not os.path.isfile(word):
            return
        from setpoint.config import Origin
        from setpoint.config.draft.hints import written
        from setpoint.config.files.document import names_file
        from setpoint.config.values.origin import COMMAND_LINE

        if names_file(word):
            if FILE in self.options:
                raise SetpointError(
                    f"unexpected argument {word!r}; a further configuration file is given as "
                    f"--file {word}"
                )
        elif not self.program.is_own and not word.endswith(".py"):
            values = {"data.sources": [{"type": "text", "paths": [word]}]}
            raise SetpointError(
                f"unexpected argument {word!r}; a text to train on is data: "
                f"{written(values, Origin(COMMAND_LINE))}"
            )


SOURCE_HELP = """
SOURCE is a preset (see `setpoint list presets`), a TOML, YAML or JSON file, a run directory, a
checkpoint, module:function, or REV:PRESET and REV:FILE of a git revision, as in HEAD~1:tiny.
OVERRIDES set fields, before or after SOURCE: --optimizer.lr 1e-3, --optimizer.lr=1e-3 and
optimizer.lr=1e-3 mean the same, and a later one beats an earlier one. `--optimizer adamw` chooses
a variant; `--evaluation null` switches a section off. Layers, later beats earlier: defaults,
preset, files, environment (SETPOINT__OPTIMIZER__LR=1e-3), modifiers of --with, overrides. SOURCE
`-` is a file on standard input; `@args.txt` stands for the words in that file."""


def import_named(program: Program, modules: Sequence[str]) -> None:
    """Make known what a source may name: presets and modifiers, and those of modules of `--import`.

    Raises:
        SetpointError: if a module cannot be imported.
    """
    from setpoint.config.composition import import_presets
    from setpoint.config.values.user_code import import_user_module

    if program.is_own:
        import_presets(program.root)
    else:
        import setpoint.presets  # noqa: F401 - registers the presets and modifiers by name
    for name in modules:
        import_user_module(name, f"--import {name}")


def _taken_as_value(program: Program, overrides: list[str], tokens: Sequence[str]) -> str:
    """Reason why SOURCE is missing where the word that may be meant stands after a flag."""
    from setpoint.config.files.document import names_file
    from setpoint.config.layers.flags import with_value
    from setpoint.config.layers.presets import preset_named

    import_named(program, ())
    for override in overrides:
        flag, _, word = override.partition("=")
        if word not in tokens:
            continue
        if with_value(program.root, flag, word, lambda _: True) is None:
            return f"\n{flag} takes true or false; {word!r} is neither, and no preset, file or run"
        if os.path.exists(word) or names_file(word) or preset_named(word):
            return f"\n{word} is the value of {flag} here; write {flag}=VALUE, or SOURCE first"
    return ""


def _is_flag(token: str) -> bool:
    return token.startswith("-") and token != "-"


def _is_override(token: str) -> bool:
    """True for `--a.b`, `a.b=1`, and Hydra's `~a`, which is refused with what to write here."""
    name, equals, _ = token.partition("=")
    if token.startswith("~"):
        from setpoint.config.layers.flags import deletes

        return deletes(token) and not os.path.exists(token)
    if token.startswith("-"):
        return _is_flag(token)
    # Not the parameters of a preset, tiny(width=64), closed or not, nor a folder of a sweep.
    return bool(equals) and "(" not in name and not (os.sep in name and os.path.isdir(token))


def own_source_help(program: Program) -> str:
    """Meaning of SOURCE and OVERRIDES in a script with a root class of its own."""
    prefix = program.root.__setpoint__.environment_prefix
    return f"""
SOURCE is a preset (see `{program.name} list presets`), a TOML, YAML or JSON file, a folder with a
record, or module:function; without one the defaults are taken. OVERRIDES set fields: --a.b 1,
--a.b=1 and a.b=1 mean the same, and a later one beats an earlier one. Layers, later beats earlier:
defaults, preset, files, environment ({prefix}__A__B=1), modifiers of --with, overrides. SOURCE
`-` is a file on standard input; `@args.txt` stands for the words in that file."""


def refuse_overrides(arguments: Arguments) -> None:
    """Refuse words that are no argument of the command.

    Raises:
        SetpointError: if there are some.
    """
    if not arguments.overrides:
        return
    command = arguments.command
    for token in arguments.overrides:
        _refuse_like_option(command, token.partition("=")[0])
    raise SetpointError(
        f"unexpected argument {arguments.overrides[0]!r}: {command.title} sets no fields; an "
        f"option that it knows is one of {', '.join(option.name for option in command.options)}"
    )


def refuse_misspelt_options(
    arguments: Arguments, fields: Container[str], root: type[Config] | None = None
) -> None:
    """Answer a misspelt option as such, where it would be read as an unknown field.

    Arguments:
        root: the class of the configuration; that of the program if None.

    Raises:
        SetpointError: for a flag that is no field of the root, and is either close to an option
            of the command, or the only one and without a value.
    """
    overrides = arguments.overrides
    if not overrides:
        return
    root = root or arguments.command.program.root
    for token in overrides:
        name, equals, _ = token.partition("=")
        word = name[2:].replace("-", "_")
        if not name.startswith("--") or "." in name or word in fields:
            continue
        if word.removeprefix("no_") in fields:
            continue
        command = arguments.command
        if retired_hint(root, word):
            continue  # it was a field once, and is answered as one
        if not nearest(word, root.__setpoint__.fields, 1, LIKE_FIELD):
            _refuse_like_option(command, name)
        if is_foreign_key(root, word):
            continue  # a field by its name elsewhere
        # Beside others it is reported with what is wrong there, as a key that is not known.
        if not equals and len(overrides) == 1:
            meant = did_you_mean(name, [f"--{field}" for field in root.__setpoint__.fields], " ")
            raise SetpointError(
                f"{name} is neither an option of {command.title} nor a field with a "
                f"value.{meant} Options: {', '.join(option.name for option in command.options)}"
            )


def _refuse_like_option(command: Command, flag: str) -> None:
    """Refuse a flag that is like an option; strict, since an unknown field is likelier."""
    from difflib import SequenceMatcher

    word = flag.lstrip("-").replace("-", "_").lower()
    for option in command.options:
        name = option.name[2:].replace("-", "_")
        # Swapped letters are common, and weigh heavily in short words.
        swapped = sorted(name) == sorted(word)
        if swapped or SequenceMatcher(None, word, name).ratio() > CLOSE:
            raise SetpointError(
                f"{command.title} has no option {flag}. Did you mean {option.name}?"
            )
