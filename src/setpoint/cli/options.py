"""Commands and their options: the manual page, and the parsed, checked arguments of one call."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from setpoint.config import Config, SetpointError, did_you_mean, nearest
from setpoint.config.draft.hints import is_foreign_key, retired_hint

TRAINING = "setpoint.train.config:Job"
INFERENCE = "setpoint.infer.config:Inference"


class Program:
    """A command line and its config class.

    Arguments:
        name: words before a command, as in `python train.py`.
        root: the class of the configuration; for Setpoint's own jobs its location, which is
            imported when needed.
    """

    __slots__ = ("_root", "name")

    def __init__(self, name: str, root: type[Config] | str = TRAINING) -> None:
        self.name = name
        self._root = root

    @property
    def is_own(self) -> bool:
        """True if this is a user's script with its own root class."""
        return not isinstance(self._root, str)

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
"""Similarity from which an unknown flag counts as a misspelt option."""
LIKE_FIELD = 0.75
"""Similarity from which it counts as a misspelt field, and is reported with other problems."""
RANKS = ("nproc", "nproc_per_node", "world_size", "ranks", "gpus", "num_gpus")
"""Names of the number of ranks, of which each command has one at most."""
LARGEST = 2**63 - 1
"""The largest number that an option takes: what 64 bits hold, as torch's numbers do."""


class Option(NamedTuple):
    """One option of a command, as opposed to an override of the configuration.

    Arguments:
        flag: `--name METAVAR`; without a metavar, it is a switch. Lower-case words separated by `|`
            are its valid values; N, among them or alone, stands for an int.
        repeat: whether it may be given several times, or with several of its words, separated by
            commas.
        type: `int` and `float` are parsed as in fields.
        at_least: the smallest number; by default 1 for an int and 0 for a float.
        below: an exclusive limit of the number.
        required: whether the option must be given.
        requires: options that must also be given, separated by spaces; `--a|--b` means one of
            several, `--a=value` an option with that value. Options that a command lacks are
            ignored.
        excludes: conflicting options, in the same form.
    """

    flag: str
    help: str
    repeat: bool = False
    type: type[int] | type[float] | None = None
    at_least: float | None = None
    below: float | None = None
    required: bool = False
    requires: str = ""
    excludes: str = ""

    @property
    def name(self) -> str:
        """The flag, such as `--json`."""
        return self.flag.partition(" ")[0]

    @property
    def metavar(self) -> str:
        """Name of the value in the manual; empty for a switch."""
        return self.flag.partition(" ")[2]

    @property
    def choices(self) -> list[str]:
        """The valid words; empty if any text is valid."""
        words = self.metavar.split("|")
        lower = [word for word in words if word.islower()]
        return lower if set(words) <= {*lower, "N"} else []

    def check(self, text: str) -> None:
        """Check one value."""
        words = self.choices
        kind = int if self.metavar in ("N", "|".join([*words, "N"])) else self.type
        for word in text.split(",") if self.repeat and words else [text]:
            if word in words:
                continue
            if words and not (kind and word.isdecimal()):
                listed = ", ".join(words)
                valid = f"{listed} or a number" if kind else f"one of {listed}"
                meant = did_you_mean(word, words, ". ")
                raise SetpointError(f"{self.name} is {valid}; got {word!r}{meant}")
            if kind:
                self._check_number(word, kind)

    def _check_number(self, text: str, kind: type[int] | type[float]) -> None:
        title, least = ("an int", 1) if kind is int else ("a float", 0)
        least = least if self.at_least is None else self.at_least
        try:
            if not text.isascii() or "_" in text:  # valid for Python, but not in fields
                raise ValueError
            number = kind(text)
        except ValueError:
            raise SetpointError(f"{self.name} needs {title}, got {text!r}") from None
        if not number >= least:
            raise SetpointError(f"{self.name} must be at least {least:g}, got {text}")
        if self.below is not None and not number < self.below:
            raise SetpointError(f"{self.name} must be below {self.below:g}, got {text}")
        if number > LARGEST:
            raise SetpointError(f"{self.name} must be at most {LARGEST}, got {text}")


