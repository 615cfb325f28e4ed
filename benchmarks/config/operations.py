"""What each side offers inside a process, used as its documentation says.

The steps, and what each side is given:

- layers: a file that is parsed already, and the ten flags as texts, become a checked config.
- validate: the same values, merged into plain data of the right types, become a checked config.
- fork: a config becomes another one with three fields changed, all of it checked.
- fork + diff: such a fork, and what differs between the two, by path.
- fingerprint: a digest that does not depend on the order of fields. Setpoint keeps with a section
  what it computed of it, so that its time is that of a new fork and its digest.
- serialize: the whole config to JSON and back to a checked config.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import tree

Steps = dict[str, Callable[[], Any]]


def setpoint(module: Any, folder: Path, groups: int) -> Steps:
    """Setpoint: every step keeps the origin of each value.

    Arguments:
        module: the tree's.
        folder: where the files are.
        groups: see `tree.setpoint_module`.

    Returns:
        the steps.
    """
    from setpoint.config.composition import compose
    from setpoint.config.draft.walk import to_plain
    from setpoint.config.files.read import parse
    from setpoint.config.files.write import write_json
    from setpoint.config.layers.editor import Editor
    from setpoint.config.layers.flags import put_flags, read_flags
    from setpoint.config.record.record import differences, fingerprint
    from setpoint.config.resolving.resolve import resolve
    from setpoint.config.values.origin import FILE, Origin

    values, data = tree.file_values(groups), tree.merged(groups)
    flags = [f"--{path}={value}" for path, value in tree.flag_values(groups)]

    def read(values: Any, flags: list[str]) -> Any:
        editor = Editor(module.Tree())
        editor.merge(values, Origin(FILE, "values.toml"))
        put_flags(editor, read_flags(module.Tree, flags))
        return resolve(editor.root, problems=editor.problems)

    config = read(values, flags)
    assert to_plain(config) == tree.expected(groups)
    paths = [(tree.prefixed(path, groups).split("."), value) for path, value in tree.FORK]

    def fork() -> Any:
        draft = config.evolve()
        for (*above, name), value in paths:
            section: Any = draft
            for part in above:
                section = getattr(section, part)
            setattr(section, name, value)
        return resolve(draft)

    def fork_and_diff() -> Any:
        found = differences(config, fork())
        assert len(found) == len(paths)
        return found

    def serialize() -> Any:
        return read(parse(write_json(to_plain(config)), "json", "config.json").data, [])

    assert serialize() == config
    assert (
        compose(module.Tree, str(folder / "values" / "values_setpoint.toml"), flags=flags).resolve()
        == config
    )
    return {
        "layers": lambda: read(values, flags),
        "validate": lambda: read(data, []),
        "fork": fork,
        "fork + diff": fork_and_diff,
        "fingerprint": lambda: fingerprint(fork()),
        "serialize": serialize,
    }


def pydantic(module: Any, folder: Path, groups: int) -> Steps:
    """pydantic, and for the layers pydantic-settings.

    It has no diff: the two dumps are compared. It has no fingerprint either: the digest is of its
    dump as JSON with sorted keys.

    Arguments:
        module: the tree's.
        folder: where the files are.
        groups: see `tree.setpoint_module`.

    Returns:
        the steps.
    """
    from pydantic_settings import BaseSettings, CliApp, CliSettingsSource, SettingsConfigDict

    values, data = tree.file_values(groups), tree.merged(groups)
    flags = [f"--{path}={v!s}" for path, v in tree.flag_values(groups)]

    class Settings(BaseSettings, module.Tree):
        model_config = SettingsConfigDict(extra="forbid", frozen=True, env_prefix="PEER__")

    # A parser is made once, and used for every call.
    source = CliSettingsSource(Settings, cli_parse_args=False)
    model = module.Tree
    config = model.model_validate(data)
    assert config.model_dump(mode="json") == tree.expected(groups)

    def layers() -> Any:
        return CliApp.run(Settings, cli_args=flags, cli_settings_source=source, **values)

    assert layers().model_dump(mode="json") == tree.expected(groups)
    paths = [(tree.prefixed(path, groups), value) for path, value in tree.FORK]

    def fork() -> Any:
        changed = config.model_dump()
        for path, value in paths:
            tree.put(changed, path, value)
        return model.model_validate(changed)

    def differing(left: Any, right: Any, path: tuple[str, ...]) -> list[Any]:
        found: list[Any] = []
        for key, value in left.items():
            other = right[key]
            if isinstance(value, dict):
                found += differing(value, other, (*path, key))
            elif value != other:
                found.append((".".join((*path, key)), value, other))
        return found

    def fork_and_diff() -> Any:
        found = differing(config.model_dump(), fork().model_dump(), ())
        assert len(found) == len(paths)
        return found

    def fingerprint() -> str:
        text = json.dumps(config.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    return {
        "layers": layers,
        "validate": lambda: model.model_validate(data),
        "fork": fork,
        "fork + diff": fork_and_diff,
        "fingerprint": fingerprint,
        "serialize": lambda: model.model_validate_json(config.model_dump_json()),
    }


def msgspec(module: Any, folder: Path, groups: int) -> Steps:
    """msgspec: a fork is `structs.replace`, which checks nothing, and a conversion of the whole.

    Arguments:
        module: the tree's.
        folder: where the files are.
        groups: see `tree.setpoint_module`.

    Returns:
        the steps.
    """
    import msgspec

    data = tree.merged(groups)
    config = msgspec.convert(data, module.Tree)
    paths = [(tree.prefixed(path, groups), value) for path, value in tree.FORK]

    def replaced(struct: Any, path: str, value: Any) -> Any:
        name, _, rest = path.partition(".")
        inner = replaced(getattr(struct, name), rest, value) if rest else value
        return msgspec.structs.replace(struct, **{name: inner})

    def fork() -> Any:
        changed = config
        for path, value in paths:
            changed = replaced(changed, path, value)
        return msgspec.convert(msgspec.to_builtins(changed), module.Tree)

    def fingerprint() -> str:
        text = msgspec.json.encode(config, order="sorted")
        return hashlib.sha256(text).hexdigest()

    return {
        "validate": lambda: msgspec.convert(data, module.Tree),
        "fork": fork,
        "fingerprint": fingerprint,
        "serialize": lambda: msgspec.json.decode(msgspec.json.encode(config), type=module.Tree),
    }


def chz(module: Any, folder: Path, groups: int) -> Steps:
    """chz: a fork is `chz.replace`, which runs the validators of the classes on its way.

    Arguments:
        module: the tree's.
        folder: where the files are.
        groups: see `tree.setpoint_module`.

    Returns:
        the steps.
    """
    import sys

    import chz as library

    sys.path.insert(0, str(folder))
    import side_chz as side

    sys.path.remove(str(folder))
    flat = side.flat(tree.file_values(groups))
    flags = [f"{path}={value}" for path, value in tree.flag_values(groups)]

    def layers() -> Any:
        return library.Blueprint(module.Tree).apply(flat).make_from_argv(flags)

    config = layers()
    paths = [(tree.prefixed(path, groups), value) for path, value in tree.FORK]

    def replaced(value: Any, path: str, new: Any) -> Any:
        name, _, rest = path.partition(".")
        inner = replaced(getattr(value, name), rest, new) if rest else new
        return library.replace(value, **{name: inner})

    def fork() -> Any:
        changed = config
        for path, value in paths:
            changed = replaced(changed, path, value)
        return changed

    return {"layers": layers, "fork": fork}


def omegaconf(module: Any, folder: Path, groups: int) -> Steps:
    """OmegaConf, the engine of Hydra: structured configs merged with plain data and a dot list.

    Arguments:
        module: the tree's.
        folder: where the files are.
        groups: see `tree.setpoint_module`.

    Returns:
        the steps.
    """
    from omegaconf import OmegaConf

    base = OmegaConf.structured(module.Tree)
    values, data = tree.file_values(groups), tree.merged(groups)
    flags = [f"{path}={value}" for path, value in tree.flag_values(groups)]
    config = OmegaConf.merge(base, data)
    paths = [f"{tree.prefixed(path, groups)}={value}" for path, value in tree.FORK]
    return {
        "layers": lambda: OmegaConf.merge(base, values, OmegaConf.from_dotlist(flags)),
        "validate": lambda: OmegaConf.merge(base, data),
        "fork": lambda: OmegaConf.merge(config, OmegaConf.from_dotlist(paths)),
        "serialize": lambda: OmegaConf.merge(base, OmegaConf.create(OmegaConf.to_yaml(config))),
    }


def fiddle(module: Any, folder: Path, groups: int) -> Steps:
    """Fiddle: a fork is a deep copy that is built; its own graph diff compares the two.

    Arguments:
        module: the tree's.
        folder: where the files are.
        groups: see `tree.setpoint_module`.

    Returns:
        the steps.
    """
    import copy
    from dataclasses import fields, is_dataclass

    import fiddle as library
    from fiddle import diffing
    from fiddle.experimental import serialization

    def graph(value: Any) -> Any:
        if not is_dataclass(value):
            return value
        inside = {one.name: graph(getattr(value, one.name)) for one in fields(value)}
        return library.Config(type(value), **inside)

    config = graph(module.Tree())
    paths = [(tree.prefixed(path, groups).split("."), value) for path, value in tree.FORK]

    def forked() -> Any:
        changed = copy.deepcopy(config)
        for (*above, name), value in paths:
            section = changed
            for part in above:
                section = getattr(section, part)
            setattr(section, name, value)
        return changed

    def serialize() -> Any:
        return library.build(serialization.load_json(serialization.dump_json(config)))

    return {
        "fork": lambda: library.build(forked()),
        "fork + diff": lambda: diffing.build_diff(config, forked()),
        "serialize": serialize,
    }


SIDES: dict[str, Callable[[Any, Path, int], Steps]] = {
    "setpoint": setpoint,
    "pydantic": pydantic,
    "msgspec": msgspec,
    "chz": chz,
    "omegaconf": omegaconf,
    "fiddle": fiddle,
}
