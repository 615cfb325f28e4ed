from __future__ import annotations

import hashlib
import json
import re

from .conftest import CommandLine


def test_one_line_of_hexadecimal_digits(cli: CommandLine) -> None:
    assert re.fullmatch(r"[0-9a-f]{64}\n", cli.ok("fingerprint small.toml"))


def test_only_what_is_learned_counts(cli: CommandLine) -> None:
    plain = cli.ok("fingerprint small.toml")
    for same in ("--name other", "--workspace elsewhere", "--evaluation null", "--world-size 2"):
        assert cli.ok(f"fingerprint small.toml {same}") == plain
    for other in ("--seed 2", "--optimizer.lr 0.5", "--user.note x"):
        assert cli.ok(f"fingerprint small.toml {other}") != plain


def test_for_machines(cli: CommandLine) -> None:
    found = json.loads(cli.ok("fingerprint small.toml --json"))
    assert found["fingerprint"] == cli.ok("fingerprint small.toml").strip()
    assert found["identity"]["optimizer.lr"] == 0.01
    text = json.dumps(found["identity"], sort_keys=True, separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest() == found["fingerprint"]
