"""`python -m setpoint`: the command line, where the script `setpoint` is not on the path."""

from __future__ import annotations

import sys

from setpoint.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
