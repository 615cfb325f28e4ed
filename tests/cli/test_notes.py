import pytest

from setpoint.cli.output import print_notes


def test_each_note_once_and_not_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    print_notes(["a", "b", "a"])
    assert capsys.readouterr() == ("", "note: a\nnote: b\n")
