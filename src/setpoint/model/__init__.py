"""The model: a decoder-only transformer, its configuration, initialization and size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from setpoint.model.pretrained.load import load_pretrained
    from setpoint.model.pretrained.read_config import config_from_pretrained
    from setpoint.model.pretrained.save import save_pretrained

__all__ = ["config_from_pretrained", "load_pretrained", "save_pretrained"]

_WHERE = {
    "config_from_pretrained": "read_config",
    "load_pretrained": "load",
    "save_pretrained": "save",
}


def __getattr__(name: str) -> Any:
    # Imported when they are used: two of them need torch, which takes a second.
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"setpoint.model.pretrained.{_WHERE[name]}"), name)
