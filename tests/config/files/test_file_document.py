"""Positions are found when they are asked for, and once."""

from setpoint.config.files.file_document import FileDocument, FilePosition


def test_positions_are_lazy():
    calls = []

    def scan():
        calls.append(1)
        root = FilePosition(0)
        root.add("a", 3).add(0, 5)
        return root

    document = FileDocument("f", "toml", {}, "é\n\na = [1]\n", scan)
    assert not calls
    assert document.locate(("a",)) == (3, 1)
    assert document.locate(("a", 0)) == (3, 3)
    assert document.locate(("a", 1, "deeper")) == (3, 1)
    assert document.locate(("b",)) is None
    assert document.locate(()) is None
    assert [document.where(("a", 0)), document.where(("b",))] == ["f:3:3", "f"]
    assert len(calls) == 1
