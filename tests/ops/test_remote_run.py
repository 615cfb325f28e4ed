"""Checkpoints at a URL: whole or absent, whatever the service does."""

import hashlib
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any, ClassVar

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

from setpoint.checkpoint.folder import Retention
from setpoint.checkpoint.manifest import DamagedCheckpoint, read_manifest
from setpoint.checkpoint.places import checkpoint_to_load, split_url
from setpoint.checkpoint.store import CheckpointStore
from setpoint.files import atomic
from setpoint.ops import remote_folder as module
from setpoint.ops.fetching import fetched
from setpoint.ops.remote_folder import RemoteError
from setpoint.ops.remote_run import RemoteRun
from setpoint.ops.uploads import Uploads, read_pending

from ..support.snapshots import refused

URL = "faulty://bucket/runs/run"


class Faulty(MemoryFileSystem):
    """Files in memory, of which each request may fail.

    Arguments:
        at: the number of the request that fails, from 0; None for none.
        lags: whether listings show what there was at the listing before.
        cuts: whether what is written lacks its last byte.
    """

    protocol = "faulty"
    cachable = False
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    requests = 0
    at: int | None = None
    lags = False
    cuts = False
    is_out = False
    seen: ClassVar[dict[str, list[Any]]] = {}

    @classmethod
    def reset(cls) -> None:
        cls.store.clear()
        cls.pseudo_dirs[:] = [""]
        cls.seen.clear()
        cls.requests, cls.at = 0, None
        cls.lags = cls.cuts = cls.is_out = False

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(path.replace("faulty://", "memory://"))

    def _request(self) -> None:
        number = Faulty.requests
        Faulty.requests += 1
        if Faulty.is_out or number == Faulty.at:
            raise ConnectionError("the service does not answer")

    def info(self, path: str, **options: Any) -> Any:
        self._request()
        return super().info(path, **options)

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        self._request()
        now = super().ls(path, detail=detail, **options)
        before = Faulty.seen.get(path, [])
        Faulty.seen[path] = now
        return before if Faulty.lags else now

    def cat_file(self, path: str, *arguments: Any, **options: Any) -> bytes:
        self._request()
        return super().cat_file(path, *arguments, **options)

    def pipe_file(self, path: str, value: bytes, *arguments: Any, **options: Any) -> Any:
        self._request()
        return super().pipe_file(path, value[:-1] if Faulty.cuts else value)

    def rm_file(self, path: str) -> None:
        self._request()
        super().rm_file(path)

    def _open(self, path: str, mode: str = "rb", *arguments: Any, **options: Any) -> Any:
        self._request()
        file = super()._open(path, mode, *arguments, **options)
        if mode == "wb":
            real = file.write
            file.write = lambda data: real(data[:-1] if Faulty.cuts else data)
        return file


@pytest.fixture(autouse=True)
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Faulty]]:
    fsspec.register_implementation("faulty", Faulty, clobber=True)
    monkeypatch.setattr(module, "PAUSE", 0.001)
    Faulty.reset()
    yield Faulty
    Faulty.reset()


def save(root: Path, *steps: int, metric: Callable[[int], float] = float) -> CheckpointStore:
    store = CheckpointStore(root, keep=None)
    for step in steps:
        store.save(step, {"model": {"w": torch.full((64,), float(step))}}, {}, metric(step))
    return store


def send(run: RemoteRun, root: Path, step: int, **options: Any) -> Any:
    directory = root / f"step-{step:08d}"
    return run.send(directory, read_manifest(directory), **options)


def wholes(run: RemoteRun) -> list[int]:
    return [found.step for found in run.complete_checkpoints()]


def test_round_trip(tmp_path: Path) -> None:
    save(tmp_path / "a", 1, 2)
    record = tmp_path / "metrics.jsonl"
    record.write_text("{}\n")
    run = RemoteRun(URL)
    for step in (1, 2):
        sent = send(run, tmp_path / "a", step, record=[record], best=1)
        assert sent.files == 3 if step == 1 else 2
        assert sent.by == "digest"
    assert send(run, tmp_path / "a", 2) == (0, 0, "none")
    assert (run.steps(), wholes(run), run.pointer("latest"), run.pointer("best")) == (
        [1, 2], [2, 1], 2, 1,
    )  # fmt: skip
    for name, step in (("", 2), ("/checkpoints/best", 1), ("/checkpoints/step-00000001", 1)):
        path = fetched(URL + name, tmp_path / "b")
        assert path == tmp_path / "b" / f"step-{step:08d}"
        original = tmp_path / "a" / path.name
        assert {each.name: each.read_bytes() for each in path.iterdir()} == {
            each.name: each.read_bytes() for each in original.iterdir()
        }
    requests = Faulty.requests
    fetched(f"{URL}/checkpoints/step-00000001", tmp_path / "b")  # is there
    assert Faulty.requests == requests + 1


