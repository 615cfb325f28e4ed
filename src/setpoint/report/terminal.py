"""A plot in the terminal."""

from __future__ import annotations

import math
from typing import Any

from setpoint.config import SetpointError

from .series import Plot

WIDTH, HEIGHT = 72, 18
COLOURS = ("cyan", "magenta", "yellow", "green", "red", "blue", "white")
MARKERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def chart(plot: Plot, width: int = WIDTH, height: int = HEIGHT, colour: bool = True) -> str:
    """Draw a plot in characters.

    Arguments:
        colour: whether the terminal shows colours; without them letters tell the runs apart.

    Raises:
        SetpointError: if plotille is not installed.
    """
    figure = _plotille().Figure()
    figure.width, figure.height = width, height
    figure.with_colors = colour
    scales = [plot.is_logarithmic(axis) for axis in (0, 1)]
    figure.x_label, figure.y_label = plot.x, plot.y
    figure.x_ticks_fkt = _ticks(scales[0])
    figure.y_ticks_fkt = _ticks(scales[1])
    for index, series in enumerate(plot.series):
        points = series.drawable()
        if not points:
            continue
        xs, ys = ([_scaled(point[axis], scales[axis]) for point in points] for axis in (0, 1))
        style: dict[str, Any] = {"label": series.label}
        if colour:
            style["lc"] = COLOURS[index % len(COLOURS)]
        elif len(plot.series) > 1:
            style["marker"] = MARKERS[index % len(MARKERS)]
        if plot.lines and len(points) > 1:
            figure.plot(xs, ys, **style)
        else:
            figure.scatter(xs, ys, **{"marker": "o", **style})
    if plot.linear:  # else there would be room below 0
        points = [point for series in plot.series for point in series.drawable()]
        figure.set_x_limits(min_=0, max_=max((x for x, _ in points), default=0) or 1)
        figure.set_y_limits(min_=0, max_=1.05 * max((y for _, y in points), default=0) or 1)
    text: str = figure.show(legend=True)
    return "\n".join([plot.title, *(line.rstrip() for line in text.splitlines())])


def _scaled(value: float, logarithmic: bool) -> float:
    return math.log10(value) if logarithmic else value


def _ticks(logarithmic: bool) -> Any:
    """Writes the numbers beside an axis, which stand for powers of ten where it is logarithmic."""

    def write(value: float, _: float) -> str:
        return f"{10**value:9.3g}" if logarithmic else f"{value:9.4g}"

    return write


def _plotille() -> Any:
    try:
        import plotille
    except ModuleNotFoundError as error:
        raise SetpointError(
            f"a chart in the terminal needs the package {error.name!r}: "
            f"pip install 'setpoint[plot]'"
        ) from None
    return plotille
