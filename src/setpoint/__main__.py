"""The command line: the script `setpoint`, and `python -m setpoint`."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command in the process's arguments; Ctrl-C prints one line, even during imports."""
    try:
        from setpoint.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
