"""Plots as plain SVG: bars and lines on a logarithmic scale, readable on light and dark pages."""

import html
import math

WIDTH, LEFT, RIGHT, TOP = 760, 250, 90, 44
BAR, GAP = 22, 8
LINES_HEIGHT = 320
COLOURS = ("#2f6fb5", "#c4562e", "#3d8f5f", "#8a5fb0", "#a08a2a", "#5b6b7b")
OURS = COLOURS[0]
OTHERS = "#9aa5b1"
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#334}.title{font-size:15px;font-weight:600}"
    ".grid{stroke:#8884;stroke-width:1}.line{fill:none;stroke-width:2}"
    "@media(prefers-color-scheme:dark){text{fill:#dde}}"
)


def document(height, title, parts):
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
    named = f'<text class="title" x="12" y="24">{html.escape(title)}</text>'
    return "\n".join([head, f"<style>{STYLE}</style>", named, *parts, "</svg>"]) + "\n"


def short(number):
    """Three digits are as many as a figure has to say."""
    if number == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(number))))
    return f"{number:,.{digits}f}"


class Scale:
    """Powers of ten from just below the least to just above the greatest value."""

    def __init__(self, values, first, last):
        self.low = math.floor(math.log10(min(values)))
        self.high = max(math.ceil(math.log10(max(values))), self.low + 1)
        self.first, self.last = first, last

    def at(self, number):
        part = (math.log10(number) - self.low) / (self.high - self.low)
        return self.first + max(0, part) * (self.last - self.first)

    def ticks(self):
        return [10.0**power for power in range(self.low, self.high + 1)]


def bars(title, unit, entries):
    """`entries` are labels with positive values; those whose label begins with «Belljar» stand out."""
    height = TOP + len(entries) * (BAR + GAP) + 28
    scale = Scale([number for _, number in entries], LEFT, WIDTH - RIGHT)
    parts = []
    for tick in scale.ticks():
        x = scale.at(tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{height - 26}"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - 10}" text-anchor="middle">{tick:g}</text>')
    for row, (label, number) in enumerate(entries):
        y = TOP + row * (BAR + GAP)
        colour = OURS if label.startswith("Belljar") else OTHERS
        wide = max(scale.at(number) - LEFT, 2)
        plain = html.escape(label.replace("`", ""))
        parts.append(f'<text x="{LEFT - 8}" y="{y + 16}" text-anchor="end">{plain}</text>')
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{wide:.1f}" height="{BAR}" rx="3" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + wide + 6:.1f}" y="{y + 16}">{short(number)}</text>')
    return document(height, f"{title} ({unit}, logarithmic)", parts)


def lines(title, across, unit, series):
    """`series` has a list of points for each name; both axes are logarithmic."""
    points = [point for line in series.values() for point in line]
    left, bottom = 70, LINES_HEIGHT - 50
    xs = Scale([x for x, _ in points], left, WIDTH - 190)
    ys = Scale([y for _, y in points], bottom, TOP)
    parts = []
    for tick in ys.ticks():
        y = ys.at(tick)
        parts.append(f'<line class="grid" x1="{left}" y1="{y:.1f}" x2="{WIDTH - 190}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for x in sorted({x for x, _ in points}):
        parts.append(f'<text x="{xs.at(x):.1f}" y="{bottom + 18}" text-anchor="middle">{x:g}</text>')
    parts.append(f'<text x="{left}" y="{bottom + 38}">{html.escape(across)}</text>')
    for number, (name, line) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{xs.at(x):.1f},{ys.at(y):.1f}" for x, y in sorted(line))
        parts.append(f'<polyline class="line" stroke="{colour}" points="{path}"/>')
        parts += [f'<circle cx="{xs.at(x):.1f}" cy="{ys.at(y):.1f}" r="3" fill="{colour}"/>' for x, y in line]
        y = TOP + 16 + number * 20
        parts.append(f'<rect x="{WIDTH - 180}" y="{y - 10}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{WIDTH - 162}" y="{y}">{html.escape(name)}</text>')
    return document(LINES_HEIGHT, f"{title} ({unit}, logarithmic)", parts)
