"""--export of fix-labels: the suspects of the review folder, written for other tools."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from pathlib import Path

from exempla.cli.shared.console import Console

__all__ = ["TOOLS", "export_for_tools", "tools"]

TOOLS = ("label-studio", "fiftyone", "cleanlab", "spotlight")


def tools(text: str) -> tuple[str, ...]:
    """Names of tools, separated by commas.

    >>> tools("label-studio, cleanlab")
    ('label-studio', 'cleanlab')
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in TOOLS]
    if unknown or not names:
        what = repr(unknown[0]) if unknown else "nothing"
        raise ArgumentTypeError(f"{what} is no tool; give some of {', '.join(TOOLS)}")
    return names


def export_for_tools(console: Console, options: Namespace, folder: Path) -> None:
    """Write what was asked for, and say where it is."""
    if not options.export:
        return
    from exempla.review import read_review
    from exempla.review.exchange import export_review_items

    for tool, path in export_review_items(read_review(folder), folder, options.export).items():
        console.say(f"  {path}  the suspects, for {tool}")
