"""Links between the pages lead somewhere, headings included."""

import ast
import re
from pathlib import Path

from ..conftest import SourceFile
from .fields import DOCS, ROOT

LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)(#[^)\s]*)?\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The names that headings have on the pages that people see."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_lead_somewhere() -> None:
    broken: list[str] = []
    roots = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md")
    for page in [*(ROOT / name for name in roots), *DOCS.rglob("*.md")]:
        for path, anchor in LINK.findall(CODE.sub("", page.read_text())):
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (anchor and anchor[1:] not in anchors(target)):
                broken.append(f"{page.relative_to(ROOT)}: {path}{anchor}")
    assert not broken, "\n".join(broken)


def test_no_message_names_a_page_of_the_repository(source_files: dict[str, SourceFile]) -> None:
    """Who has installed the package has no such folder."""
    page = re.compile(r"(?<![\w./-])docs/|(?<![*/])\b\w+\.md\b")
    found = [
        f"{file.path.relative_to(ROOT)}: {node.value.strip()[:60]}"
        for file in source_files.values()
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and page.search(node.value)
    ]
    assert found == ["src/setpoint/hub/upload.py: README.md"]  # a file of a model on the hub
