"""The largest files that are read, and those just beyond, within the stated time and memory."""

import resource
import subprocess
import sys

import pytest

SECONDS = 20  # of processor time
MEBIBYTES = 1024  # of address space, Python and all modules included
PROGRAM = """
import sys
from setpoint.config.words.errors import SetpointError
from setpoint.config.files.file_document import MAX_BYTES
from setpoint.config.files.read import parse_bytes
format, text = sys.argv[1], eval(sys.argv[2], {"MAX": MAX_BYTES[sys.argv[1]]})
try:
    document = parse_bytes(text.encode(), format, "f")
    document.locate(("a", "b"))
    print("read", len(document.data))
except SetpointError as error:
    print(error)
"""
READ = {
    "toml, many keys": ("toml", "''.join(f'k{i} = 1\\n' for i in range(70_000))"),
    "yaml, digits": ("yaml", "'a: ' + '9' * (MAX - 8)"),
    "json, one text": ("json", "'{\"a\": \"' + '\\\\n' * (MAX // 2 - 8) + '\"}'"),
}
SLOW = {
    "toml, many values": ("toml", "'a = [' + '1,' * (MAX // 2 - 8) + ']'"),
    "json, many values": ("json", "'{\"a\": [' + '[],' * (MAX // 3 - 8) + '1]}'"),
    "yaml, many values": ("yaml", "'a: [' + 'x,' * (MAX // 2 - 8) + ']'"),
    "yaml, many keys": ("yaml", "''.join(f'k{i}: 1\\n' for i in range(24_000))"),
    "toml, nested": ("toml", "''.join(f'[a{i}.b.c]\\n' for i in range(25_000))"),
    "toml, lines": ("toml", "'#\\n' * (MAX // 2)"),
    "toml, one text": ("toml", "'a = \"' + 'x' * (MAX - 8) + '\"'"),
    "toml, escapes": ("toml", "'a = \"' + '\\\\n' * (MAX // 2 - 8) + '\"'"),
    "json, many keys": ("json", "'{' + ','.join(f'\"k{i}\":1' for i in range(249_000)) + '}'"),
    "json, objects": ("json", "'{\"a\": [' + '{\"b\":1},' * 120_000 + '1]}'"),
    "yaml, block text": ("yaml", "'a: |\\n' + ' y\\n' * (MAX // 3 - 8)"),
    "yaml, lines": ("yaml", "'\\n' * (MAX - 8) + 'a: 1'"),
    "yaml, plain text": ("yaml", "'a: x\\n' + ' y\\n' * (MAX // 3 - 8)"),
    "yaml, comments": ("yaml", "'#\\n' * (MAX // 2)"),
}
REFUSED = {
    "toml, depth": ("toml", "'a = ' + '[' * 500_000", "nested deeper"),
    "toml, dots": ("toml", "'a' + '.a' * 500_000 + ' = 1'", "nested deeper"),
    "toml, digits": ("toml", "'a = ' + '9' * 1_000_000", "more than 4300 digits"),
    "toml, bytes": ("toml", "'#' * (MAX + 1)", "at most 1 MiB of TOML"),
    "json, depth": ("json", "'{\"a\": ' + '[' * 4_000_000", "nested deeper"),
    "json, bytes": ("json", "' ' * (MAX + 1)", "at most 8 MiB of JSON"),
    "yaml, depth": ("yaml", "'a: ' + '[' * 200_000", "nested deeper"),
    "yaml, dashes": ("yaml", "'- ' * 100_000", "nested deeper"),
    "yaml, laughs": (
        "yaml",
        "'a: &a [x, x]\\n' + ''.join(f'{b}: &{b} [' + f'*{a}, ' * 9 + ']\\n' "
        "for a, b in zip('abcdefgh', 'bcdefghi'))",
        "aliases repeat more",
    ),
}


def bounded(format: str, text: str) -> str:
    """What reading comes to in a process that gets no more than the stated time and memory."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (MEBIBYTES << 20, MEBIBYTES << 20))

    command = [sys.executable, "-c", PROGRAM, format, text]
    result = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit)
    assert result.returncode == 0, result.stderr[-2000:]
    assert len(result.stdout) < 1000
    return result.stdout


@pytest.mark.parametrize("name", READ)
def test_the_largest_files_are_read(name: str) -> None:
    assert bounded(*READ[name]).startswith("read")


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_other_large_files_are_read(name: str) -> None:
    assert bounded(*SLOW[name]).startswith("read")


@pytest.mark.parametrize("name", REFUSED)
def test_larger_ones_are_refused(name: str) -> None:
    *given, reason = REFUSED[name]
    assert reason in bounded(*given)
