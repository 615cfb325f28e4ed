"""The command line of a script with its own config class: `python train.py SOURCE --a.b 1`."""

from __future__ import annotations

import builtins
import gc
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from setpoint.cli.main import COMMANDS as ALL_COMMANDS
from setpoint.cli.main import INTERRUPTED, command_of, guarded, has_torch, report, show_users_frames
from setpoint.cli.options import FILE, IMPORT, WITH, Arguments, Command, Program
from setpoint.cli.output import bold, manual, print_cautions, print_notes
from setpoint.config import Config, ConfigError, RunError, SetpointError, nearest
from setpoint.config.draft.walk import need_class
from setpoint.config.values.user_code import raised_by_user, traceback_of
from setpoint.config.words.errors import UserCodeError

C = TypeVar("C", bound=Config)

COMMANDS = ("check", "show", "why", "diff", "list", "sweep", "fingerprint", "schema", "migrate",
            "completion")  # fmt: skip
NOT_HERE = (*(name for name in ALL_COMMANDS if name not in COMMANDS), "run", "report")
"""Commands of `setpoint` that a script does not have."""
ABOUT = {name: what for name, (_, what) in ALL_COMMANDS.items()} | {
    "sweep": "run many points, all checked first"
}
RUN = Command("SOURCE [OVERRIDES]", WITH, FILE, IMPORT)


def run(
    root: type[C], main: Callable[[C], object], arguments: Sequence[str] | None = None
) -> NoReturn:
    """Make a config class the command line of a script, and end the process with its exit status.

    `python train.py SOURCE --a.b 1` merges all layers, resolves, runs all checks, including those
    with needs, shows cautions, and calls `main` with the frozen config; SOURCE is optional. `python
    train.py check`, `show`, `why`, `diff`, `list`, `fingerprint`, `schema`, `migrate` and
    `completion` work as for Setpoint's own jobs, without calling `main`; `sweep` starts the script
    once for each point. Errors in the configuration are printed, with exit status 2, before `main`
    is called.

    Arguments:
        main: the work. An int that it returns is the exit status; a `SetpointError` that it raises
            itself is printed as a message, one that it causes with its traceback.
        arguments: the words after the script's name; those of the process if None.

    Raises:
        SystemExit: always, with the exit status.
    """
    need_class(root, "run")
    config, status = _run_command_line(root, sys.argv[1:] if arguments is None else arguments)
    if "torch" not in sys.modules and not gc.get_freeze_count():
        # Existing objects live until the end, so no collection need visit them; those at exit took
        # a tenth of the time of a small script. Objects made by `main` are collected.
        gc.freeze()
    sys.exit(status if config is None else _call(main, config))


def load(
    root: type[C],
    source: str | os.PathLike[str] | None = None,
    arguments: Sequence[str] | None = None,
) -> C:
    """The resolved config of a script or notebook, as `run` would pass it to `main`.

    `load(Job)` in a script reads the command line as `run` does, including commands and `--help`,
    which end the process; so does an invalid configuration, whose errors are printed, with exit
    status 2. With a source or arguments the rest of the command line is not read, and in a notebook
    or at a prompt it never is, since its words are not meant for the configuration; errors are then
    raised.

    Arguments:
        source: a preset, a file, a folder with a record, or `module:function`.
        arguments: words as on the command line, such as `["--seed", "3", "--with", "smoke"]`.

    Returns:
        the frozen config; cautions and notes are printed on standard error.

    Raises:
        ConfigError: with all problems, if the command line is not read.
        SetpointError: likewise, if a source or layer cannot be read at all.
        SystemExit: if the command line is read, after a command, `--help` or an error.
    """
    need_class(root, "load")
    # In a notebook or at a prompt, `sys.argv` is the command line of that program.
    prompt = hasattr(sys, "ps1") or hasattr(builtins, "__IPYTHON__")
    is_interactive = prompt and not hasattr(sys.modules["__main__"], "__file__")
    if source is not None or arguments is not None or is_interactive:
        return _load(root, source, [] if arguments is None else arguments)
    config, status = _run_command_line(root, sys.argv[1:])
    if config is None:
        sys.exit(status)
    return config


def _run_command_line(root: type[C], arguments: Sequence[str]) -> tuple[C | None, int]:
    """The config of a command line, or None after a command or an error; the exit status."""
    program = _program(root)
    _name_main_module()
    words, configs = list(arguments), list[C]()
    status = guarded(lambda: _dispatch(program, words, configs), words)
    return next(iter(configs), None), status


def _load(root: type[C], source: str | os.PathLike[str] | None, words: Sequence[str]) -> C:
    if isinstance(words, str) or not all(isinstance(word, str) for word in words):
        raise SetpointError(
            f"load: arguments must be a list of str, such as ['--seed', '3']; got {words!r}"
        )
    parsed = RUN.of(Program("load", root)).parse(words)
    if parsed.has("--help"):
        raise SetpointError("--help is only for the command line of a script")
    if source is not None:
        if parsed.positional:
            raise SetpointError(
                f"load: expected one source, got {os.fspath(source)!r} and {parsed.positional[0]!r}"
            )
        parsed.positional.append(os.fspath(source))
    return _opened(parsed)


def _opened(parsed: Arguments) -> Any:
    """Merge all layers, resolve, and run all checks."""
    from setpoint.cli.source import open_source

    config = open_source(parsed.source, parsed).resolve()
    _verify(config)
    return config


