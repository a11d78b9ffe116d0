"""Pictures of figures, as SVG and PNG. Needs matplotlib (.venv/plot)."""

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot, ticker  # noqa: E402  (after the choice of a back end)

# Ours are solid and dark, others dashed, what is published thin and grey-marked, the bound black dots.
OURS = ("#0b5394", "#b45f06", "#38761d", "#741b47", "#45818e", "#bf9000", "#674ea7", "#3d3d3d", "#783f04")
OTHERS = ("#cc0000", "#e69138", "#6aa84f", "#8e7cc3", "#c27ba0", "#76a5af")
STYLES = {
    "ours": {"linestyle": "-", "linewidth": 2.2, "marker": "o", "markersize": 5},
    "baseline": {"linestyle": "--", "linewidth": 1.3, "marker": "s", "markersize": 4},
    "published": {"linestyle": "--", "linewidth": 1.0, "marker": "x", "markersize": 5},
    "bound": {"linestyle": ":", "linewidth": 1.8, "marker": None, "color": "black"},
}


def plain(value, _):
    return f"{value:g}" if value < 1e5 else f"{value:.0e}".replace("e+0", "e")


def draw_lines(axes, figure):
    counts = {"ours": 0, "other": 0}
    for series in figure.series:
        style = dict(STYLES[series.role])
        if "color" not in style:
            kind, palette = ("ours", OURS) if series.role == "ours" else ("other", OTHERS)
            style["color"] = palette[counts[kind] % len(palette)]
            counts[kind] += 1
        axes.plot([x for x, _ in series.points], [y for _, y in series.points], label=series.label, **style)
    if figure.log_x:
        values = sorted({x for series in figure.series for x, _ in series.points})
        if values and values[0] <= 0:  # calls without tokens: 0 stands one step before the first count
            axes.set_xscale("symlog", base=2, linthresh=next((x for x in values if x > 0), 1))
        else:
            axes.set_xscale("log", base=2)
        if figure.kind == "lines" and len(values) <= 12:
            axes.set_xticks(values, [f"{x:g}" for x in values])
            axes.xaxis.minorticks_off()
        else:
            axes.xaxis.set_major_formatter(ticker.FuncFormatter(plain))
    if figure.log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(plain))
        axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    else:
        axes.set_ylim(bottom=0)
    axes.grid(True, alpha=0.3)


def draw_bars(axes, figure):
    names = []
    highest = 0
    for index, series in enumerate(figure.series):
        palette = OURS if series.role == "ours" else OTHERS
        colour = palette[index % len(palette)]
        positions = range(len(names), len(names) + len(series.points))
        bars = axes.bar(positions, [y for _, y in series.points], color=colour, label=series.label)
        axes.bar_label(bars, fmt="%.4g", padding=2)
        names += [name for name, _ in series.points]
        highest = max(highest, *(y for _, y in series.points))
    axes.set_xticks(range(len(names)), names)
    axes.set_ylim(0, 1.2 * highest)
    axes.grid(True, axis="y", alpha=0.3)


def draw(figure, folder, formats):
    """Writes folder/NAME.FORMAT for every format; the SVG names the digest of what it shows."""
    with pyplot.rc_context(
        {
            "svg.hashsalt": figure.name,
            "svg.fonttype": "none",
            "font.size": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    ):
        columns = 1 if len(figure.series) < 5 or max(len(series.label) for series in figure.series) > 56 else 2
        canvas, axes = pyplot.subplots(figsize=(8.2, 5.2 + 0.24 / columns * len(figure.series)), layout="constrained")
        (draw_bars if figure.kind == "bars" else draw_lines)(axes, figure)
        axes.set_title(figure.title, fontsize=11, loc="left", pad=20 if figure.note else 6)
        axes.set_xlabel(figure.x_label)
        axes.set_ylabel(figure.y_label)
        if figure.note:
            axes.text(0, 1.01, figure.note, transform=axes.transAxes, va="bottom", fontsize=8, style="italic")
        canvas.legend(loc="outside lower left", fontsize=8, frameon=False, ncols=columns)
        for one in formats:
            metadata = {"Date": None, "Description": f"digest {figure.digest}"} if one == "svg" else None
            canvas.savefig(folder / f"{figure.name}.{one}", dpi=110, metadata=metadata)
        pyplot.close(canvas)
