"""A plot in a file."""

from __future__ import annotations

import os
from pathlib import Path

from setpoint.config import RunError, SetpointError
from setpoint.files.atomic import replacing

from .series import Plot

SUFFIXES = (".png", ".svg")
LEGEND = 12  # labels that a legend has room for


def refuse_suffix(path: str) -> None:
    """Refuse a file of a kind that cannot be drawn.

    Raises:
        SetpointError: if its suffix is another one, or its folder is not there.
    """
    if not path.lower().endswith(SUFFIXES):
        raise SetpointError(f"{path}: a plot is written to a file that ends in .png or .svg")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise SetpointError(f"{path}: there is no folder {folder}")


def save(plot: Plot, path: str) -> None:
    """Draw a plot into a file, which is replaced in one step.

    Arguments:
        path: a `.png` or `.svg` file.

    Raises:
        SetpointError: if matplotlib is not installed, or the file has another suffix.
        RunError: if it cannot be written.
    """
    refuse_suffix(path)
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise SetpointError(
            f"a plot needs the package {error.name!r}: pip install 'setpoint[plot]'"
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
    if 1 <= len(plot.series) <= LEGEND:
        axes.legend(fontsize="small")
    try:
        with replacing(Path(path)) as staged:
            figure.savefig(staged, format=path.lower().rpartition(".")[2], dpi=150)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}") from error
