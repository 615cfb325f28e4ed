"""Trackers for third-party services, using their public Python APIs.

Rows become scalars `train/loss`, `evaluation/held_out_loss` at their step. An append-only service
has two rows for a step that was trained twice: with the same numbers after a kill, with different
ones after a rollback. For such services each row has a number `session`, which increases with every
start, resume and rollback: of two rows for a step, the one with the higher number is valid. W&B's
own rewind (`resume_from`) requires that the server supports it, and works only for new runs.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from setpoint.config import Caution, Problem
from setpoint.files.atomic import not_linked, write_text

from .config import NO_LOGIN
from .trackers import RunFacts, Tracker

if TYPE_CHECKING:
    from .config import Aim, Comet, Mlflow, ServiceConfig, System, TensorBoard, Trackio, Wandb
    from .run_directory import RunDirectory

PROJECT = "setpoint"
"""Project of runs without an experiment."""

ID_TAG = "setpoint.run_id"
"""Tag that identifies the MLflow run of a run directory."""

NOTE_TAG = "mlflow.note.content"
"""Tag that MLflow shows as the description of a run."""

AIM_RUN = "aim-run"
"""Log file with Aim's name of the run."""

BATCH = 100
"""Maximum parameters per MLflow request."""

LONGEST = 500
"""Maximum length of a parameter in all MLflow stores, and of a name in Aim."""


def missing_problems(config: ServiceConfig) -> Iterator[Problem]:
    """Check that the package of a tracker is installed."""
    for module, package in config.packages():
        if importlib.util.find_spec(module) is None:
            yield Problem(
                "type",
                f"needs the package {package}: pip install 'setpoint[{config.extra}]'",
                valid=("jsonl", "csv"),
            )


def psutil_problems(config: System) -> Iterator[Problem]:
    """Check that the package for system samples is installed."""
    if importlib.util.find_spec("psutil") is None:
        hint = "Or remove tracking.system."
        yield Problem(
            "every", "needs the package psutil: pip install 'setpoint[system]'", hint=hint
        )


