"""The hockey stick: latency against throughput, one point a rate, as PNG and as one HTML page that needs nothing else."""

from collections.abc import Sequence
from html import escape
from io import StringIO
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from http_load.capacity import Bars
from http_load.stats import Latency, Summary

STYLE = (
    "body{font:15px system-ui;max-width:70rem;margin:2rem auto;padding:0 1rem}"
    "svg{width:100%;height:auto}td,th{padding:.2rem .8rem;text-align:right}"
)
HEADER = ("offered /s", "served /s", "tok/s out", "429", "failed", "TTFT p50", "p95", "p99", "ITL p50", "p95", "p99 (ms)")


def draw(points: Sequence[Summary], title: str, bars: Bars, stem: Path) -> None:
    """Write `stem`.png and `stem`.html. points: one for each run, in the order of the rates."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    figure.suptitle(title)
    ttft, itl = figure.subplots(1, 2)
    _panel(ttft, points, [point.ttft for point in points], "time to first token", bars.ttft_p99)
    _panel(itl, points, [point.itl for point in points], "time between events", bars.itl_p99)
    figure.savefig(stem.with_suffix(".png"), dpi=130)
    svg = StringIO()
    figure.savefig(svg, format="svg", metadata={"Date": None})
    stem.with_suffix(".html").write_text(_page(points, title, svg.getvalue()), encoding="utf-8")


def _panel(axes: Axes, points: Sequence[Summary], latencies: Sequence[Latency], label: str, bar: float) -> None:
    rates = [point.output_rate for point in points]
    for name in ("p50", "p95", "p99"):
        axes.plot(rates, [1e3 * getattr(latency, name) for latency in latencies], marker="o", label=name)
    for point, rate, latency in zip(points, rates, latencies, strict=True):
        axes.annotate(
            f"{point.offered_rate:.2g}/s", (rate, 1e3 * latency.p99), textcoords="offset points", xytext=(0, 6), ha="center", fontsize=8
        )
    axes.axhline(1e3 * bar, color="gray", linestyle="--", linewidth=1, label=f"bar {1e3 * bar:.0f} ms")
    axes.set(xlabel="tokens out a second", ylabel=f"{label}, ms", yscale="log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")
    axes.grid(alpha=0.3)
    axes.legend()


def _page(points: Sequence[Summary], title: str, svg: str) -> str:
    head = "".join(f"<th>{cell}</th>" for cell in HEADER)
    rows = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in _cells(point))}</tr>" for point in points)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style><h1>{escape(title)}</h1>'
        f"{svg[svg.index('<svg') :]}<table><tr>{head}</tr>{rows}</table></html>\n"
    )


def _cells(point: Summary) -> tuple[str, ...]:
    latencies = (f"{1e3 * value:,.1f}" for latency in (point.ttft, point.itl) for value in (latency.p50, latency.p95, latency.p99))
    rates = (f"{point.offered_rate:.2f}", f"{point.served_rate:.2f}", f"{point.output_rate:.1f}")
    return (*rates, str(point.refused), str(point.failed), *latencies)