WITH = Option("--with MODIFIER", "Apply a modifier, such as 'smoke(steps=5)'.", True)
FILE = Option("--file FILE", "Apply a further configuration file.", True)
STRICT = Option("--strict", "Refuse files of other systems that convert inexactly.")
IMPORT = Option("--import MODULE", "Import a Python module first.", True)
WORLD_SIZE = Option("--world-size N", "Resolve for this many ranks.")
STDIN = Option("--config-from-stdin", "Apply a configuration file from standard input.")
STDIN_FORMAT = Option(
    "--stdin-format toml|yaml|json", "Format of standard input; default: detected."
)
GPU = Option("--gpu NAME", "GPU, such as h100: check its memory; with --plan, the step time.")
GPU_FILE = Option(
    "--gpu-file FILE", "File that defines further GPUs and networks.", requires="--gpu"
)
PRICE = Option("--price AMOUNT", "Price per GPU-hour.", type=float, requires="--gpu --plan")
POWER = Option("--power WATTS", "Power per GPU; default: its data sheet.", type=float,
               requires="--gpu --plan")  # fmt: skip
TIMELINE = Option("--timeline FILE", "Draw the step into this HTML file.",
                  requires="--gpu --plan")  # fmt: skip
GPU_OPTIONS = (GPU, GPU_FILE, PRICE, POWER, TIMELINE)
"""Options of commands that estimate the time of a step; see `setpoint.cli.plan`."""
JSON = Option("--json", "Print JSON.")
HELP = Option("--help", "Show this manual.")
SOURCES = ("source", "other_source", "a", "b", "more")
"""Names of positional arguments that are configurations."""
SHORT = {"-h": HELP.name, "-o": "--output"}
"""Options that can be typed with one letter."""
COMMON = (WITH, FILE, IMPORT, STRICT)
"""Options of each command that composes a configuration."""
RANKED = (*COMMON, WORLD_SIZE, JSON)
"""Options of commands that print a configuration, for any number of ranks."""
JOB_KIND = Option("--job training|inference", "Kind of job; default: training.")
NOT_OF_SCRIPTS = (WORLD_SIZE, STRICT, JOB_KIND, HELP, STDIN, STDIN_FORMAT)
"""Options that scripts do not have, or that are added."""


