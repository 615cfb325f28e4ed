"""Write the lists of fields in the pages: `python -m tests.docs.make` (`make coverage`)."""

from .fields import ROOT, outdated


def main() -> None:
    """Rewrite the pages that are out of date, and name them."""
    changed = list(outdated())
    for page, text in changed:
        page.write_text(text, encoding="utf-8")
        print(page.relative_to(ROOT))
    print(f"{len(changed)} pages written" if changed else "nothing has changed")


if __name__ == "__main__":
    main()
