"""Inline SVG figures: memory over the run, and memory by category around the peak. No script, no network."""

from __future__ import annotations

from html import escape

from opentrn.explorer import units
from opentrn.trace.memory import Stack, Timeline
from opentrn.trace.schema import CATEGORIES

WIDTH, HEIGHT = 860, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 12, 10, 26

# Distinct in light and dark and to the colour-blind (Okabe and Ito's palette, plus greys).
COLOURS = {
    "parameter": "#0072b2",
    "gradient": "#d55e00",
    "optimizer state": "#009e73",
    "activation": "#e69f00",
    "temporary": "#cc79a7",
    "input": "#56b4e9",
    "buffer": "#8c6d1f",
    "kv cache": "#f0e442",
    "other": "#999999",
}
# Bottom to top: what stays longest lies lowest.
_ORDER = (
    "parameter",
    "buffer",
    "optimizer state",
    "gradient",
    "kv cache",
    "input",
    "activation",
    "temporary",
    "other",
)
assert set(_ORDER) == set(CATEGORIES)


class _Scale:
    """Maps virtual time (ns) and bytes to the drawing area."""

    def __init__(self, first: int, last: int, top: int) -> None:
        self._first, self._span, self._top = first, max(last - first, 1), max(top, 1)

    def x(self, time: int) -> float:
        return _LEFT + (time - self._first) / self._span * (WIDTH - _LEFT - _RIGHT)

    def y(self, allocated: int) -> float:
        return HEIGHT - _BOTTOM - allocated / self._top * (HEIGHT - _TOP - _BOTTOM)

    def points(self, times: list[int], values: list[int]) -> list[str]:
        """SVG points "x,y" of a line."""
        return [f"{self.x(time):.1f},{self.y(value):.1f}" for time, value in zip(times, values, strict=True)]

    def axes(self) -> str:
        """Grid lines with labels: four of bytes, five of time."""
        lines = []
        for i in range(5):
            value = self._top * i // 4
            y = self.y(value)
            lines.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            lines.append(
                f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{units.size(value)}</text>'
            )
        for i in range(5):
            time = self._first + self._span * i // 4
            anchor = "end" if i == 4 else "start" if i == 0 else "middle"
            place = f'x="{self.x(time):.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}"'
            lines.append(f"<text {place}>{units.time(time)}</text>")
        return "".join(lines)


def _figure(body: str, label: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">{body}</svg>'


def memory_timeline(timeline: Timeline, capacity: int) -> str:
    """Allocated memory over virtual host time; the capacity is drawn where it is near enough to matter."""
    if not timeline.times:
        return ""
    top = max(timeline.allocated)
    near = 0 < capacity < 2 * top
    scale = _Scale(timeline.times[0], timeline.times[-1], max(top, capacity) if near else top)
    points = scale.points(timeline.times, timeline.allocated)
    ground, first, last = scale.y(0), scale.x(timeline.times[0]), scale.x(timeline.times[-1])
    area = " ".join([f"{first:.1f},{ground:.1f}", *points, f"{last:.1f},{ground:.1f}"])
    body = f'{scale.axes()}<polygon class="area" points="{area}"/>'
    body += f'<polyline class="line" points="{" ".join(points)}"/>'
    if near:
        y = scale.y(capacity)
        body += f'<line class="capacity" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return _figure(body, "Allocated device memory over virtual time")


def memory_stack(stack: Stack) -> str:
    """Memory by category over the step that holds the peak."""
    if not stack.times:
        return ""
    present = [name for name in _ORDER if any(stack.categories.get(name, ()))]
    below = [0] * len(stack.times)
    levels = {}
    for name in present:
        above = [low + value for low, value in zip(below, stack.categories[name], strict=True)]
        levels[name] = (below, above)
        below = above
    scale = _Scale(stack.times[0], stack.times[-1], max(below, default=1))
    body = scale.axes()
    for name in present:
        low, high = levels[name]
        points = " ".join(scale.points(stack.times, high) + scale.points(stack.times, low)[::-1])
        body += f'<polygon fill="{COLOURS[name]}" points="{points}"><title>{escape(name)}</title></polygon>'
    return _figure(body, "Device memory by category around its peak")


def legend(names: list[str]) -> str:
    """Colour keys for the categories that appear."""
    keys = "".join(
        f'<span><i style="background:{COLOURS[name]}"></i>{escape(name)}</span>'
        for name in _ORDER
        if name in names
    )
    return f'<p class="legend">{keys}</p>'
