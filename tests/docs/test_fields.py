"""The lists of fields are those of the classes, and every field of a job is in one page's."""

from collections import Counter

from .fields import DOCS, LIST, ROOT, chosen, outdated, rows_of


def test_lists_are_up_to_date() -> None:
    pages = [str(page.relative_to(ROOT)) for page, _ in outdated()]
    assert not pages, "run `python -m tests.docs.make`, and read the diff"


def test_every_field_has_one_page() -> None:
    shown: Counter[tuple[str, str]] = Counter()
    for page in DOCS.rglob("*.md"):
        for _, kind, wanted, _ in LIST.findall(page.read_text()):
            if kind == "fields":
                root, rows = chosen(wanted)
                shown.update({(root, row["path"]) for row in rows})
    assert not [path for path, count in shown.items() if count > 1]
    assert not [row["path"] for row in rows_of("") if not shown["", row["path"]]]
