from __future__ import annotations

from typing import Any, cast

from setpoint.train.callbacks.log import RecordCallback


def test_the_record_is_changed_once_and_not_before_the_first_update() -> None:
    calls: list[str] = []
    callback, anything = RecordCallback(lambda: calls.append("changed")), cast(Any, None)
    callback.start(anything)
    callback.finish(anything)
    callback.after_step(anything, anything)
    assert calls == []
    callback.after_first_step(anything, anything)
    assert calls == ["changed"]
