"""ml_collections: a Python file makes the ConfigDict, absl flags set values in it."""

import sys
from typing import Any

from absl import app
from ml_collections import config_flags

SHOW: list[Any] = [lambda config: print("read")]


def main() -> int:
    """Load."""
    file, *words = sys.argv[1:]
    holder = config_flags.DEFINE_config_file("config")

    def run(_: list[str]) -> None:
        SHOW[0](holder.value)

    sys.argv = ["start", f"--config={file}", *words]
    app.run(run)
    return 0


def plain(config: Any) -> dict[str, Any]:
    """Nested plain data."""
    return config.to_dict()
