"""Look for inputs that break a reader, led by the coverage that they reach; `make fuzz` runs this.

    python -m tests.long.fuzz.coverage_guided [--seconds 60] [TARGET ...]

It needs `atheris` (the extra `fuzz`), which is there for CPython 3.11. It starts from the texts in
`corpus/`; what it finds is written to `findings/TARGET-...` below the working folder. Shrink such
an input, mend what it broke, and put it into `corpus/`, which the tests try each time.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import subprocess
import sys
import tempfile
from pathlib import Path

CORPUS = Path(__file__).resolve().parent / "corpus"  # as in `targets`, which imports much
FOUND = "findings"


def main() -> int:
    """Fuzz each target in a process of its own, since one that fails ends its process.

    Returns:
        0 if nothing was found, 1 otherwise.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("targets", nargs="*", help="all of them if none is named")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--child", metavar="TARGET", help=argparse.SUPPRESS)
    parser.add_argument("--texts", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        _fuzz(arguments.child, arguments.seconds, arguments.texts)
        return 0
    known = sorted(path.name for path in CORPUS.iterdir())
    wrong = set(arguments.targets) - set(known)
    if wrong:
        parser.error(f"no such target: {', '.join(sorted(wrong))}; there are {', '.join(known)}")
    failed: list[str] = []
    for target in arguments.targets or known:
        print(f"{target}: {arguments.seconds} s", flush=True)
        with tempfile.TemporaryDirectory() as texts:
            command = [sys.executable, "-m", __spec__.name if __spec__ else __name__]
            command += ["--child", target, "--seconds", str(arguments.seconds), "--texts", texts]
            if subprocess.run(command).returncode:
                failed.append(target)
    print(f"found something in: {', '.join(failed)}" if failed else "found nothing")
    return 1 if failed else 0


def _fuzz(target: str, seconds: int, texts: str) -> None:
    try:
        import atheris
    except ImportError:
        sys.exit("coverage-guided fuzzing needs atheris: pip install 'setpoint[fuzz]'")
    import setpoint

    with atheris.instrument_imports(include=["setpoint.config", "ruamel.yaml", "tomllib"]):
        # Most modules are imported when they are first used, which would be too late.
        for module in pkgutil.walk_packages([f"{setpoint.__path__[0]}/config"], "setpoint.config."):
            importlib.import_module(module.name)
        from .targets import run

    Path(FOUND).mkdir(exist_ok=True)
    options = [
        f"-max_total_time={seconds}",
        "-max_len=2000",
        "-timeout=20",
        "-rss_limit_mb=2048",
        f"-artifact_prefix={FOUND}/{target}-",
        "-print_final_stats=1",
        "-verbosity=0",
    ]
    # libFuzzer writes new inputs to the first folder, and only reads the second.
    atheris.Setup(
        [sys.argv[0], texts, str(CORPUS / target), *options], lambda data: run(target, data)
    )
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
