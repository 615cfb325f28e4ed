"""A process that has torch loaded and forks one `setpoint` command after the other; see `commands`.

An import of torch takes seconds, and the tests kill dozens of processes. It reads a line of JSON
with `arguments`, `folder` and `output`, answers with the number of the process, and then with its
exit status, negative for a signal. The forked process runs `setpoint.cli.main`, as the installed
command does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback

import setpoint.train.run
import setpoint.train.summary  # noqa: F401
from setpoint.cli.main import main


def command(request: dict[str, str | list[str]]) -> None:
    """Become one command; does not return."""
    status = 70
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(str(request["folder"]))
        output = os.open(str(request["output"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for stream in (1, 2):
            os.dup2(output, stream)
        status = main([str(word) for word in request["arguments"]])
        sys.stdout.flush()
    except BaseException:
        # A bug: the test prints what was printed.
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            command(json.loads(line))
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
