"""What a search may propose, and what a proposal means."""

from __future__ import annotations

from setpoint.sweep.optuna_search import corners, optuna_axes, point_of

from .test_search import AXES


def test_corners_reach_every_limit_of_every_axis() -> None:
    found = [[item.plain() for item in point] for point in corners(AXES)]
    assert found == [[1e-4, 1, 4], [1.0, 1, 4], [1e-4, 3, 4], [1e-4, 1, 8]]


def test_proposals_become_points_that_read_well() -> None:
    params = {"optimizer.lr": 0.00123456789, "model.layers": 2, "batch.global_size": "8"}
    assert [item.plain() for item in point_of(AXES, params)] == [0.0012346, 2, 8]
    params["optimizer.lr"] = 1e-4 * (1 - 1e-9)
    assert point_of(AXES, params)[0].value == 1e-4
    assert list(optuna_axes(AXES)) == list(params)
