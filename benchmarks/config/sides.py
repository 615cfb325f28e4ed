"""Each side as people start it: a file of values below, a command line above.

`python start.py SIDE FILE [FLAGS]`. With READ in the environment it prints all that it has read.
Each side imports only what it needs itself.
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from typing import Any


def shown(config: Any, plain: Callable[[Any], Any]) -> None:
    print(json.dumps(plain(config)) if "READ" in os.environ else "read")


def setpoint(file: str, words: list[str]) -> None:
    from setpoint.cli.script import run

    def show(config: Any) -> None:
        from setpoint.config.draft.walk import to_plain

        shown(config, to_plain)

    run(import_module("tree_setpoint").Tree, show, [file, *words])


def pydantic(file: str, words: list[str]) -> None:
    from pydantic_settings import (
        BaseSettings,
        CliApp,
        CliSettingsSource,
        SettingsConfigDict,
        TomlConfigSettingsSource,
    )

    class Settings(BaseSettings, import_module("tree_pydantic").Tree):
        model_config = SettingsConfigDict(extra="forbid", frozen=True, env_prefix="PEER__")

        @classmethod
        def settings_customise_sources(cls, settings_cls, init_settings, *_, **__):
            source = TomlConfigSettingsSource(settings_cls, toml_file=file)
            return CliSettingsSource(settings_cls, cli_parse_args=False), init_settings, source

    shown(CliApp.run(Settings, cli_args=words), lambda config: config.model_dump(mode="json"))


def tyro(file: str, words: list[str]) -> None:
    """On the structs of msgspec, its fastest form: the file gives the default, tyro the flags."""
    import msgspec
    import tyro as library

    cls = import_module("tree_msgspec").Tree
    with open(file, "rb") as stream:
        default = msgspec.toml.decode(stream.read(), type=cls)
    config = library.cli(library.conf.AvoidSubcommands[cls], default=default, args=words)
    # tyro calls constructors, which check nothing.
    shown(msgspec.convert(msgspec.to_builtins(config), cls), msgspec.to_builtins)


def hydra(file: str, words: list[str]) -> None:
    """Structured configs in Hydra's store, a YAML file, and config groups for the unions."""
    import hydra as library
    import tree_omegaconf as tree
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    store = ConfigStore.instance()
    store.store(name="base", node=tree.Tree)
    for number in (1, 5, 9):
        for tag in ("plain", "scaled", "random"):
            cls = getattr(tree, f"{tag.capitalize()}{number}")
            store.store(group=f"s{number}/item", name=tag, node=cls)
    folder, name = os.path.split(os.path.abspath(file))
    quiet = ["hydra.run.dir=.", "hydra.output_subdir=null", "hydra/job_logging=none",
             "hydra/hydra_logging=none"]  # fmt: skip
    sys.argv = ["start", *words, *([] if words == ["--help"] else quiet)]

    @library.main(version_base="1.3", config_path=folder, config_name=name.removesuffix(".yaml"))
    def run(config: Any) -> None:
        shown(config, lambda it: OmegaConf.to_container(it, resolve=True, throw_on_missing=True))

    run()


def chz(file: str, words: list[str]) -> None:
    """It reads no files: values are applied by dotted path, variants by their classes."""
    import chz as library

    tree = import_module("tree_chz")
    with open(file, "rb") as stream:
        blueprint = library.Blueprint(tree.Tree).apply(chz_values(tree, tomllib.load(stream)))
    try:
        shown(blueprint.make_from_argv(words, allow_hyphens=True), _chz_plain)
    except library.blueprint.EntrypointHelpException as manual:
        print(manual)


def chz_values(tree: Any, data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in data.items():
        path = f"{prefix}{key}"
        if not isinstance(value, dict):
            values[path] = tuple(value) if isinstance(value, list) else value
            continue
        if "type" in value:
            value = dict(value)
            values[path] = getattr(tree, f"{value.pop('type').capitalize()}{prefix[1:-1]}")
        values.update(chz_values(tree, value, f"{path}."))
    return values


def _chz_plain(config: Any) -> Any:
    import chz as library

    if not library.is_chz(config):
        return config
    plain = {name: _chz_plain(getattr(config, name)) for name in library.chz_fields(config)}
    name = type(config).__name__.lower()
    tags = {"type": name.rstrip("159")} if name.startswith(("plain", "scaled", "random")) else {}
    return {**tags, **plain}


SIDES = {
    "setpoint": setpoint, "pydantic-settings": pydantic, "tyro": tyro, "Hydra": hydra, "chz": chz,
}  # fmt: skip

if __name__ == "__main__":
    SIDES[sys.argv[1]](sys.argv[2], sys.argv[3:])
