"""Line plots as PNG or SVG files, and in the terminal."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from setpoint.config import RunError, SetpointError
from setpoint.files.atomic import replacing

SUFFIXES = (".png", ".svg")
MAX_LABELS = 12
"""Maximum number of labels in a legend."""
WIDTH, HEIGHT = 72, 18
"""Size of a plot in the terminal in characters."""
TINY = 1e-300
"""Largest range that a plot in the terminal shows as 0."""
COLOURS = ("cyan", "magenta", "yellow", "green", "red", "blue", "white")
MARKERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""Markers of series without colour."""


class Series(NamedTuple):
    """The points of one run."""

    label: str
    points: Sequence[tuple[float, float]]

    def drawable(self) -> list[tuple[float, float]]:
        """The finite points."""
        return [pair for pair in self.points if all(map(math.isfinite, pair))]


class Plot(NamedTuple):
    """A plot; `linear` means axes from 0, whatever the range."""

    title: str
    x: str
    y: str
    series: Sequence[Series]
    lines: bool = True
    linear: bool = False

    def is_logarithmic(self, axis: int) -> bool:
        """True for positive values that span more than a factor of 30."""
        values = [pair[axis] for series in self.series for pair in series.drawable()]
        if self.linear or (self.lines and axis == 0):
            return False  # steps are counted, not multiplied
        return bool(values) and min(values) > 0 and max(values) / min(values) > 30


def refuse_suffix(path: str) -> None:
    """Refuse a file to which a plot cannot be written.

    Raises:
        SetpointError: the suffix is unsupported, or the folder is missing.
    """
    if not path.lower().endswith(SUFFIXES):
        raise SetpointError(f"{path}: a plot is written to a file that ends in .png or .svg")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise SetpointError(f"{path}: there is no folder {folder}")


def save(plot: Plot, path: str) -> None:
    """Draw a plot into a `.png` or `.svg` file, atomically.

    Raises:
        SetpointError: matplotlib is not installed, or the suffix is unsupported.
        RunError: the file cannot be written.
    """
    refuse_suffix(path)
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise SetpointError(
            "a plot needs the package matplotlib: pip install 'setpoint[plot]'"
        ) from None
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set(title=plot.title, xlabel=plot.x, ylabel=plot.y)
    for axis, scale in ((0, axes.set_xscale), (1, axes.set_yscale)):
        if plot.is_logarithmic(axis):
            scale("log")
    for series in plot.series:
        points = series.drawable()
        xs, ys = [x for x, _ in points], [y for _, y in points]
        axes.plot(xs, ys, "-" if plot.lines and len(points) > 1 else "o", label=series.label)
    axes.grid(alpha=0.3)
    if 1 <= len(plot.series) <= MAX_LABELS:
        axes.legend(fontsize="small")
    try:
        with replacing(Path(path)) as staged:
            figure.savefig(staged, format=path.lower().rpartition(".")[2], dpi=150)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}") from error


BLOCKS = "▁▂▃▄▅▆▇█"


def blocks(values: list[float], width: int, limits: tuple[float, float] | None = None) -> str:
    """Draw a curve of at least one value, all finite, as a sparkline of means.

    The limits are the values of the lowest and the highest block; by default those of the curve.
    """
    count = min(width, len(values))
    cuts = [round(index * len(values) / count) for index in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts) if b > a]
    low, high = limits or (min(values), max(values))
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    line = "".join(BLOCKS[round((mean - low) * scale)] for mean in means)
    return f"{line}  {min(values):.4g} to {max(values):.4g}"


def chart(plot: Plot, width: int = WIDTH, height: int = HEIGHT, colour: bool = True) -> str:
    """Draw a plot in characters, with letters as markers if there is no colour.

    Raises:
        SetpointError: plotille is not installed.
    """
    try:
        import plotille
    except ModuleNotFoundError:
        raise SetpointError(
            "a chart in the terminal needs the package plotille: pip install 'setpoint[plot]'"
        ) from None
    figure: Any = plotille.Figure()
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
        xs, ys = (
            [math.log10(point[axis]) if scales[axis] else point[axis] for point in points]
            for axis in (0, 1)
        )
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
        right, top = (max((point[axis] for point in points), default=0) for axis in (0, 1))
        # In a subnormal range, a dot would have no height.
        figure.set_x_limits(min_=0, max_=right if right > TINY else 1)
        figure.set_y_limits(min_=0, max_=1.05 * top if top > TINY else 1)
    text: str = figure.show(legend=True).replace("()", "  ")  # an axis without a name
    return "\n".join([plot.title, *(line.rstrip() for line in text.splitlines())])


def _ticks(logarithmic: bool) -> Any:
    """A formatter of axis labels."""

    def write(value: float, _: float) -> str:
        return f"{10**value:9.3g}" if logarithmic else f"{value:9.4g}"

    return write
