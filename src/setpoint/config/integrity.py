"""Whether a record is as it was written: its two files agree, and have the stated fingerprint."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

from .errors import SetpointError
from .fingerprint import canonical_json, sha256
from .role import IDENTITY

# Marks an identity value that is no part of the fingerprint: its field was added later, and holds
# what every run had before.
AS_BEFORE = "as_before"
# Paths and values that stand in the fingerprint for a value whose field was renamed.
FORMERLY = "formerly"


def check_integrity(
    folder: str,
    values: Mapping[str, Any],
    header: Mapping[str, Any],
    origins: Mapping[str, Mapping[str, Any]],
) -> None:
    """Refuse a record that was changed after it was written.

    Nothing of today's code takes part: what was recorded is compared with what was recorded.

    Arguments:
        folder: where it lies, for errors.
        values: of `config.json`, without the header.
        header: of `config.json`.
        origins: of `origins.json`.

    Raises:
        SetpointError: naming the first value that is not the same in both files, or both
            fingerprints.
    """
    here = dict(_leaves(values, "", origins))
    for key in [*origins, *here]:
        one = _shown(here[key]) if key in here else "nothing"
        other = _shown(origins[key]["value"]) if key in origins else "nothing"
        if one != other:
            raise _changed(folder, f"{key} is {one} in config.json and {other} in origins.json")
    stated, found = header.get("fingerprint"), recorded_fingerprint(origins)
    if stated != found:
        raise _changed(folder, f"it states the fingerprint {stated}, and its values have {found}")


def recorded_fingerprint(origins: Mapping[str, Mapping[str, Any]]) -> str:
    """The fingerprint of the values in `origins.json`.

    Arguments:
        origins: the parsed file.

    Returns:
        64 hexadecimal digits.
    """
    values: dict[str, Any] = {}
    for key, entry in origins.items():
        if entry["role"] == IDENTITY.name and not entry.get(AS_BEFORE):
            values.update(entry.get(FORMERLY) or {key: entry["value"]})
    return sha256(canonical_json(values).encode("ascii"))


def _leaves(value: Any, key: str, origins: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The values of `config.json` by the keys that `origins.json` has for them."""
    if key and key in origins:
        yield key, value
    elif isinstance(value, dict | list):
        inside = cast("dict[str, Any] | list[Any]", value)
        for name, item in inside.items() if isinstance(inside, dict) else enumerate(inside):
            yield from _leaves(item, f"{key}.{name}" if key else str(name), origins)
    else:
        yield key, value


def _shown(value: Any) -> str:
    # As JSON, true is not 1 and 1 is not 1.0.
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _changed(folder: str, what: str) -> SetpointError:
    return SetpointError(
        f"{folder}: the record was changed after it was written: {what}. A record says what a run "
        f"was; to start from changed values, give {folder}/config.json as a file"
    )
