"""Write docs/coverage from the answers: `python -m tests.coverage.make` (`make coverage`)."""

from .coverage import PAGES, outdated

if __name__ == "__main__":
    changed = outdated()
    for name, text in changed.items():
        if text:
            (PAGES / name).write_text(text, encoding="utf-8")
        else:
            (PAGES / name).unlink()
        print(f"docs/coverage/{name}")
    print(f"{len(changed)} pages written" if changed else "nothing has changed")
