"""Links between the pages lead somewhere, headings included."""

from __future__ import annotations

import re
from pathlib import Path

from .fields import DOCS, ROOT

LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)(#[^)\s]*)?\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The names that headings have on the pages that people see."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_lead_somewhere() -> None:
    broken: list[str] = []
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")]:
        for path, anchor in LINK.findall(CODE.sub("", page.read_text())):
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (anchor and anchor[1:] not in anchors(target)):
                broken.append(f"{page.relative_to(ROOT)}: {path}{anchor}")
    assert not broken, "\n".join(broken)
