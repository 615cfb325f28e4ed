"""Shows and records what has happened to uploads in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING

from setpoint.train.loop import Callback, Phase
from setpoint.train.record.uploading import report_uploads

if TYPE_CHECKING:
    from setpoint.checkpoint.uploads import Uploads
    from setpoint.track.events import EventLog
    from setpoint.track.progress import Progress
    from setpoint.train.loop import Loop, StepResult


class UploadCallback(Callback):
    """Notes and records uploads and failed ones after the step in which they have ended."""

    phase = Phase.LAST

    def __init__(self, uploads: Uploads, events: EventLog, progress: Progress) -> None:
        self.uploads, self.events, self.progress = uploads, events, progress

    def after_step(self, loop: Loop, result: StepResult) -> None:
        """Report what there is."""
        report_uploads(self.uploads.reports(), self.events, self.progress)
