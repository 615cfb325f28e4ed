"""A tracker whose rows go to a server, brought by `--import tests.long.torture.tracker`."""

import os
import socket
from typing import Any

from setpoint.config import RUNTIME
from setpoint.track.config import TrackerConfig

from . import PORT


class Remote(TrackerConfig, type="remote-of-torture", owner=f"{__name__}:build", role=RUNTIME):
    """Sends each row to a server and waits for its answer."""


class Rows:
    """Sends rows."""

    def write(self, row: dict[str, Any]) -> None:
        """Send one, and wait for ever for an answer."""
        port = os.environ.get(PORT)
        if port is not None:
            with socket.create_connection(("127.0.0.1", int(port))) as server:
                server.sendall(repr(row).encode())
                if not server.recv(1):
                    raise ConnectionError("the server has gone")


def build(config: Remote, *, run_directory: object) -> Rows:
    """Build the tracker."""
    del config, run_directory
    return Rows()
