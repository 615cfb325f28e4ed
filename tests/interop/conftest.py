"""What tests of other systems share: command lines that are refused."""

from collections.abc import Callable

import pytest

from setpoint.cli.main import main

from ..support.snapshots import compare_message

Refuses = Callable[..., None]


@pytest.fixture
def refuses(capsys: pytest.CaptureFixture[str]) -> Refuses:
    """Runs a command line that is refused, and compares the error with the stored one."""

    def run(*words: object) -> None:
        capsys.readouterr()
        assert main([*map(str, words)]) in (1, 2)
        compare_message(capsys.readouterr().err)

    return run
