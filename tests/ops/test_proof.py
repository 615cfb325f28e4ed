"""The chain of a run: whatever is changed in what it seals is found, and nothing else is."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from setpoint.checkpoint.manifest import Manifest
from setpoint.ops.chain import Chain
from setpoint.ops.proof import CHAIN, HEAD, Seal, link_hash, verify_chain

MANIFEST = "manifest.json"


class Record:
    """A run directory whose rows, links and checkpoints are written as a session does."""

    def __init__(self, path: Path) -> None:
        self.path, self.metrics = path, path / "metrics.jsonl"
        self.log = path / "events.jsonl"
        (path / "checkpoints").mkdir(parents=True)
        self.chain = Chain(path, self.metrics, self.log)
        self.step = 0
        self.kept: dict[int, int] = {}
        self.chain.open(step=0, fingerprint="f")

    def row(self) -> None:
        self.step += 1
        with self.metrics.open("a") as file:
            file.write(
                json.dumps({"kind": "train", "step": self.step, "loss": 1 / self.step}) + "\n"
            )

    def event(self) -> None:
        with self.log.open("a") as file:
            file.write(
                json.dumps({"event": "save", "step": self.step, "n": random.random()}) + "\n"
            )

    def save(self) -> None:
        text = Manifest(self.step, None, {}).render()
        self.chain.seal((self.step, text))
        self.ends_anywhere()
        folder = self.path / f"checkpoints/step-{self.step:08d}"
        folder.mkdir(exist_ok=True)
        (folder / HEAD).write_text(str(self.chain.head))
        (folder / MANIFEST).write_bytes(text)
        self.kept[self.step] = self.metrics.stat().st_size if self.metrics.exists() else 0

    def resume(self) -> None:
        """A process that was killed is followed by another, at a checkpoint or the start."""
        self.step = random.choice([0, *self.kept])
        offset = self.kept.get(self.step, 0)
        self.chain = Chain(self.path, self.metrics, self.log)
        self.chain.cut(offset)
        self.ends_anywhere()
        if self.metrics.exists():
            with self.metrics.open("rb+") as file:
                file.truncate(offset)
        for step in [step for step in self.kept if step > self.step]:
            (self.path / f"checkpoints/step-{step:08d}").rename(
                self.path / f"checkpoints/aside-{step}-{random.random()}"
            )
            del self.kept[step]
        self.chain.open(step=self.step, fingerprint="f")

    def ends_anywhere(self) -> None:
        assert not verify_chain(self.path).problems


def make(path: Path, seed: int) -> Record:
    random.seed(seed)
    record = Record(path)
    actions: list[Callable[[], None]] = [record.row, record.row, record.row, record.save]
    actions.append(record.event)
    for _ in range(random.randrange(10, 40)):
        random.choice([*actions, record.chain.seal, record.resume])()
        record.ends_anywhere()
    record.row()
    record.row()
    record.event()
    record.save()
    with record.log.open("a") as file:
        file.write('{"event": "end"}\n')
    record.chain.seal()
    return record


def edits(name: str, lines: list[bytes]) -> dict[str, list[bytes]]:
    """Every kind of edit of one line, at a place that is drawn; a name to the lines after it."""
    place = random.randrange(len(lines))
    line = lines[place]
    byte = random.randrange(len(line))
    changed = line[:byte] + bytes([line[byte] ^ 1]) + line[byte + 1 :]
    before, after = lines[:place], lines[place + 1 :]
    found = {
        "changed": [*before, changed, *after],
        "removed": [*before, *after],
        "inserted": [*before, line.replace(b"1", b"2"), line, *after],
        "twice": [*before, line, line, *after],
    }
    other = random.randrange(len(lines))
    if lines[other] != line:
        moved = list(lines)
        moved[place], moved[other] = moved[other], moved[place]
        found["moved"] = moved
    return {f"{name} {what}": after for what, after in found.items()}


@pytest.mark.parametrize("seed", range(12))
def test_any_edit_of_a_sealed_record_is_found(tmp_path: Path, seed: int) -> None:
    record = make(tmp_path / "run", seed)
    head = record.chain.head
    whole = verify_chain(record.path)
    assert (whole.problems, whole.notes, whole.head) == ([], [], head)
    assert whole.checkpoints == len(record.kept) > 0
    for path in (record.metrics, record.log, record.path / CHAIN):
        text = path.read_bytes()
        lines = text.split(b"\n")[:-1]
        assert len(lines) == {record.metrics: whole.rows, record.log: whole.events}.get(
            path, len(lines)
        )
        for name, after in edits(path.name, lines).items():
            path.write_bytes(b"".join(line + b"\n" for line in after))
            found = verify_chain(record.path)
            if path == record.log and after[: len(lines)] == lines:  # added after what is sealed
                assert found.notes
                continue
            assert found.problems or found.head != head, name
            if path.name != CHAIN:
                assert found.problems, name
        path.write_bytes(text)
    step = random.choice(list(record.kept))
    manifest = record.path / f"checkpoints/step-{step:08d}" / MANIFEST
    manifest.write_bytes(Manifest(step, 0.5, {}).render())
    (problem,) = verify_chain(record.path).problems
    assert "its manifest differs from the sealed one" in problem


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """Five rows that are sealed, and two that are not."""
    record = Record(tmp_path / "run")
    for _ in range(5):
        record.row()
    record.save()
    record.row()
    record.row()
    return record


def rewritten(record: Record, change: Callable[[list[str]], list[str]]) -> Seal:
    lines = record.metrics.read_text().splitlines()
    record.metrics.write_text("".join(f"{line}\n" for line in change(lines)))
    return verify_chain(record.path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda x: [x[0], x[1].replace("0.5", "0.4"), *x[2:]],
            "metrics.jsonl:2: the row (train, step 2) was changed: it differs from the sealed one",
        ),
        (
            lambda x: [x[0], *x[2:]],
            "metrics.jsonl:2: a row that was sealed is missing, before this one (train, step 3)",
        ),
        (
            lambda x: [*x[:3], x[0], x[1], *x[3:]],
            "metrics.jsonl:4 to 5: 2 rows (train, step 1) were inserted",
        ),
        (
            lambda x: [x[0], x[2], x[1], *x[3:]],
            "metrics.jsonl:2 to 3: rows were moved: their order differs from the sealed order",
        ),
        (lambda x: x[:3], "metrics.jsonl:4: 2 rows that were sealed are missing, at the end"),
        (
            lambda x: [x[0].upper(), x[1].upper(), *x[2:]],
            "metrics.jsonl:1 to 2: rows were changed: 2 of them are where 2 others were sealed",
        ),
    ],
)
def test_the_row_is_named(
    record: Record, change: Callable[[list[str]], list[str]], said: str
) -> None:
    assert rewritten(record, change).problems == [said]


def test_what_is_not_sealed_is_said(record: Record) -> None:
    assert verify_chain(record.path).notes == ["not sealed: 2 rows after the last link"]
    assert not rewritten(record, lambda lines: [*lines[:5], "{}", lines[6]]).problems
    (record.path / CHAIN).unlink()
    found = verify_chain(record.path)
    # The checkpoint knows that there was one.
    assert len(found.problems) == 1 and "links are missing" in found.problems[0]
    (record.path / "checkpoints/step-00000005" / HEAD).unlink()
    found = verify_chain(record.path)
    assert not found.problems and found.notes[0].startswith("not sealed: there is no chain.jsonl")


def test_a_run_that_was_begun_without_a_chain_gets_one(record: Record) -> None:
    (record.path / CHAIN).unlink()
    (record.path / "checkpoints/step-00000005" / HEAD).unlink()
    record.chain = Chain(record.path, record.metrics, record.log)
    record.chain.open(step=7, fingerprint="f")
    record.row()
    record.chain.seal()
    found = verify_chain(record.path)
    assert (found.rows, found.problems) == (1, [])
    assert found.notes == [
        "not sealed: 7 rows from before the chain began", "not sealed: step-00000005",
    ]  # fmt: skip
    assert not rewritten(record, lambda lines: ["{}", *lines[1:]]).problems
    assert rewritten(record, lambda lines: [*lines[:-1], "{}"]).problems


def test_the_event_is_named(record: Record) -> None:
    record.event()
    record.chain.seal()
    record.event()
    found = verify_chain(record.path)
    assert (found.events, found.problems) == (1, [])
    assert found.notes == ["not sealed: an event after the last link"]
    record.log.write_text(record.log.read_text().replace("save", "skip", 1))
    assert verify_chain(record.path).problems == [
        "events.jsonl:1: the event (skip, step 7) was changed: it differs from the sealed one"
    ]
    record.log.unlink()
    assert verify_chain(record.path).problems == [
        "events.jsonl:1: an event that was sealed is missing, at the end"
    ]


def test_rows_that_are_gone_when_a_session_begins_are_not_taken_for_dropped_ones(
    record: Record,
) -> None:
    rewritten(record, lambda lines: lines[:4])
    record.chain = Chain(record.path, record.metrics, record.log)
    record.chain.cut(record.metrics.stat().st_size)
    record.chain.open(step=5, fingerprint="f")
    (problem,) = verify_chain(record.path).problems
    assert "1 rows that were sealed were missing when a session started" in problem


def test_a_hostile_chain_takes_no_memory(record: Record) -> None:
    link = json.loads((record.path / CHAIN).read_text().splitlines()[0])
    for change in ({"events": {"before": 10**12}}, {"events": 1}, {"before": 10**12},
                   {"before": -1}, {"rows": 3}, {"cut": "x"}, {"total": "x"}):  # fmt: skip
        hostile = {**link, **change}
        hostile["hash"] = link_hash(hostile)
        (record.path / CHAIN).write_text(json.dumps(hostile) + "\n")
        assert "chain.jsonl:1: " in verify_chain(record.path).problems[0]


@pytest.mark.parametrize("damage", [b"{}\n", b"nonsense\n", b'{"hash": 1}\n', b"[]\n", b"\xff\n"])
def test_a_damaged_end_of_the_chain_is_said_and_a_run_goes_on(
    record: Record, damage: bytes
) -> None:
    with (record.path / CHAIN).open("ab") as file:
        file.write(damage)
    record.chain = Chain(record.path, record.metrics, record.log)
    record.chain.open(step=5, fingerprint="f")
    record.row()
    record.chain.seal()
    assert "chain.jsonl:3: " in verify_chain(record.path).problems[0]
    assert Chain(record.path, record.metrics, record.log).head == record.chain.head


def test_a_torn_link_is_dropped(record: Record) -> None:
    with (record.path / CHAIN).open("ab") as file:
        file.write(b'{"link": 3, "ti')
    assert not verify_chain(record.path).problems
    record.chain = Chain(record.path, record.metrics, record.log)
    record.chain.seal()
    found = verify_chain(record.path)
    assert (found.rows, found.problems, found.notes) == (7, [], [])
