"""The section `[tracking]`: logging, progress and trackers."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import ClassVar, Literal

from setpoint.config import RUNTIME, Caution, Config, Problem, Rule, Secret, field, rule
from setpoint.units import Period

NO_METRICS = "no-metrics-file"
NO_LOGIN = "wandb-without-login"
OPEN_PORT = "prometheus-beyond-loopback"
NORMS = ("grad_norms", "param_norms", "update_ratios")
ENVIRONMENT = "environment.json"
"""File in the run directory: code, packages and machine."""
MARK = ".identity-"
"""Prefix of the empty file in a run directory that identifies the run without its record."""


class TrackerConfig(Config, role=RUNTIME):
    """Tracker (logger): each receives every row of metrics."""


class Jsonl(TrackerConfig, type="jsonl", owner="setpoint.track.jsonl:JsonlTracker", role=RUNTIME):
    """`metrics.jsonl` in the run directory: one row per line, at full precision."""


class Csv(TrackerConfig, type="csv", owner="setpoint.track.csv_file:CsvTracker", role=RUNTIME):
    """`logs/train.csv` and `logs/evaluation.csv` in the run directory: one row per line."""


class Prometheus(
    TrackerConfig,
    type="prometheus",
    owner="setpoint.ops.prometheus:PrometheusTracker",
    role=RUNTIME,
):
    """HTTP endpoint `/metrics` of the main rank, with the newest rows in Prometheus' format."""

    port: int = field(default=9464, ge=0, le=65535)
    """Port; 0: any free port, which the run shows."""
    address: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0: all interfaces, reachable from the network."""

    @rule(cautions={OPEN_PORT: "the Prometheus endpoint can be reached from other machines"})
    def _check_address(self) -> Iterator[Caution]:
        if not self.address.startswith("127.") and self.address not in ("localhost", "::1"):
            yield Caution(
                OPEN_PORT,
                "address",
                "lets anyone who can reach this address read the metrics and the name of the run, "
                "without a password",
                hint="Keep 127.0.0.1 and connect through an SSH tunnel or a proxy.",
            )


class ServiceConfig(TrackerConfig, role=RUNTIME):
    """Tracker of a third-party service, run in a separate thread that never stops training."""

    package: ClassVar[tuple[str, str]]
    """Required module and its package."""
    extra: ClassVar[str]
    """Extra of Setpoint that installs them."""

    queue: int = field(default=10_000, ge=1)
    """Maximum number of queued rows; further ones are dropped, counted and reported."""
    patience: float = field(default=30.0, gt=0, lt=inf)
    """Seconds to wait for unsent rows at the end of a session, and for the service at its start if
    `required`."""
    required: bool = False
    """Fail the run at its start if the service cannot be opened, for example without a login;
    false: train without it."""

    def packages(self) -> Iterator[tuple[str, str]]:
        """Modules that the tracker needs as configured, with their packages."""
        yield self.package


MISSING = Rule("setpoint.track.services:missing_problems", "A package that is not installed")


class TensorBoard(
    ServiceConfig,
    type="tensorboard",
    owner="setpoint.track.services:TensorBoardTracker",
    role=RUNTIME,
    rules=(MISSING,),
):
    """Event files of TensorBoard."""

    package = ("tensorboard", "tensorboard")
    extra = "tensorboard"

    directory: str | None = None
    """Directory of the event files; null: logs/tensorboard in the run directory."""
    flush_every: float = field(default=30.0, gt=0, lt=inf)
    """Interval in seconds at which events are written to the file."""


class Wandb(
    ServiceConfig,
    type="wandb",
    owner="setpoint.track.services:WandbTracker",
    role=RUNTIME,
    rules=(
        MISSING,
        Rule(
            "setpoint.track.services:login_problems",
            "A missing login for Weights & Biases",
            needs="files",
            when=lambda section: section.mode == "online",
            cautions={NO_LOGIN: "Weights & Biases has no login on this machine"},
        ),
    ),
):
    """Weights & Biases. The run keeps its id on resume; credentials come from `wandb login`."""

    package = ("wandb", "wandb")
    extra = "wandb"

    project: str | None = None
    """Project; null: the job's experiment, else "setpoint"."""
    entity: str | None = None
    """Team or user; null: the login's."""
    group: str | None = None
    """Group in which the run is shown."""
    name: str | None = None
    """Display name; null: the name of the run directory."""
    job_type: str | None = None
    """Job type: a label for filtering."""
    tags: tuple[str, ...] = ()
    """Tags."""
    run_id: str | None = field(default=None, pattern=r"[^/\\#?%:]{1,128}")
    """Id of the run to resume, or to create; null: the run directory's own."""
    mode: Literal["online", "offline"] = "online"
    """offline: written to disk for `wandb sync`."""
    directory: str | None = None
    """Directory of its local files; null: logs in the run directory."""


