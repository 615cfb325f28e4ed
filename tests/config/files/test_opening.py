"""Only plain files are opened, and reading one never waits."""

import os
import socket

import pytest

from setpoint.config.files.file_document import FileError
from setpoint.config.files.read import read_file, read_plain_file


def refusal(path, limit=10):
    with pytest.raises(FileError) as caught:
        read_plain_file(str(path), limit, lambda size: f"{size} bytes", lambda path: "not there")
    return caught.value.message


def test_a_plain_file_up_to_its_limit(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"0123456789")
    assert read_plain_file(str(path), 10, str, str) == b"0123456789"
    assert refusal(path, 9) == "10 bytes"
    (tmp_path / "link").symlink_to(path)
    assert read_plain_file(str(tmp_path / "link"), 10, str, str) == b"0123456789"


def test_what_is_no_plain_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    assert refusal(tmp_path) == "expected a file; this is a directory"
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    for path in ("pipe", "socket", "/dev/zero", "/dev/null"):
        assert refusal(path) == "expected a file; this is not a regular file", path
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    with pytest.raises(FileError, match="not a regular file"):
        read_file("zero.toml")
    assert refusal("none") == "not there"
    os.symlink("loop", "loop")
    assert refusal("loop") == "cannot be read: Too many levels of symbolic links"


def test_a_pipe_that_takes_the_place_of_the_file_is_seen(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_bytes(b"x")
    before = os.stat(path)
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr(os, "stat", lambda name: before)
    assert refusal(path) == "expected a file; this is not a regular file"


@pytest.mark.skipif(not os.access("/proc/kmsg", os.R_OK), reason="needs the kernel's log")
def test_a_file_of_the_kernel_does_not_wait():
    for _ in range(2):  # the second time nothing is left in it
        try:
            data = read_plain_file("/proc/kmsg", 10**8, str, str)
        except FileError as error:
            assert error.message.startswith("cannot be read")
        else:
            assert isinstance(data, bytes)


def test_devices_get_a_hint():
    with pytest.raises(FileError, match="--config-from-stdin reads standard input"):
        read_file("/dev/stdin")
