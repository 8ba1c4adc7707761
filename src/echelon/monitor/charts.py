"""Small SVG charts for a self-contained page. Pure."""

import math
from collections.abc import Sequence
from html import escape

_WIDTH = 640
_ROW = 22
_LABEL = 150


def bars(
    rows: Sequence[tuple[str, float]], *, unit: str = "", good: str = "", most: float | None = None
) -> str:
    """Return one bar per row; the row named `good` has another color."""
    whole = most or max((value for _, value in rows), default=0.0) or 1.0
    room = _WIDTH - _LABEL - 90
    parts = []
    for number, (name, value) in enumerate(rows):
        top, long = number * _ROW, room * min(1.0, max(0.0, value / whole))
        kind = "good" if name == good else "bar"
        middle = top + _ROW * 0.7
        parts.append(
            f'<text x="{_LABEL - 8}" y="{middle:.0f}" text-anchor="end">{escape(name)}</text>'
            f'<rect class="{kind}" x="{_LABEL}" y="{top + 3}" width="{long:.1f}" '
            f'height="{_ROW - 6}"/>'
            f'<text x="{_LABEL + long + 6:.0f}" y="{middle:.0f}">{_number(value)}'
            f"{escape(unit)}</text>"
        )
    return _svg(len(rows) * _ROW, parts)


def curve(points: Sequence[tuple[float, float]], *, height: int = 180) -> str:
    """Return a line through points, with minima and maxima at the axes."""
    points = [point for point in points if all(map(math.isfinite, point))]
    if not points:
        return ""
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    wide, tall = _WIDTH - 80, height - 30

    def place(x: float, y: float) -> str:
        across = (x - left) / (right - left) if right > left else 0.0
        up = (y - low) / (high - low) if high > low else 0.5
        return f"{70 + wide * across:.1f},{5 + tall * (1 - up):.1f}"

    line = " ".join(place(x, y) for x, y in points)
    parts = [
        f'<polyline class="line" points="{line}"/>',
        f'<text x="62" y="14" text-anchor="end">{_number(high)}</text>',
        f'<text x="62" y="{tall + 5}" text-anchor="end">{_number(low)}</text>',
        f'<text x="70" y="{height - 6}">{_number(left)}</text>',
        f'<text x="{_WIDTH - 10}" y="{height - 6}" text-anchor="end">{_number(right)}</text>',
    ]
    return _svg(height, parts)


def _svg(height: int, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {max(1, height)}" role="img">{"".join(parts)}</svg>'


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"