class Mlflow(
    ServiceConfig,
    type="mlflow",
    owner="setpoint.track.services:MlflowTracker",
    role=RUNTIME,
    rules=(MISSING,),
):
    """MLflow: a tracking server, a database or a folder."""

    package = ("mlflow", "mlflow")
    extra = "mlflow"

    uri: str | None = None
    """Tracking URI; null: MLFLOW_TRACKING_URI of the environment, else MLflow's own default."""
    experiment: str | None = None
    """Experiment; null: the job's, else "setpoint"."""
    name: str | None = None
    """Display name; null: the name of the run directory."""
    tags: dict[str, str] = field(factory=dict)
    """Tags with their values."""
    run_id: str | None = None
    """Id of an existing run to continue; null: the run directory's own."""


class Aim(
    ServiceConfig,
    type="aim",
    owner="setpoint.track.services:AimTracker",
    role=RUNTIME,
    rules=(MISSING,),
):
    """Aim: a repository in a folder or on a server."""

    package = ("aim", "aim")
    extra = "aim"

    repo: str | None = None
    """Folder or address of the repository; null: logs in the run directory."""
    experiment: str | None = None
    """Experiment; null: the job's, else "setpoint"."""
    name: str | None = None
    """Display name; null: the name of the run directory."""
    tags: tuple[str, ...] = ()
    """Tags."""
    run_id: str | None = None
    """Hash of an existing run to continue; null: the run directory's own."""
    system_interval: float | None = field(default=10.0, gt=0, lt=inf)
    """Seconds between samples of system utilization; null: none."""
    system_parameters: bool = True
    """Record packages, environment variables and the command line."""
    terminal: bool = False
    """Record the terminal output of the process."""

    def packages(self) -> Iterator[tuple[str, str]]:
        yield self.package
        if self.system_parameters:
            yield ("pkg_resources", "setuptools<81")


class Trackio(
    ServiceConfig,
    type="trackio",
    owner="setpoint.track.services:TrackioTracker",
    role=RUNTIME,
    rules=(MISSING,),
):
    """Trackio: a local database, or a Hugging Face Space."""

    package = ("trackio", "trackio")
    extra = "trackio"

    project: str | None = None
    """Project; null: the job's experiment, else "setpoint"."""
    name: str | None = None
    """Display name, to which part of the run's id is appended; null: the name of the run
    directory."""
    run_id: str | None = None
    """Full name of the run to resume, or to create; null: the one from `name`."""
    group: str | None = None
    """Group in which the run is shown."""
    space: str | None = None
    """Hugging Face Space that shows the run; null: this machine only."""
    directory: str | None = None
    """Directory of the database; null: TRACKIO_DIR of the environment, else Trackio's own."""


class Comet(
    ServiceConfig,
    type="comet",
    owner="setpoint.track.services:CometTracker",
    role=RUNTIME,
    rules=(MISSING,),
):
    """Comet. Credentials come from the environment or `comet login`."""

    package = ("comet_ml", "comet-ml")
    extra = "comet"

    workspace: str | None = None
    """Workspace; null: the default of the login."""
    project: str | None = None
    """Project; null: the job's experiment, else "setpoint"."""
    name: str | None = None
    """Display name; null: the name of the run directory."""
    tags: tuple[str, ...] = ()
    """Tags."""
    run_id: str | None = field(default=None, pattern=r"[A-Za-z0-9]{32,50}")
    """Key of the experiment to resume, or to create; null: the run directory's own."""
    mode: Literal["online", "offline"] = "online"
    """offline: archives for `comet upload`, one per session."""
    directory: str | None = None
    """Directory of offline archives; null: logs in the run directory."""


class Metrics(Config, role=RUNTIME):
    """Optional metrics of a row."""

    step_time: Literal["host", "waits", "device", "none"] = "host"
    """Seconds and shares of the parts of a step. host: wall-clock time of the main rank; waits: in
    addition, the time that forward, backward and optimizer spend waiting for other ranks counts as
    communication; device: the same, measured with CUDA events (needs a GPU)."""

    memory: bool = True
    """Peak memory of the process and, on a GPU, of its tensors."""

    ema: float | None = field(default=None, ge=0, lt=1)
    """Decay of an exponential moving average of the loss: weight of the past; null: none."""

    grad_norms: tuple[Literal["groups", "layers"], ...] = ()
    """Gradient norms before clipping, besides the model's: per optimizer group, per layer."""

    param_norms: tuple[Literal["model", "groups", "layers"], ...] = ()
    """Norms of trained weights."""

    update_ratios: tuple[Literal["model", "groups", "layers"], ...] = ()
    """Norm of a step's update of the weights divided by the norm of the weights before the step."""

    @rule
    def _check_norms(self) -> Iterator[Problem]:
        for name in NORMS:
            chosen = getattr(self, name)
            for index, norm in enumerate(chosen):
                if norm in chosen[:index]:
                    yield Problem(f"{name}.{index}", f"duplicate: {norm}", hint="Remove one.")


