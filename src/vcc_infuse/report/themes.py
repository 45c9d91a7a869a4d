"""Plotly templates for a light and a dark page."""

from __future__ import annotations

from typing import Any

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"


def theme(text: str, grid: str, card: str, scale: list[str]) -> dict[str, Any]:
    """Colours of text, grid, hover labels and maps; the paper is the page's own."""
    axis = dict(gridcolor=grid, linecolor=grid, zerolinecolor=grid, tickcolor=grid, title=dict(font=dict(size=12)))
    clear = "rgba(0,0,0,0)"
    return {
        "layout": dict(
            paper_bgcolor=clear, plot_bgcolor=clear, xaxis=axis, yaxis=axis,
            font=dict(family=FONT, size=12, color=text),
            hoverlabel=dict(bgcolor=card, bordercolor=grid, font=dict(color=text, family=FONT)),
            coloraxis=dict(colorscale=[[i / (len(scale) - 1), tint] for i, tint in enumerate(scale)]),
            legend=dict(bgcolor=clear),
        )
    }  # fmt: skip


THEMES = {
    "light": theme("#3d4451", "#e6e8ec", "#ffffff", ["#f4f6fa", "#bcd3fb", "#5b93f5", "#1d4fc4", "#12306f"]),
    "dark": theme("#c3c9d4", "#2c323d", "#1b2029", ["#1b212c", "#1d3a74", "#2f63c9", "#6fa3ff", "#d6e5ff"]),
}
