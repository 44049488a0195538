"""Draws throughput.svg from throughput.csv: python3 docs/figures/plot.py

One group of bars a kind of work, one panel a machine; tokens a second, more is better. The figures and how they were measured are in
docs/performance.md.
"""
from __future__ import annotations

import csv
import html
import itertools
import pathlib

HERE = pathlib.Path(__file__).parent
WIDTH, ROW, GAP, LEFT, RIGHT, TOP = 760, 15, 10, 190, 60, 46
COLOURS = {"Tally": "#1f6f8b", "llama.cpp": "#c9b79c"}


def text(x: float, y: float, words: str, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">{html.escape(words)}</text>'


def bars(row: dict[str, str], y: float, scale: float) -> list[str]:
    drawn = [text(LEFT - 8, y + ROW + 4, f"{row['model']}, {row['work']}", "end")]
    for i, (name, colour) in enumerate(COLOURS.items()):
        value, top = float(row[name]), y + i * ROW
        drawn.append(f'<rect x="{LEFT}" y="{top:.1f}" width="{value * scale:.1f}" height="{ROW - 1}" fill="{colour}"/>')
        drawn.append(text(LEFT + value * scale + 4, top + ROW - 4, f"{value:,.0f}"))
    return drawn


def draw(rows: list[dict[str, str]]) -> str:
    scale = (WIDTH - LEFT - RIGHT) / max(float(row[name]) for row in rows for name in COLOURS)
    y, drawn = TOP, [text(LEFT, 18, "Tokens a second, SmolLM2-135M-Instruct, 2 cores", weight="bold")]
    for i, (name, colour) in enumerate(COLOURS.items()):
        drawn.append(f'<rect x="{LEFT + 110 * i}" y="26" width="10" height="10" fill="{colour}"/>')
        drawn.append(text(LEFT + 110 * i + 15, 35, name))
    for machine, group in itertools.groupby(rows, key=lambda row: row["machine"]):
        drawn.append(text(8, y + 12, machine, weight="bold"))
        for row in group:
            drawn += bars(row, y, scale)
            y += 2 * ROW + GAP
        y += 2 * GAP
    style = 'font-family="sans-serif" font-size="11" fill="#222"'
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}" {style}>\n'
            f'<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(drawn) + "\n</svg>\n")


with open(HERE / "throughput.csv", newline="", encoding="utf-8") as figures:
    (HERE / "throughput.svg").write_text(draw(list(csv.DictReader(figures))), encoding="utf-8")