def test_urls_of_runs_and_checkpoints() -> None:
    assert split_url("s3://b/run/") == split_url("s3://b/run/checkpoints") == ("s3://b/run", None)
    assert split_url("s3://b/run/checkpoints/step-00000100/") == ("s3://b/run", 100)
    assert split_url("s3://b/run/checkpoints/best") == ("s3://b/run", "best")
    with refused():
        checkpoint_to_load("s3://bucket/runs/run")


def test_a_failure_at_any_request_leaves_complete_checkpoints_and_is_repeated(
    tmp_path: Path,
) -> None:
    """The next session goes on where one was cut off, at each request of an upload."""
    root = tmp_path / "a"
    save(root, 1, 2)
    send(RemoteRun(URL), root, 1, best=1)
    start = {name: file.getvalue() for name, file in Faulty.store.items()}
    Faulty.requests = 0
    send(RemoteRun(URL), root, 2, best=1)
    count = Faulty.requests
    assert count > 10
    for at in range(count):
        Faulty.reset()
        system = fsspec.filesystem("faulty")
        for name, content in start.items():
            system.pipe(name, content)
        Faulty.requests, Faulty.at = 0, at
        with pytest.raises((ConnectionError, RemoteError)):
            send(RemoteRun(URL), root, 2, best=1)
        Faulty.at = None
        run = RemoteRun(URL)
        for found in run.complete_checkpoints():
            run.verify(found)
        assert run.pointer("latest") in wholes(run)
        assert fetched(URL, tmp_path / f"at-{at}").name in ("step-00000001", "step-00000002")
        sent = send(run, root, 2, best=1)
        assert sent.files <= 2
        assert (wholes(run), run.pointer("latest"), run.pointer("best")) == ([2, 1], 2, 1)


def test_a_failure_at_any_request_of_a_removal_or_a_rollback(tmp_path: Path) -> None:
    root = tmp_path / "a"
    save(root, 1, 2, 3, 4)
    acts: dict[str, Callable[[RemoteRun], object]] = {
        "prune": lambda run: run.prune(Retention(1)),
        "rollback": lambda run: run.set_aside_after(2),
    }
    for name, act in acts.items():
        for at in range(200):
            Faulty.reset()
            for step in (1, 2, 3, 4):
                send(RemoteRun(URL), root, step, best=2)
            run = RemoteRun(URL)
            Faulty.requests, Faulty.at = 0, at
            try:
                act(run)
            except (ConnectionError, RemoteError):
                Faulty.at = None
                assert run.pointer("latest") in (*wholes(run), None), (name, at)
                assert 2 in wholes(run)
                for found in run.complete_checkpoints():
                    run.verify(found)
                act(run)
            else:
                break
        assert at > 5
        Faulty.at = None
        if name == "prune":
            assert (wholes(run), run.pointer("latest"), run.steps()) == ([4, 2], 4, [2, 4])
        else:
            assert (wholes(run), run.pointer("latest"), run.pointer("best")) == ([2, 1], 2, 2)
            # Nothing is gone: the files of 3 and 4 lie there, and may be sent again.
            assert run.steps() == [1, 2, 3, 4]
            run.prune(Retention(1))
            assert run.steps() == [2, 3, 4]
            assert send(run, root, 3).files == 0
            assert wholes(run) == [3, 2]


def test_what_arrives_short_is_no_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 1)
    run = RemoteRun(URL)
    Faulty.cuts = True
    with pytest.raises(OSError, match=r"differs from what was uploaded"):
        send(run, tmp_path, 1)
    assert wholes(run) == []
    Faulty.cuts = False
    send(run, tmp_path, 1)
    assert wholes(run) == [1]


def test_a_file_that_was_changed_on_the_disk_is_not_sent(tmp_path: Path) -> None:
    save(tmp_path, 1)
    file = tmp_path / "step-00000001" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    run = RemoteRun(URL)
    with refused(DamagedCheckpoint):
        send(run, tmp_path, 1)
    assert wholes(run) == []