class Arguments:
    """Arguments of one call: `positional`, `overrides` as typed, `foreign` ones, and `options`.

    `noted` contains the notes already printed, which are not printed again.
    """

    __slots__ = ("command", "foreign", "noted", "options", "overrides", "positional")

    def __init__(self, command: Command) -> None:
        self.command = command
        self.positional: list[str] = []
        self.foreign: list[str] = []
        self.overrides: list[str] = []
        self.options: dict[str, list[str]] = {}
        self.noted: set[str] = set()

    @property
    def source(self) -> str | None:
        """The SOURCE; None if it was omitted, which means only the defaults."""
        return self.positional[0] if self.positional else None

    def has(self, name: str) -> bool:
        """True if an option was given."""
        return name in self.options

    def has_word(self, word: str) -> bool:
        """True if an option was given or, for `--name=value`, given with that value."""
        name, equals, value = word.partition("=")
        return value in self.values(name) if equals else name in self.options

    def value(self, name: str) -> str | None:
        """The value of an option."""
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

    The docstring of the function is the manual: a description of the command and, under
    `Examples:`, one line per example, with its meaning after two spaces.

    Arguments:
        usage: the name in lower case, and the arguments: `[X]` is optional, `X...` is one or more.
        options: the options; `--help` is added, as are those for standard input if files are
            accepted.
        about: further paragraphs of the manual, shared by commands. The meaning of SOURCE is added
            if there are OVERRIDES and the manual does not explain it.
    """

    def __init__(
        self, usage: str, *options: Option, about: str = "", program: Program = SETPOINT
    ) -> None:
        words = usage.split()
        self.name = " ".join(word for word in words if word.islower())
        self.usage = usage.removeprefix(self.name).lstrip()
        self.options = [*options, HELP]
        if FILE in options:
            after = self.options.index(FILE) + 1
            self.options[after:after] = [STDIN, STDIN_FORMAT]
        self.about = about
        self.program = program
        slots = [word for word in self.usage.split() if word != "[OVERRIDES]"]
        self.at_least = sum(word[0] != "[" for word in slots)
        self.at_most = sys.maxsize if "..." in self.usage else len(slots)
        self.run: Callable[[Arguments], int]

    def __call__(self, run: Callable[[Arguments], int]) -> Command:
        """Decorate the function that carries out the command and returns the exit status."""
        self.run = run
        return self

    @property
    def title(self) -> str:
        """Program and command, such as `setpoint train`."""
        return f"{self.program.name} {self.name}".rstrip()

    @property
    def description(self) -> str:
        """The manual without usage, options and examples."""
        text = self._documentation[0]
        if self.about:
            text += f"\n\n{self.about.strip()}"
        if self.program.is_own:
            text = text.replace("`setpoint ", f"`{self.program.name} ")
        if "OVERRIDES" in self.usage and "\nSOURCE is " not in text:
            sources_help = own_source_help(self.program) if self.program.is_own else SOURCE_HELP
            text += f"\n\n{sources_help}"
        return text.strip()

    @property
    def examples(self) -> list[tuple[str, str]]:
        """Command lines and their meanings; empty in scripts, which have other fields."""
        lines = [] if self.program.is_own else self._documentation[1].splitlines()
        pairs = (line.strip().rpartition("  ") for line in lines if line.strip())
        return [(words.rstrip(), meaning) for words, _, meaning in pairs]

    @property
    def _documentation(self) -> tuple[str, str]:
        text = (self.run.__doc__ or "") if hasattr(self, "run") else ""
        text = text.replace("\n    ", "\n").strip()  # importing `inspect` takes time
        description, _, examples = text.partition("\n\nExamples:\n")
        return description, examples

    def of(self, program: Program) -> Command:
        """The same command for a script with its own root class."""
        usage = self.usage
        if usage.startswith("SOURCE"):
            usage = f"[SOURCE]{usage.removeprefix('SOURCE')}"
        options = (o for o in self.options if o not in NOT_OF_SCRIPTS)
        command = Command(f"{self.name} {usage}", *options, about=self.about, program=program)
        return command(self.run) if hasattr(self, "run") else command

    def parse(self, tokens: Sequence[str]) -> Arguments:
        """Split the tokens into positional arguments, options and overrides as typed."""
        if any(token.startswith("@") for token in tokens):
            from setpoint.cli.response_files import expand_response_files

            tokens = expand_response_files(tokens, self._takes_section)
        table = {option.name: option for option in self.options}
        sets_fields = "OVERRIDES" in self.usage
        parsed = Arguments(self)
        if "--" in tokens:
            # The words after it are in the syntax of the source's system.
            end = tokens.index("--")
            tokens, parsed.foreign = tokens[:end], [*tokens[end + 1 :]]
            if not parsed.foreign:
                raise SetpointError(
                    "unexpected argument '--': nothing follows it; it precedes overrides in the "
                    "syntax of the system whose file is the SOURCE"
                )
            if "SOURCE" not in self.usage and "DIALECT" not in self.usage:
                raise SetpointError(
                    f"{self.title} does not accept files from other systems, so -- has no meaning"
                )
        index = 0
        while index < len(tokens):
            token = tokens[index]
            index += 1
            name, equals, text = token.partition("=")
            has_room = len(parsed.positional) < self.at_most
            option = table.get(SHORT.get(name, name.replace("_", "-")))
            if option is not None:
                if not option.metavar:
                    if equals:
                        raise SetpointError(f"{name} is a switch and accepts no value")
                elif not equals:
                    # A value that looks like an option most likely means a missing value.
                    if index >= len(tokens) or tokens[index].startswith("--"):
                        raise SetpointError(f"{name} needs a value: {name} {option.metavar}")
                    text, index = tokens[index], index + 1
                if option.name in parsed.options and option.metavar and not option.repeat:
                    raise SetpointError(f"{option.name} is given twice")
                parsed.options.setdefault(option.name, []).append(text)
            elif not (_is_override(token) if sets_fields else _is_flag(token)) or (
                # Negative numbers, as in `replay RUN -3`, are refused by the command.
                has_room and not parsed.overrides and token[0] == "-" and token[1:].isdecimal()
            ):
                if sets_fields and parsed.overrides and not has_room:
                    self._refuse_value(parsed.overrides, [token, *tokens[index:]])
                    self._refuse_file(token)
                    parsed.overrides.append(token)  # refused later as an invalid override
                else:
                    parsed.positional.append(token)
            else:
                if name == WORLD_SIZE.name and self.title == "setpoint train":
                    raise SetpointError(
                        f"{self.title} takes the number of ranks from the launcher (WORLD_SIZE), "
                        f"not from {name}; `setpoint check {name} N` verifies a plan for any number"
                    )
                joins = sets_fields and index < len(tokens)
                if joins and (word := self._joined(token, tokens[index], parsed, tokens)):
                    token, index = word, index + 1
                parsed.overrides.append(token)
        if not parsed.has("--help"):
            self._check(parsed, table)
            if not sets_fields:
                refuse_overrides(parsed)
            if not self.at_least <= len(parsed.positional) <= self.at_most:
                self._refuse_count(parsed, tokens)
        return parsed

    def _check(self, parsed: Arguments, table: dict[str, Option]) -> None:
        """Check the values of options, and that none is without effect or contradicts another."""
        # `-` is a source on standard input, even if no source is given.
        words = [word.strip("[]") for word in self.usage.split()]
        if parsed.has(STDIN.name) and words[len(parsed.positional) :][:1] == ["SOURCE"]:
            parsed.positional.append("-")
        if parsed.has(STDIN_FORMAT.name) and not (
            parsed.has(STDIN.name) or "-" in parsed.positional
        ):
            raise SetpointError("--stdin-format has no effect without --config-from-stdin")
        for option in self.options:
            if option.required and not parsed.has(option.name):
                for token in parsed.overrides:  # perhaps this option, misspelt
                    _refuse_like_option(self, token.partition("=")[0])
                raise SetpointError(f"{option.flag} is missing: {option.help}")
        for name, texts in parsed.options.items():
            option = table[name]
            for text in texts:
                if option.metavar:
                    option.check(text)
            for word in option.excludes.split():
                if parsed.has_word(word):
                    other = word.replace("=", " ")
                    raise SetpointError(f"{name} and {other} contradict each other; give one")
            for group in option.requires.split():
                words = [word for word in group.split("|") if word.partition("=")[0] in table]
                if words and not any(map(parsed.has_word, words)):
                    flags = (word.replace("=", " ") if "=" in word else table[word].flag
                             for word in words)  # fmt: skip
                    raise SetpointError(f"{name} needs {' or '.join(flags)}")

    def _takes_section(self, word: str) -> bool:
        """True if a word is a flag such as `--model`, whose value may be a preset's."""
        from setpoint.config.layers.flags import is_section

        name = word.removeprefix("--").replace("-", "_")
        return word.startswith("--") and is_section(self.program.root, tuple(name.split(".")))

    def _joined(
        self, token: str, word: str, parsed: Arguments, tokens: Sequence[str]
    ) -> str | None:
        """Join an override with the next word if that is its value."""
        if not token.startswith("--") or "=" in token or word.startswith("--"):
            return None
        from setpoint.config.layers.flags import with_value

        def is_argument(word: str) -> bool:
            slots = self.usage.replace("[OVERRIDES]", "").split()
            slot = slots[min(len(parsed.positional), len(slots) - 1)] if slots else ""
            return self._can_be(slot.strip("[].").lower(), word, tokens)

        return with_value(self.program.root, token, word, is_argument)

    def _can_be(self, slot: str, word: str, tokens: Sequence[str]) -> bool:
        """True if a word can be the positional argument in a slot."""
        from setpoint.config.files.file_document import names_file
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
        given = parsed.positional
        if len(given) < self.at_least:
            missing = self.usage.split()[len(given) : self.at_least]
            verb = "is" if len(missing) == 1 else "are"
            raise SetpointError(
                f"{' and '.join(missing)} {verb} missing: {self.title} {self.usage}"
                + _taken_as_value(self.program, parsed.overrides, tokens)
                + (f"\nfor instance: {self.examples[0][0]}" if self.examples else "")
            )
        from setpoint.config.layers.flags import unexpected

        word = given[self.at_most]
        self._refuse_file(word)
        if "OVERRIDES" not in self.usage:
            raise SetpointError(
                f"unexpected argument {word!r}: {self.title} takes "
                + (
                    f"{self.usage}; put arguments with spaces in quotes"
                    if self.usage
                    else "no arguments"
                )
            )
        prompts = any(option.name == "--prompt" for option in self.options)
        hint = f"\nDid you mean --prompt {shlex.quote(word)}?" if prompts else ""
        raise SetpointError(unexpected(word) + hint)

    def _refuse_value(self, overrides: list[str], rest: Sequence[str]) -> None:
        """Refuse words after a flag's value that belong to it, as in `--duration 2 epochs`."""
        from setpoint.config.layers.flags import one_word

        flag, _, text = overrides[-1].partition("=")
        end = next(
            (index for index, word in enumerate(rest) if "=" in word or word[:2] == "--"), None
        )
        typed = one_word(self.program.root, flag, [text, *rest[:end]]) if flag[:2] == "--" else ""
        if typed:
            raise SetpointError(
                f"unexpected argument {rest[0]!r}; put values with spaces in quotes: {typed}"
            )

    def _refuse_file(self, word: str) -> None:
        """Refuse a file or directory in place of an override, and suggest the right option."""
        if self.usage.partition(" ")[0] != "SOURCE" or not os.path.exists(word):
            return
        if os.path.isdir(word):
            raise SetpointError(
                f"unexpected argument {word!r}: {self.title} takes {self.usage}, and a SOURCE was "
                f"already given; run the command once for each"
            )
        from setpoint.config.files.file_document import names_file

        if names_file(word):
            if FILE in self.options:
                raise SetpointError(
                    f"unexpected argument {word!r}; to add a configuration file, use --file {word}"
                )
        elif not self.program.is_own and not word.endswith(".py"):
            raise SetpointError(
                f"unexpected argument {word!r}; to train on a text file, use {text_flags(word)}"
            )


