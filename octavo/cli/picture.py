"""Diagrams and bars as an SVG picture, drawn by matplotlib, which comes with the extra ``plots``."""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from octavo.cli.table import output_file
from octavo.core.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_INCHES = (5.0, 3.2)
BAR_INCHES = (7.5, 0.28)
LABEL_SHARE = 0.12  # of the longest bar: what a label takes
COLOUR, MARK = "#4c78a8", "#e45756"
# Text stays text; and a picture of the same figures is the same file, whenever it is drawn.
_SETTINGS: Any = {"svg.fonttype": "none", "svg.hashsalt": "octavo", "font.size": 9, "axes.grid": True}
_SETTINGS |= {"grid.color": "#ddd", "axes.axisbelow": True}

Point = tuple[float, float]
F = TypeVar("F", bound=Callable[..., Any])


class Panel(NamedTuple):
    """One diagram; ``curves``: name -> points. ``is_log``: x has a logarithmic scale; y begins at 0 in any case."""

    title: str
    x_label: str
    y_label: str
    curves: Mapping[str, Sequence[Point]]
    is_log: bool = False


class Bar(NamedTuple):
    """``published``: marks beside it, at the lowest and the highest, where there are any."""

    name: str
    value: float | None
    published: tuple[float, float] | None = None


def plot_option(shown: str) -> Callable[[F], F]:
    """The option ``--plot FILE``, which is refused at once where nothing could be drawn in the end."""

    def check(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
        if path is not None and path.suffix not in (".svg", ""):
            raise ConfigurationError(f"--plot draws SVG: name a file that ends in .svg, not {path.name}")
        if path is not None and find_spec("matplotlib") is None:
            raise ConfigurationError(
                "--plot needs matplotlib, which is not installed (pip install matplotlib, or Octavo's extra plots)"
            )
        return output_file(context, option, path)

    kind = click.Path(path_type=Path, dir_okay=False)
    return click.option("--plot", "plot_path", type=kind, callback=check, help=f"Draw {shown} to this SVG file.")


def draw_panels(panels: Sequence[Panel]) -> str:
    """The picture of these diagrams, side by side in two columns."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    num_rows = max(1, -(-len(panels) // 2))
    with mpl.rc_context(_SETTINGS):
        figure = Figure((2 * PANEL_INCHES[0], num_rows * PANEL_INCHES[1]), layout="constrained")
        for number, panel in enumerate(panels, 1):
            _draw_panel(figure.add_subplot(num_rows, 2, number), panel)
        return _svg(figure)


def draw_bars(title: str, bars: Sequence[Bar]) -> str:
    """The picture of these bars, from 0 to the longest, a row each."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_SETTINGS):
        figure = Figure((BAR_INCHES[0], 1 + BAR_INCHES[1] * len(bars)), layout="constrained")
        axes = figure.add_subplot()
        places = range(len(bars))
        axes.barh(places, [bar.value or 0.0 for bar in bars], color=COLOUR, label="here")
        widest = max((bar.value or 0.0 for bar in bars), default=0.0)
        for place, bar in enumerate(bars):
            if bar.value is not None:
                end = (_label_place(bar.value, bar.published, LABEL_SHARE * widest), place)
                axes.annotate(f"{bar.value:,.4g}", end, (4, 0), textcoords="offset points", va="center")
        published = [(place, *bar.published) for place, bar in enumerate(bars) if bar.published is not None]
        if published:
            at, low, high = zip(*published, strict=True)
            axes.hlines(at, low, high, linewidth=3, color=MARK)
            axes.scatter(low + high, at + at, marker="|", s=160, linewidths=3, color=MARK, label="published")
            axes.legend()
        axes.set_yticks(places, [bar.name for bar in bars])
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.set_title(title, weight="bold")
        return _svg(figure)


def _label_place(value: float, published: tuple[float, float] | None, width: float) -> float:
    """Right of the bar; right of the marks where they would go through a label of this width."""
    if published is None or published[1] < value or published[0] > value + width:
        return value
    return published[1]


def _draw_panel(axes: "Axes", panel: Panel) -> None:
    from matplotlib.ticker import FuncFormatter

    if panel.is_log:
        axes.set_xscale("log")
    for number, (name, points) in enumerate(panel.curves.items()):
        (line,) = axes.plot(*zip(*points, strict=True), label=name)
        line.set_gid(f"{panel.title} {number}")
    axes.xaxis.set_major_formatter(FuncFormatter(_plain))
    axes.yaxis.set_major_formatter(FuncFormatter(_plain))
    axes.set_ylim(bottom=0)
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
    axes.set_title(panel.title, weight="bold")
    axes.legend()


def _plain(tick: float, _position: int | None = None) -> str:
    """Three digits, or all before the point; no exponent."""
    return f"{tick:,.0f}" if tick >= 100 else f"{tick:.3g}"


def _svg(figure: "Figure") -> str:
    text = StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
