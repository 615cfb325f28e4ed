"""pydantic-settings: a TOML file and a command line over one model; warm, the model alone."""

import sys
from typing import Any

import tree_pydantic as tree
from pydantic_settings import (
    BaseSettings,
    CliApp,
    CliSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)


class Settings(BaseSettings, tree.Tree):
    """The tree with sources."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, env_prefix="PEER__")

    @classmethod
    def settings_customise_sources(cls, settings_cls, init_settings, *_, **__):
        source = TomlConfigSettingsSource(settings_cls, toml_file=FILE[0])
        return CliSettingsSource(settings_cls, cli_parse_args=False), init_settings, source


FILE = [""]


SHOW: list[Any] = [lambda config: print("read")]


def load(file: str, words: list[str]) -> Any:
    """A file below, a command line on top."""
    FILE[0] = file
    return CliApp.run(Settings, cli_args=words)


def plain(config: Any) -> dict[str, Any]:
    """Nested plain data."""
    return config.model_dump(mode="json")


def main() -> int:
    """Load, or print the help."""
    file, *words = sys.argv[1:]
    SHOW[0](load(file, words))
    return 0
