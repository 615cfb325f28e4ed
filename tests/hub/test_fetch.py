"""Names of models on the Hub."""

from typing import Any

import pytest

from setpoint.hub.fetch import split_hub_id


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("org/name", ("org/name", None)),
        ("a/b@main", ("a/b", "main")),
        ("org/na.me-2@refs/pr/3", ("org/na.me-2", "refs/pr/3")),
        ("name", None),
        ("a/b/c", None),
        ("../name", None),
        ("./name", None),
        ("org/.name", None),
        ("~/name", None),
        ("/org/name", None),
        ("org/name@", None),
        ("org/na me", None),
        ("", None),
    ],
)
def test_names_and_revisions_are_split(text: str, parts: Any) -> None:
    assert split_hub_id(text) == parts