def _dispatch(program: Program, words: list[str], configs: list[Any]) -> int:
    """Run the command, or append the config for `main` to `configs`."""
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if words[:1] == ["__complete"]:
        from setpoint.cli.complete import CommandLine, complete
        from setpoint.config.composition import import_presets

        import_presets(program.root)
        line = CommandLine(COMMANDS, lambda name: _command(name, program))
        return complete(words[1:], line)
    if words and words[0] in COMMANDS:
        parsed = _command(words[0], program).parse(words[1:])
        if parsed.has("--help"):
            print(manual(parsed.command))
            return 0
        return parsed.command.run(parsed)
    command = RUN.of(program)
    _refuse_command(program, words)
    parsed = command.parse(words)
    if parsed.has("--help"):
        print(_overview(program, command))
        return 0
    try:
        configs.append(_opened(parsed))
    except SetpointError:
        if parsed.source in COMMANDS:
            raise SetpointError(
                f"the command must come first: {program.name} {parsed.source} [SOURCE] [OVERRIDES]"
            ) from None
        raise
    return 0


def _refuse_command(program: Program, words: list[str]) -> None:
    """Refuse a misspelled command, or one that scripts do not have, unless it is a source."""
    word = words[0] if words else ""
    is_typo = word.isidentifier() and word not in NOT_HERE
    close = nearest(word, COMMANDS, 1, likeness=0.75) if is_typo else ()
    if not (close or word in NOT_HERE) or os.path.exists(word):
        return
    from setpoint.config.composition import import_presets
    from setpoint.config.layers.presets import preset_named

    import_presets(program.root)
    if preset_named(word) or "--import" in words:
        return
    if close:
        raise SetpointError(
            f"{word!r} is neither a command nor a preset. Did you mean {close[0]}? "
            f"Commands: {', '.join(COMMANDS)}"
        )
    explanation = f"; `setpoint {word}` is for Setpoint's own runs" if word in ALL_COMMANDS else ""
    raise SetpointError(
        f"{program.name} has no command {word!r}{explanation}. Without a command it runs: "
        f"{program.name} [SOURCE] [OVERRIDES]. Commands: {', '.join(COMMANDS)}"
    )


def _command(name: str, program: Program) -> Command:
    if name == "sweep":  # differs from Setpoint's
        from setpoint.cli.sweep import sweep_script

        return sweep_script.of(program)
    return (command_of(name) if name in COMMANDS else RUN).of(program)


def _verify(config: Config) -> None:
    """Run the checks with needs, and print notes to standard error."""
    from setpoint.config import verify
    from setpoint.config.draft.walk import dropped_values
    from setpoint.config.resolving.checks import needs_of

    report = verify(config, [n for n in needs_of(config) if n != "torch" or has_torch()])
    if report.problems:
        raise ConfigError(report.problems)
    notes = [f"dropped: {value}" for value in dropped_values(config)]
    notes += [f"not checked: {check}" for check in report.skipped]
    if notes or report.cautions:
        print_notes(notes)
        print_cautions(report.cautions)


def _call(main: Callable[[Any], object], config: Any) -> int:
    show_users_frames()
    try:
        result = main(config)
    except SetpointError as error:
        if not isinstance(error, RunError | UserCodeError) and not raised_by_user(error):
            # `main` has misused Setpoint; the command line was valid.
            print(traceback_of(error), file=sys.stderr)
            return UserCodeError.status
        report(error)
        return error.status
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    # For Python, bools are ints, with the opposite meaning as exit statuses.
    return result if isinstance(result, int) and not isinstance(result, bool) else 0


def _overview(program: Program, command: Command) -> str:
    from setpoint.cli.list import field_rows, fields_text

    about = (program.root.__doc__ or "").strip()
    text = manual(command).partition("\n")[2]
    lines = [
        bold(f"{program.name} [SOURCE] [OVERRIDES]"),
        bold(f"{program.name} COMMAND [SOURCE] [OVERRIDES]"),
        *(("", about) if about else ()),
        "",
        bold("Commands"),
        *(f"  {name:<14}{ABOUT[name]}" for name in COMMANDS),
        "",
        f"Without a command it runs. `{program.name} COMMAND --help` is a command's manual.",
        text.rstrip(),
        "",
        bold("Fields"),
        fields_text(list(field_rows(program.root))),
    ]
    return "\n".join(lines)


def _program(root: type[Config]) -> Program:
    """The command that started the script, for hints."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    name = os.path.basename(sys.argv[0])
    if spec is not None:
        name = f"python -m {spec.name.removesuffix('.__main__')}"
    elif name.endswith(".py"):
        name = f"python {name}"
    root.__setpoint__.program = "" if name == "-c" else name
    return Program(name, root)


def _name_main_module() -> None:
    """Register the script under its own module name, so that importing it does not run it again.

    A module with presets contains `from train import Job`. If that imported the script again, its
    classes would be different ones, and no config would be an instance of them.
    """
    script = sys.modules["__main__"]
    file, spec = (getattr(script, name, None) for name in ("__file__", "__spec__"))
    if file is not None or spec is not None:
        name = spec.name if spec else os.path.splitext(os.path.basename(str(file)))[0]
        sys.modules.setdefault(name, script)
