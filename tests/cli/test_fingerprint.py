"""`setpoint fingerprint`."""

import hashlib
import json

from .conftest import CommandLine


def test_experts_are_the_same_on_any_ranks_by_a_load_of_its_own(cli: CommandLine) -> None:
    """Else it follows from the micro-batch, and that from the ranks."""
    moe = "fingerprint tiny --model.moe '{experts=4, top_k=2}' --world-size"
    assert cli.ok(f"{moe} 1") != cli.ok(f"{moe} 2")
    fixed = "--model.moe.load_sequences 1"
    assert cli.ok(f"{moe} 1 {fixed}") == cli.ok(f"{moe} 2 {fixed}")


def test_the_hash_is_that_of_the_json_form(cli: CommandLine) -> None:
    found = json.loads(cli.ok("fingerprint small.toml --json"))
    assert found["fingerprint"] == cli.ok("fingerprint small.toml").strip()
    assert found["identity"]["optimizer.lr"] == 0.01
    text = json.dumps(found["identity"], sort_keys=True, separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest() == found["fingerprint"]


def test_what_makes_two_differ_is_explained(cli: CommandLine) -> None:
    flags = "--seed 2 --name other --optimizer.lr 0.02 --duration '12 steps'"
    answer = cli(f"fingerprint small.toml own:small {flags} --explain")
    assert answer.status == 1
    shown = answer.out.splitlines()[2:]
    paths = [line.partition("  (")[0] for line in shown if not line.startswith(" ")]
    assert {"seed", "optimizer.lr", "optimizer.weight_decay", "data.held_out"} <= set(paths)
    assert not {"name", "duration"} & set(paths)
    assert "  own:small   0.02  command line --optimizer.lr" in shown
    assert any(line.startswith("  small.toml  0.01  small.toml:") for line in shown)


def test_for_machines_with_two_sources(cli: CommandLine) -> None:
    answer = cli("fingerprint small.toml small.toml --seed 2 --explain --json")
    found = json.loads(answer.out)
    assert (answer.status, found["equal"], len(set(found["fingerprints"]))) == (1, False, 2)
    (difference,) = found["differences"]
    assert (difference["path"], difference["left"], difference["right"]) == ("seed", 1234, 2)
    equal = json.loads(cli.ok("fingerprint small.toml small.toml --explain --json"))
    assert (equal["equal"], equal["differences"]) == (True, [])
