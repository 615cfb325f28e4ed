"""`make audit`: known vulnerabilities of the packages that are installed, by pip-audit.

pip-audit ends with status 0 as well where it could look up nothing; here that is told apart:
0 all were looked up and none is known, 1 some are known, 3 not all could be looked up.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec

COMMAND = (sys.executable, "-m", "pip_audit", "--skip-editable", "--progress-spinner", "off",
           "--format", "json")  # fmt: skip
OWN = "setpoint"
KNOWN, UNKNOWN = 1, 3


def audit(command: Sequence[str] = COMMAND) -> tuple[int, list[str]]:
    """Run pip-audit.

    Returns:
        the exit status, and lines for people.
    """
    if command == COMMAND and find_spec("pip_audit") is None:
        return UNKNOWN, ["nothing was audited: pip-audit is not installed; `make audit` does so"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        why = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        return UNKNOWN, [f"nothing was audited: the advisory service did not answer: {why}"]
    lines = [
        f"{each['name']} {each['version']}: {found['id']}, mended in "
        f"{', '.join(found['fix_versions']) or 'no version'}"
        for each in packages
        for found in each.get("vulns", ())
    ]
    skipped = [each["name"] for each in packages if "skip_reason" in each and each["name"] != OWN]
    looked_up = sum("version" in each for each in packages)
    if skipped:
        shown = ", ".join(skipped[:5]) + (", .." if len(skipped) > 5 else "")
        lines.append(f"{len(skipped)} packages could not be looked up: {shown}")
    lines.append(f"{looked_up} packages were looked up")
    known = any("vulns" in each and each["vulns"] for each in packages)
    return (KNOWN if known else UNKNOWN if skipped else 0), lines


if __name__ == "__main__":
    status, said = audit()
    print("\n".join(said))
    sys.exit(status)
