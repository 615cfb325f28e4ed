"""Results in a directory, with the record of what made them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setpoint.config import CONFIG, HEADER, RunError, SetpointError, fingerprint, record_files
from setpoint.files.atomic import write_json, write_text
from setpoint.track.environment import environment
from setpoint.track.redact import declared_secrets

if TYPE_CHECKING:
    from setpoint.infer.config import Inference
    from setpoint.infer.profiles import Profiles
    from setpoint.infer.text import Text
    from setpoint.shapes.scoring import Score

RESULTS = "results.json"
TEXTS = "generations.jsonl"


@dataclass(slots=True)
class Results:
    """What an inference job came to.

    Arguments:
        weights: the directory that the weights were read from.
        harness: what lm-evaluation-harness measured, by task and metric.
        exported: the directory that the weights were written to.
        profiles: what was profiled; None: nothing.
        cautions: what to know before the results are used.
    """

    weights: Path
    scores: dict[str, Score] = field(default_factory=dict)
    texts: list[Text] = field(default_factory=list)
    harness: dict[str, dict[str, Any]] = field(default_factory=dict)
    exported: Path | None = None
    profiles: Profiles | None = None
    cautions: list[str] = field(default_factory=list)

    def to_json(self, output: Path | None = None) -> dict[str, Any]:
        """The results but for the texts, which have a file of their own."""
        found: dict[str, Any] = {"weights": str(self.weights)}
        if self.scores:
            found["evaluation"] = {
                name: {key: value for key, value in asdict(score).items() if value is not None}
                for name, score in self.scores.items()
            }
        if self.texts:
            found["generation"] = {"texts": len(self.texts), "file": TEXTS}
        if self.harness:
            found["harness"] = self.harness
        if self.exported is not None:
            found["export"] = str(self.exported)
        if self.profiles is not None:
            found["profiling"] = self.profiles.to_json(output)
        if self.cautions:
            found["cautions"] = self.cautions
        return found


def require_place(folder: Path, job: Inference) -> None:
    """Refuse a directory that holds something else than results of this very job.

    Raises:
        SetpointError: naming what it holds.
    """
    if folder.exists() and not folder.is_dir():
        raise SetpointError(f"output: {folder} is a file; give a directory")
    if not folder.exists() or not any(folder.iterdir()):
        return
    try:
        header: Any = json.loads((folder / CONFIG).read_bytes())[HEADER]
        made_by = header["fingerprint"]
    except (OSError, ValueError, LookupError, TypeError):
        names = sorted(path.name for path in folder.iterdir())
        shown = ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
        raise SetpointError(
            f"output: {folder} holds {shown}, which are no results; give a new or empty directory"
        ) from None
    if made_by != fingerprint(job):
        raise SetpointError(
            f"output: {folder} holds the record of another job ({str(made_by)[:8]}, and this is "
            f"{fingerprint(job)[:8]}); give another directory, or remove it"
        )


def write_record(folder: Path, job: Inference) -> None:
    """Write what makes the results, before there are any.

    Raises:
        RunError: it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RESULTS).unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"output: {folder} cannot be written: {error.strerror}") from error
    for name, text in record_files(job).items():
        write_text(folder / name, text)


def write_results(folder: Path, job: Inference, results: Results) -> None:
    """Write results and record; `results.json` comes last, so that where it is, all is.

    Raises:
        RunError: it cannot be written.
    """
    write_record(folder, job)
    write_json(folder / "environment.json", environment(secrets=declared_secrets(job)))
    if results.texts:
        write_text(folder / TEXTS, "".join(_line(asdict(text)) for text in results.texts))
    write_json(folder / RESULTS, {"fingerprint": fingerprint(job), **results.to_json(folder)})


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"