SOURCE_HELP = """\
SOURCE is a preset (see `setpoint list presets`), a TOML, YAML or JSON file, a run directory, a
checkpoint, module:function, or REV:PRESET and REV:FILE of a git revision, such as HEAD~1:tiny.
OVERRIDES set fields, before or after SOURCE: --optimizer.lr 1e-3, --optimizer.lr=1e-3 and
optimizer.lr=1e-3 mean the same, and a later one beats an earlier one. `--optimizer adamw` chooses
a variant; `--evaluation null` switches a section off. Layers, later beats earlier: defaults,
preset, files, environment (SETPOINT__OPTIMIZER__LR=1e-3), modifiers of --with, overrides. SOURCE
`-` is a file on standard input; `@args.txt` stands for the words in that file."""


def text_flags(path: str) -> str:
    """The overrides that train on a text file."""
    from setpoint.config import Origin
    from setpoint.config.draft.hints import written
    from setpoint.config.values.origin import COMMAND_LINE

    return written({"data.sources": [{"type": "text", "paths": [path]}]}, Origin(COMMAND_LINE))


def import_named(program: Program, modules: Sequence[str]) -> None:
    """Register presets and modifiers, and import the modules of `--import`."""
    from setpoint.config.composition import import_presets
    from setpoint.config.values.user_code import import_user_module

    if program.is_own:
        import_presets(program.root)
    else:
        import setpoint.presets  # noqa: F401 - registers the presets and modifiers by name
    for name in modules:
        import_user_module(name, f"--import {name}")