class System(
    Config,
    owner="setpoint.ops.rank_health:SystemCallback",
    role=RUNTIME,
    rules=(Rule("setpoint.track.services:psutil_problems", "A package that is not installed"),),
):
    """System utilization, sampled in a thread: `logs/system.jsonl`, and rows for the trackers."""

    every: float = field(default=15.0, ge=0.1, lt=inf)
    """Seconds between samples."""
    ranks: Literal["main", "all"] = "main"
    """Ranks to sample. all: each rank samples its process and GPU, into `logs/system-rank-N.jsonl`;
    main: the main rank only."""


class AlertConfig(Config, role=RUNTIME):
    """Alert: sends events of a run from a thread that never stops or slows training."""

    events: tuple[
        Literal["finished", "failed", "stopped", "spike", "non_finite", "stalled"], ...
    ] = ("finished", "failed", "stopped", "spike", "non_finite", "stalled")
    """Events to send. stopped: the run ended early and can be resumed; spike, non_finite: a step
    was skipped or rolled back; stalled: no step for `stalled_after`."""
    stalled_after: float = field(default=1800.0, gt=0, lt=inf)
    """Seconds without a completed step after which the run counts as stalled; evaluations and
    checkpoints are included."""
    timeout: float = field(default=10.0, gt=0, lt=inf)
    """Timeout of each attempt in seconds."""

    @rule
    def _check_events(self) -> Iterator[Problem]:
        if not self.events:
            yield Problem("events", "is empty: nothing would be sent", hint="Remove the alert.")


class Webhook(AlertConfig, type="webhook", owner="setpoint.ops.alerts:WebhookAlert", role=RUNTIME):
    """Posts JSON to a URL."""

    url: Secret
    """Reference to the URL, `env:NAME` or `file:PATH`: anyone who knows it can post there."""
    headers: dict[str, Secret] = field(factory=dict)
    """HTTP headers, such as `Authorization`, with references to their values."""
    body: dict[str, str] = field(factory=dict)
    """The JSON body; `{event}`, `{message}` and other facts in its values are filled in;
    empty: all facts."""
    retries: int = field(default=2, ge=0)
    """Number of retries, after 1, 2, 4, ... seconds."""


class AlertCommand(
    AlertConfig, type="command", owner="setpoint.ops.alerts:CommandAlert", role=RUNTIME
):
    """Runs a program."""

    command: tuple[str, ...]
    """The program and its arguments; no shell. It receives the facts as JSON on standard input, and
    in variables such as SETPOINT_ALERT_EVENT."""

    @rule
    def _check_command(self) -> Iterator[Problem]:
        if not self.command:
            yield Problem("command", "is empty", hint="Name a program and its arguments.")


class Tracking(Config, role=RUNTIME):
    """Logging, progress and trackers."""

    every: Period = field(default=Period("10 steps"), tags=("cadence",))
    """Logging interval (log_every): how often metrics are written and shown."""

    progress: Literal["auto", "bar", "lines", "none"] = "auto"
    """Progress display. auto: a bar on a terminal, lines elsewhere."""

    trackers: tuple[TrackerConfig, ...] = field(factory=lambda: (Jsonl(),))
    """Trackers (loggers) of metrics; an empty list logs nothing."""

    report: bool = True
    """Write report.html, as `setpoint report` does, into the run directory at the end of a run."""
    metrics: Metrics = field(factory=Metrics)
    """Metrics of each row."""

    system: System | None = None
    """Use of CPU, memory, disk, network and GPU; null: not sampled."""

    alerts: tuple[AlertConfig, ...] = ()
    """Alerts: messages about the end, failures, spikes and stalls of the run."""

    flops: Literal["palm", "palm_causal", "all_parameters"] = "palm"
    """FLOPs per token for MFU. palm: 6 N + 12 L H Q S, N being the parameters of matrix products;
    palm_causal: half the attention term; all_parameters: N being all parameters."""

    peak_flops: float | None = field(default=None, gt=0, lt=inf)
    """Peak FLOPS of one device for MFU; null: the vendor's number for bf16, where known."""

    @rule
    def _check_trackers(self) -> Iterator[Problem]:
        writers = [
            index for index, tracker in enumerate(self.trackers) if isinstance(tracker, Jsonl)
        ]
        for index in writers[1:]:
            yield Problem(
                f"trackers.{index}",
                f"writes metrics.jsonl, as tracker {writers[0]} does; each row would be written "
                "twice",
                hint="Remove one of them.",
            )

    @rule(cautions={NO_METRICS: "trackers replace the one that writes metrics.jsonl"})
    def _check_metrics(self) -> Iterator[Caution]:
        if self.trackers and not any(isinstance(tracker, Jsonl) for tracker in self.trackers):
            yield Caution(
                NO_METRICS,
                "trackers",
                "no tracker writes metrics.jsonl, which `setpoint compare` and searches read",
                hint="Keep both with --tracking.trackers.append jsonl.",
            )
