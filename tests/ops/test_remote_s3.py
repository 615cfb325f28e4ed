"""Checkpoints in S3: moto's server on this machine, and the client that users have."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from setpoint.checkpoint.folder import Retention
from setpoint.checkpoint.manifest import read_manifest
from setpoint.checkpoint.store import CheckpointStore
from setpoint.ops.fetching import fetched
from setpoint.ops.remote_folder import RemoteError
from setpoint.ops.remote_run import RemoteRun

from ..support.snapshots import refused

s3fs = pytest.importorskip("s3fs")
server = pytest.importorskip("moto.server")

pytestmark = pytest.mark.filterwarnings("ignore")
BLOCK = 6 << 20


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    service = server.ThreadedMotoServer(port=0, verbose=False)
    service.start()
    host, port = service.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        }.items():
            patch.setenv(name, value)
        patch.setattr(s3fs.S3FileSystem, "default_block_size", BLOCK)
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().mkdir("bucket")
        yield "s3://bucket/runs/run"
        s3fs.S3FileSystem.clear_instance_cache()
    service.stop()


@pytest.mark.slow
def test_a_file_in_parts_is_compared_by_the_md5_of_its_parts(bucket: str, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "a", keep=None)
    run = RemoteRun(bucket)
    for step in (1, 2):
        large = torch.arange(BLOCK // 2) + step  # four blocks
        path = store.save(step, {"model": {"w": large}}, {}, float(step))
        sent = run.send(path, read_manifest(path), best=1)
        assert (sent.files, sent.by) == (2, "md5")
    assert run.send(path, read_manifest(path)).files == 0
    assert ([found.step for found in run.complete_checkpoints()], run.pointer("best")) == (
        [2, 1],
        1,
    )
    assert RemoteRun(bucket).written(2) is not None
    there = fetched(bucket, tmp_path / "b")
    for file in path.iterdir():
        assert (there / file.name).read_bytes() == file.read_bytes()
    assert run.set_aside_after(1) == ["step-00000002"]
    assert RemoteRun(bucket).pointer("latest") == 1
    # Sent again, only the manifest is missing.
    assert RemoteRun(bucket).send(path, read_manifest(path)).files == 0
    assert run.prune(Retention(1)) == []  # the other one is the best
    assert run.sizes(1).keys() == run.sizes(2).keys()


@pytest.mark.slow
def test_a_bucket_that_is_not_there(bucket: str, tmp_path: Path) -> None:
    run = RemoteRun("s3://nowhere/run")
    assert run.steps() == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        s3fs.S3FileSystem.clear_instance_cache()
        with refused(RemoteError):
            RemoteRun("s3://bucket/run").steps()
    s3fs.S3FileSystem.clear_instance_cache()


def test_no_bucket_is_made(bucket: str) -> None:
    """A name that is misspelt is refused, and the client would make the bucket."""
    with refused(RemoteError):
        RemoteRun("s3://bukcet/runs/run").require_writable()
    assert s3fs.S3FileSystem().ls("", refresh=True) == ["bucket"]