def _taken_as_value(program: Program, overrides: list[str], tokens: Sequence[str]) -> str:
    """Explain a missing SOURCE that was read as the value of a flag."""
    from setpoint.config.files.file_document import names_file
    from setpoint.config.layers.flags import with_value
    from setpoint.config.layers.presets import preset_named

    import_named(program, ())
    for override in overrides:
        flag, _, word = override.partition("=")
        if word not in tokens:
            continue
        if with_value(program.root, flag, word, lambda _: True) is None:
            return (
                f"\n{flag} takes true or false; {word!r} is neither of these, nor a preset, file "
                f"or run"
            )
        if os.path.exists(word) or names_file(word) or preset_named(word):
            return f"\n{word} was read as the value of {flag}; write {flag}=VALUE, or SOURCE first"
    return ""


def _is_flag(token: str) -> bool:
    return token.startswith("-") and token != "-"


def _is_override(token: str) -> bool:
    """True for `--a.b` and `a.b=1`."""
    name, equals, _ = token.partition("=")
    if token.startswith("-"):
        return _is_flag(token)
    # Neither the parameters of a preset, tiny(width=64), closed or not, nor a folder of a sweep.
    return bool(equals) and "(" not in name and not (os.sep in name and os.path.isdir(token))


def own_source_help(program: Program) -> str:
    """Meaning of SOURCE and OVERRIDES in a script with its own root class."""
    prefix = program.root.__setpoint__.environment_prefix
    return f"""\
SOURCE is a preset (see `{program.name} list presets`), a TOML, YAML or JSON file, a folder with a
record, or module:function; without one the defaults apply. OVERRIDES set fields: --a.b 1,
--a.b=1 and a.b=1 mean the same, and a later one beats an earlier one. Layers, later beats earlier:
defaults, preset, files, environment ({prefix}__A__B=1), modifiers of --with, overrides. SOURCE
`-` is a file on standard input; `@args.txt` stands for the words in that file."""