def test_a_listing_that_lags_hides_nothing_that_latest_names(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    run = RemoteRun(URL)
    send(run, tmp_path, 1)
    Faulty.lags = True
    send(run, tmp_path, 2)
    assert run.steps()[-1] == 2
    assert run.prune(Retention(1)) in ([], ["step-00000001"])
    assert wholes(run)[0] == 2


@pytest.mark.parametrize("damage", ["flip", "short", "missing", "manifest"])
def test_damage_at_the_url_is_named_and_passed_over(tmp_path: Path, damage: str) -> None:
    save(tmp_path / "a", 1, 2)
    run = RemoteRun(URL)
    for step in (1, 2):
        send(run, tmp_path / "a", step)
    place = "/bucket/runs/run/checkpoints/step-00000002/"
    system = fsspec.filesystem("faulty")
    name = "manifest.json" if damage == "manifest" else "model.safetensors"
    content = bytearray(system.cat_file(place + name))
    content[-20] ^= 1
    if damage == "missing":
        system.rm_file(place + name)
    else:
        system.pipe_file(place + name, bytes(content[:-1] if damage == "short" else content))
    assert fetched(URL, tmp_path / "b").name == "step-00000001"
    with refused():
        fetched(f"{URL}/checkpoints/step-00000002", tmp_path / "c")
    assert not list((tmp_path / "c").glob("step-????????"))
    # What could not be read is never removed.
    run.prune(Retention(1))
    assert run.steps() == [2] if damage != "manifest" else [1, 2]


def test_the_md5_of_the_service_saves_reading_back(tmp_path: Path) -> None:
    save(tmp_path, 1)
    run, read = RemoteRun(URL), list[str]()
    real = Faulty.info

    def info(self: Faulty, path: str, **options: Any) -> Any:
        found = real(self, path, **options)
        if found["type"] == "file":
            found["ETag"] = f'"{hashlib.md5(self.store[path].getvalue()).hexdigest()}"'
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Faulty, "info", info)
        pieces = RemoteRun._pieces
        patch.setattr(RemoteRun, "_pieces", lambda s, path: read.append(path) or pieces(s, path))
        assert send(run, tmp_path, 1).by == "md5"
    assert read == []


def test_memory_is_that_of_a_few_chunks(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "a")
    store.save(1, {"model": {"w": torch.zeros(10_000_000)}}, {})
    run = RemoteRun(f"file://{tmp_path}/bucket/run")
    tracemalloc.start()
    try:
        send(run, tmp_path / "a", 1)
        fetched(f"file://{tmp_path}/bucket/run", tmp_path / "b")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * atomic.CHUNK < 30e6


def wait_for(uploads: Uploads, *events: str) -> list[Any]:
    found: list[Any] = []
    for _ in range(2000):
        found += uploads.reports()
        if set(events) <= {each.event for each in found}:
            return found
        uploads.wait(0.005)
    raise AssertionError(found)


def test_an_outage_is_waited_for(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3, 4)
    Faulty.is_out = True
    with closing(Uploads(RemoteRun(URL), tmp_path, waiting=2, pause=0.01)) as uploads:
        for step in (1, 2, 3, 4):
            uploads.add(step)
        found = wait_for(uploads, "upload_failed", "upload_skipped")
        failed = next(each for each in found if each.event == "upload_failed")
        assert "the service does not answer" in failed.note
        assert not uploads.wait(0)
        # The best stays though it is the oldest.
        assert 1 in uploads.protected
        assert 4 in uploads.protected
        Faulty.is_out = False
        assert uploads.wait(10)
        assert uploads.failure == ""
        assert 4 in wholes(RemoteRun(URL))


def test_a_record_is_waited_for_until_it_is_sent(tmp_path: Path) -> None:
    began, may_end = Event(), Event()

    class Slow(RemoteRun):
        def send_record(self, *_: object) -> None:
            began.set()
            assert may_end.wait(10)

    with closing(Uploads(Slow(URL), tmp_path)) as uploads:
        uploads.add_record()
        assert began.wait(10) and not uploads.wait(0)
        uploads.add_record()  # it has changed meanwhile
        may_end.set()
        assert uploads.wait(10)


def test_a_checkpoint_that_is_saved_again_is_sent_again(tmp_path: Path) -> None:
    store = save(tmp_path, 1)
    with closing(Uploads(RemoteRun(URL), tmp_path, pause=0.01)) as uploads:
        uploads.add(1)
        assert uploads.wait(10)
        store.save(1, {"model": {"w": torch.zeros(3)}}, {}, 1.0)
        uploads.add(1)
        assert uploads.wait(10)
        path = fetched(URL, tmp_path / "b")
        assert (path / "manifest.json").read_bytes() == (
            tmp_path / "step-00000001" / "manifest.json"
        ).read_bytes()


def test_a_rollback_is_remembered_through_an_outage(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    for step in (1, 2):
        send(RemoteRun(URL), tmp_path, step)
    Faulty.is_out = True
    with refused(RemoteError):
        RemoteRun(URL).steps()
    Faulty.is_out = False
    run = RemoteRun(URL)
    Faulty.is_out = True
    with closing(Uploads(run, tmp_path, pause=0.01)) as uploads:
        uploads.set_aside_after(1)
        wait_for(uploads, "upload_failed")
    assert read_pending(tmp_path) == 1
    Faulty.is_out = False
    with closing(Uploads(RemoteRun(URL), tmp_path, pause=0.01)) as uploads:
        uploads.set_aside_after(1)
        assert uploads.wait(10)
    assert read_pending(tmp_path) is None
    assert wholes(RemoteRun(URL)) == [1]


def test_a_service_that_never_answers(tmp_path: Path) -> None:
    Faulty.is_out = True
    with refused(RemoteError):
        fetched(URL, tmp_path)
    Faulty.is_out = False
    with refused():
        fetched(URL, tmp_path)
