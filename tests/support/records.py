"""Records as a version with fewer fields wrote them."""

import json
from pathlib import Path
from typing import Any

from setpoint.config.record.record import recorded_fingerprint


def remove_field(folder: Path, key: str) -> str:
    """Remove a field from a record; return the new fingerprint."""
    config, origins = (
        json.loads((folder / name).read_text()) for name in ("config.json", "origins.json")
    )
    *sections, name = key.split(".")
    holder: Any = config
    for section in sections:
        holder = holder[int(section) if isinstance(holder, list) else section]
    del holder[name]
    for recorded in [path for path in origins if path == key or path.startswith(f"{key}.")]:
        del origins[recorded]
    config["setpoint"]["fingerprint"] = recorded_fingerprint(origins)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "origins.json").write_text(json.dumps(origins))
    return config["setpoint"]["fingerprint"]