def refuse_overrides(arguments: Arguments) -> None:
    """Refuse words that are not arguments of the command."""
    if not arguments.overrides:
        return
    command = arguments.command
    for token in arguments.overrides:
        _refuse_like_option(command, token.partition("=")[0])
    raise SetpointError(
        f"unexpected argument {arguments.overrides[0]!r}: {command.title} sets no fields. Options: "
        f"{', '.join(option.name for option in command.options)}"
    )


def refuse_misspelt_options(arguments: Arguments, root: type[Config] | None = None) -> None:
    """Report a misspelt option that would be read as an unknown field."""
    overrides = arguments.overrides
    if not overrides:
        return
    root = root or arguments.command.program.root
    fields = root.__setpoint__.fields
    for token in overrides:
        name, equals, _ = token.partition("=")
        word = name[2:].replace("-", "_")
        if not name.startswith("--") or "." in name or word in fields:
            continue
        command = arguments.command
        if word.removeprefix("no_") in fields or retired_hint(root, word):
            continue  # a field, or a retired one, which has its own error
        if not nearest(word, fields, 1, LIKE_FIELD):
            _refuse_like_option(command, name)
        if is_foreign_key(root, word):
            continue  # a field by its name in another system
        if word in RANKS:
            raise SetpointError(
                f"{command.title} has no option {name}: it takes no number of ranks"
            )
        # With other overrides it is reported as an unknown key, together with their errors.
        if not equals and len(overrides) == 1:
            meant = did_you_mean(name, [f"--{field}" for field in fields], " ")
            raise SetpointError(
                f"{name} is neither an option of {command.title} nor a field with a "
                f"value.{meant} Options: {', '.join(option.name for option in command.options)}"
            )


def _refuse_like_option(command: Command, flag: str) -> None:
    """Refuse a flag similar to an option; strict, because an unknown field is more likely.

    An option whose help is "Number of rows" also matches `--rows`.
    """
    from difflib import SequenceMatcher

    word = flag.lstrip("-").replace("-", "_").lower()
    similar: dict[str, float] = {}
    for option in command.options:
        name = option.name[2:].replace("-", "_")
        # Swapped letters are common, and reduce the similarity of short words most.
        meant = sorted(name) == sorted(word) or (name in RANKS and word in RANKS)
        meant = meant or (bool(word) and option.help.startswith(f"Number of {word}"))
        similar[option.name] = 2.0 if meant else SequenceMatcher(None, word, name).ratio()
    best = max(similar, key=similar.__getitem__)
    if similar[best] > CLOSE:
        raise SetpointError(f"{command.title} has no option {flag}. Did you mean {best}?")