def login_problems(config: Wandb) -> Iterator[Problem]:
    """Check for a W&B login; W&B itself reports a missing one only after the first steps."""
    if any(map(os.environ.get, ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"))) or _knows_wandb():
        return
    problem = "no login was found (WANDB_API_KEY, ~/.netrc)"
    hint = "Run `wandb login`, or set mode = offline and send the run later with `wandb sync`."
    if config.required:
        yield Problem("required", f"{problem}, but the service is required", hint=hint)
        return
    yield Caution(NO_LOGIN, "mode", f"{problem}: the run would be trained without W&B", hint=hint)


def _knows_wandb() -> bool:
    """True if a netrc file may contain a W&B login, or cannot be read."""
    import netrc

    home = Path.home()
    kept = Path(os.environ.get("WANDB_CONFIG_DIR") or home / ".config/wandb", "settings")
    if kept.exists() or Path("wandb/settings").exists():
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").netloc
    named = os.environ.get("NETRC")
    for path in [Path(named)] if named else [home / ".netrc", home / "_netrc"]:
        try:
            if path.exists() and netrc.netrc(path).authenticators(host):
                return True
        except (OSError, netrc.NetrcParseError):
            return True
    return False


def scalars(row: Mapping[str, Any], kind: bool = True) -> dict[str, float]:
    """The numbers in a row by name, with list items by index; other values are omitted."""
    numbers: dict[str, float] = {}
    start = f"{row.get('kind', 'train')}/" if kind else ""
    for name, value in row.items():
        items = enumerate(value) if isinstance(value, list | tuple) else [(None, value)]
        for index, number in items:
            if isinstance(number, int | float) and not isinstance(number, bool) and name != "step":
                numbers[f"{start}{name}" if index is None else f"{start}{name}/{index}"] = number
    return numbers


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Nested plain data, by dotted path."""
    if isinstance(value, Mapping) and value:
        return {k: v for key, item in value.items() for k, v in flat(item, f"{path}{key}.").items()}
    return {path.removesuffix("."): value}


class Service(Tracker):
    """Base class of trackers for services."""

    facts: RunFacts
    session: int
    """Session number, to distinguish re-logged steps."""

    def __init__(self, config: Any, *, run_directory: RunDirectory) -> None:
        self.config, self.run_directory = config, run_directory

    def describe(self, facts: RunFacts) -> None:
        self.facts, self.session = facts, facts.session

    def rewind(self, step: int, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
        """Increase the session number, so that re-logged steps can be distinguished."""
        self.session += 1

    def marked(self, row: Mapping[str, Any]) -> dict[str, float]:
        """The numbers of a row, for a service that only appends."""
        return {**scalars(row), "session": self.session}

    @property
    def project(self) -> str:
        """The configured project, else the job's experiment."""
        return self.config.project or self.facts.experiment or PROJECT

    @property
    def name(self) -> str:
        """Display name of the run."""
        return self.config.name or self.facts.name

    @property
    def properties(self) -> dict[str, Any]:
        """Run properties other than the configuration."""
        facts = self.facts
        return {
            "fingerprint": facts.fingerprint,
            "run_directory": str(self.run_directory.path.resolve()),
            "origins": facts.origins,
            "environment": facts.environment,
            **({} if facts.description is None else {"description": facts.description}),
        }


class WandbTracker(Service):
    """Weights & Biases, with its own system statistics."""

    config: Wandb

    def open(self, step: int, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
        """Start the run, or continue the run of earlier sessions."""
        wandb = importlib.import_module("wandb")
        config = self.config
        self.run: Any = wandb.init(
            project=self.project,
            entity=config.entity,
            group=config.group,
            name=self.name,
            job_type=config.job_type,
            tags=list(config.tags) or None,
            notes=self.facts.description,
            id=config.run_id or state["id"],
            resume="allow",
            mode=config.mode,
            dir=config.directory or str(self.run_directory.logs),
            config={**self.facts.config, "setpoint": self.properties},
            reinit="create_new",
            # Its patch of uncommitted code would contain the secrets that ours hides.
            settings=wandb.Settings(silent=True, disable_git=True),
        )
        # Steps of the run, not the number of calls, so that a step may be logged again.
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def write(self, row: dict[str, Any]) -> None:
        """Log a row."""
        self.run.log({**self.marked(row), "step": row["step"]})

    def close(self) -> None:
        """Finish the run."""
        self.run.finish()


class TensorBoardTracker(Service):
    """TensorBoard event files; rows after a step to which the run went back are purged."""

    config: TensorBoard

    def open(self, step: int, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
        """Start an event file, and purge later steps."""
        first = not step
        self._start(None if first else step + 1)
        if first:
            if self.facts.description is not None:
                self.writer.add_text("description", self.facts.description, 0)
            for name, value in (("config", self.facts.config), ("run", self.properties)):
                text = json.dumps(value, indent=1, default=str)
                self.writer.add_text(name, f"```json\n{text}\n```", 0)

    def rewind(self, step: int, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
        """Purge later steps."""
        self.writer.close()
        self._start(step + 1)

    def write(self, row: dict[str, Any]) -> None:
        """Add the scalars of a row."""
        for name, value in scalars(row).items():
            self.writer.add_scalar(name, value, row["step"])

    def close(self) -> None:
        """Close the file."""
        self.writer.close()

    def _start(self, purge: int | None) -> None:
        tensorboard = importlib.import_module("torch.utils.tensorboard")
        folder = self.config.directory or str(self.run_directory.logs / "tensorboard")
        self.writer: Any = tensorboard.SummaryWriter(
            folder, purge_step=purge, flush_secs=self.config.flush_every
        )


class MlflowTracker(Service):
    """An MLflow tracking server or folder; a tag identifies the run."""

    config: Mlflow

    def open(self, step: int, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
        """Find the run of earlier sessions, or create it."""
        self.mlflow: Any = importlib.import_module("mlflow")
        config = self.config
        self.client: Any = self.mlflow.MlflowClient(tracking_uri=config.uri)
        if config.run_id is not None:
            self.run_id: str = config.run_id
            self.client.update_run(self.run_id, status="RUNNING")
            self.client.set_tag(self.run_id, ID_TAG, state["id"])
            return
        name = config.experiment or self.facts.experiment or PROJECT
        known = self.client.get_experiment_by_name(name)
        place = self._artifacts()
        experiment = known.experiment_id if known else self.client.create_experiment(name, place)
        same = self.client.search_runs([experiment], f"tags.`{ID_TAG}` = '{state['id']}'")
        if same:
            self.run_id = same[0].info.run_id
            self.client.update_run(self.run_id, status="RUNNING")
            return
        tags = {
            ID_TAG: state["id"],
            "setpoint.fingerprint": self.facts.fingerprint,
            "setpoint.run_directory": str(self.run_directory.path.resolve()),
            **({} if self.facts.description is None else {NOTE_TAG: self.facts.description}),
            **config.tags,
        }
        run = self.client.create_run(experiment, run_name=self.name, tags=tags)
        self.run_id = run.info.run_id
        param = self.mlflow.entities.Param
        params = [param(k, str(v)[:LONGEST]) for k, v in flat(self.facts.config).items()]
        for start in range(0, len(params), BATCH):
            self.client.log_batch(self.run_id, params=params[start : start + BATCH])
        self.client.log_dict(self.run_id, self.facts.config, "config.json")
        self.client.log_dict(self.run_id, self.properties, "run.json")

    def _artifacts(self) -> str | None:
        """Artifact folder of a new experiment, next to its database."""
        scheme, slashes, path = (self.config.uri or "").partition(":///")
        if not slashes or scheme == "file":
            return None
        return (Path(path).resolve().parent / "mlflow-artifacts").as_uri()

    def write(self, row: dict[str, Any]) -> None:
        """Log the scalars of a row."""
        now, step, metric = int(time.time() * 1000), row["step"], self.mlflow.entities.Metric
        metrics = [metric(name, value, now, step) for name, value in self.marked(row).items()]
        self.client.log_batch(self.run_id, metrics=metrics)

    def close(self) -> None:
        """End the session."""
        self.client.set_terminated(self.run_id)


class AimTracker(Service):
    """An Aim repository; Aim chooses the names of runs, so the name is stored in the logs.

    A re-logged step replaces its value.
    """

    config: Aim

    def open(self, step: int, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
        """Continue the run of earlier sessions, or create one."""
        aim, config = importlib.import_module("aim"), self.config
        repo = aim.Repo.from_path(config.repo or str(self.run_directory.logs), init=True)
        known = self.run_directory.logs / AIM_RUN
        name = _aim_name(known)
        name = name if name is not None and repo.run_exists(name) else None
        self.run: Any = aim.Run(
            run_hash=config.run_id or name,
            force_resume=True,  # a killed session has left its lock
            repo=repo,
            experiment=config.experiment or self.facts.experiment or PROJECT,
            system_tracking_interval=config.system_interval,
            log_system_params=config.system_parameters,
            capture_terminal_logs=config.terminal,
        )
        self.run.name = self.name
        if self.facts.description is not None:
            self.run.description = self.facts.description
        write_text(known, str(self.run.hash))
        self.run["config"], self.run["run"] = self.facts.config, self.properties
        for tag in config.tags:
            self.run.add_tag(tag)

    def write(self, row: dict[str, Any]) -> None:
        """Track the scalars of a row."""
        context = {"subset": row.get("kind", "train")}
        for name, value in scalars(row, kind=False).items():
            self.run.track(value, name=name, step=row["step"], context=context)

    def close(self) -> None:
        """Close the run."""
        self.run.close()


def _aim_name(path: Path) -> str | None:
    """The name from an earlier session; None if the file has none."""
    with suppress(OSError):
        if stat.S_ISREG(path.lstat().st_mode):
            with open(path, "rb", opener=not_linked) as file:
                name = file.read(LONGEST + 1)
            if re.fullmatch(rb"[\w-]{1,%d}" % LONGEST, name):
                return name.decode()
    return None


class TrackioTracker(Service):
    """Trackio, on this machine or in a Hugging Face Space."""

    config: Trackio

    def open(self, step: int, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
        """Start the run, or continue the run of earlier sessions."""
        if self.config.directory is not None:
            os.environ["TRACKIO_DIR"] = self.config.directory
        trackio = importlib.import_module("trackio")
        self.run: Any = trackio.init(
            project=self.project,
            name=self.config.run_id or f"{self.name}-{state['id'][:8]}",
            group=self.config.group,
            space_id=self.config.space,
            config={**self.facts.config, "setpoint": self.properties},
            resume="allow",
            embed=False,
        )

    def write(self, row: dict[str, Any]) -> None:
        """Log the scalars of a row."""
        self.run.log(self.marked(row), step=row["step"])

    def close(self) -> None:
        """Finish the run."""
        self.run.finish()


class CometTracker(Service):
    """Comet, online or with archives for `comet upload`."""

    config: Comet

    def open(self, step: int, state: Mapping[str, Any], note: Callable[[str], None]) -> None:
        """Start the experiment, or continue that of earlier sessions."""
        comet, config = importlib.import_module("comet_ml"), self.config
        self.run: Any = comet.start(
            workspace=config.workspace,
            project_name=self.project,
            experiment_key=config.run_id or state["id"],
            online=config.mode == "online",
            mode="get_or_create" if config.mode == "online" else "create",
            experiment_config=comet.ExperimentConfig(
                name=self.name,
                tags=list(config.tags) or None,
                # Its patch and repository URL would contain the secrets that ours hide.
                log_git_metadata=False,
                log_git_patch=False,
                offline_directory=None if config.mode == "online" else str(self._archive()),
            ),
        )
        self.run.log_parameters(self.facts.config)
        facts = self.properties
        del facts["origins"]
        # Comet truncates longer texts and prints each of them: those are lists of files.
        short = {name: text for name, text in flat(facts).items() if len(str(text)) <= 1000}
        self.run.log_others(short)
        self.run.log_asset_data(json.dumps(facts["environment"]), name="environment.json")

    def _archive(self) -> Path:
        """A folder for this session, because archives with the same key replace each other."""
        folder = Path(self.config.directory or self.run_directory.logs)
        archive = next(p for n in count(1) if not (p := folder / f"comet-{n}").exists())
        archive.mkdir(parents=True)
        return archive

    def write(self, row: dict[str, Any]) -> None:
        """Log the scalars of a row."""
        self.run.log_metrics(self.marked(row), step=row["step"], epoch=row.get("epoch"))

    def close(self) -> None:
        """End the experiment."""
        self.run.end()
