"""Write docs/coverage from the inventory and the answers.

python -m tests.coverage.make      (`make coverage`)
"""

from __future__ import annotations

import sys

from .pages import FOLDER, outdated


def main() -> int:
    """Rewrite what is out of date, and name it.

    Returns:
        the exit status.
    """
    changed = outdated()
    FOLDER.mkdir(exist_ok=True)
    for name, text in changed.items():
        path = FOLDER / name
        if text:
            path.write_text(text, encoding="utf-8")
        else:
            path.unlink()
        print(f"docs/coverage/{name}")
    print(f"{len(changed)} pages written" if changed else "nothing has changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
