from __future__ import annotations

import json

from setpoint.data.document import Document


def test_record_has_name_size_and_the_known_sha256_of_abc() -> None:
    record = Document("t/a", b"abc").record()
    assert record == (
        "t/a",
        3,
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    )
    assert json.loads(json.dumps(record)) == list(record)
