"""Decide about suspicious labels, row by row, on a local page.

DIR is a folder that `exempla fix-labels` wrote. Every decision is saved at once. Export the
corrected file from the page, or with --export.
"""

from __future__ import annotations

import json
import re
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from exempla.cli.console import Console, plain
from exempla.cli.options import completed

HELP = "decide about suspicious labels in your browser, and export the corrected file"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the folder, the server and the exports."""
    folder = parser.add_argument(
        "folder", metavar="DIR", type=Path, help="the folder that exempla fix-labels wrote"
    )
    completed(folder, "DIRECTORY")
    parser.add_argument(
        "--port", type=int, default=0, help="port on 127.0.0.1 (default: any free one)"
    )
    parser.add_argument(
        "--no-browser", action="store_true", help="print the address and open no browser"
    )
    parser.add_argument("--export", action="store_true", help="write the corrected file and exit")
    back = parser.add_argument(
        "--import",
        metavar="FILE",
        type=Path,
        dest="import_from",
        help="import decisions from Label Studio (JSON) or FiftyOne (CSV), and exit",
    )
    completed(back, "FILE")
    parser.add_argument(
        "--stop-below",
        metavar="SHARE",
        type=float,
        help="tell you to stop when spot checks show that at most this share of all rows is still "
        "wrong (default: 0.01, or the last value used)",
    )
    parser.add_argument(
        "--recover",
        action="store_true",
        help="recover the readable part of a damaged decisions.sqlite; the damaged file is kept",
    )
    parser.add_argument("--quiet", action="store_true", help="print only the address")
    parser.add_argument(
        "--json", action="store_true", help="print the address, or what --export wrote, as JSON"
    )


def run(options: Namespace) -> int:
    """Serve the page, export, import, or recover the log."""
    console = Console.of(options)
    if options.recover:
        return _recover(options, console)
    if options.import_from is not None:
        return _import(options, console)
    return _export(options, console) if options.export else _serve(options, console)


def _recover(options: Namespace, console: Console) -> int:
    """Rebuild a damaged log from its readable events and keep the damaged file."""
    from exempla.review import read_review
    from exempla.review.log import recover_log

    found = recover_log(read_review(options.folder).directory / "decisions.sqlite")
    if found.kept is None:
        console.say("decisions.sqlite is not damaged; there is nothing to recover.")
    else:
        console.say(f"Recovered {found.events:,} events into decisions.sqlite.")
        console.say(f"  {found.kept}  the damaged file, unchanged")
    kept = None if found.kept is None else str(found.kept)
    console.result({"events": found.events, "kept": kept})
    return 0


def _import(options: Namespace, console: Console) -> int:
    """Import decisions that were made in another tool."""
    from exempla.review import read_review
    from exempla.review.integrations import import_decisions

    found = import_decisions(read_review(options.folder), options.import_from)
    console.say(f"Imported {found.written:,} decisions; {found.known:,} were known already.")
    if found.kept:
        few = ", ".join(found.kept[:5]) + (", …" if len(found.kept) > 5 else "")
        console.warn(f"{len(found.kept):,} rows keep an earlier, different decision: {few}.")
    console.result({"written": found.written, "known": found.known, "kept": list(found.kept)})
    return 0


def _export(options: Namespace, console: Console) -> int:
    """Write decisions.json, patch.csv and the corrected data."""
    from exempla.errors import ExemplaError
    from exempla.review import read_review
    from exempla.review.export import export_review

    made = export_review(read_review(options.folder))
    if made.problem:
        raise ExemplaError(made.problem)
    console.say(f"{len(made.decisions):,} decisions, {made.changed:,} of them change the data.")
    if made.corrected is not None:
        console.say(f"  {made.corrected}  the corrected data")
    console.say(f"  {options.folder / 'patch.csv'}  the changes")
    if made.elsewhere:
        console.warn(made.elsewhere)
    found = {"decisions": len(made.decisions), "changed": made.changed}
    corrected = None if made.corrected is None else str(made.corrected)
    console.result({**found, "corrected": corrected, "elsewhere": made.elsewhere})
    return 0


def _serve(options: Namespace, console: Console) -> int:
    """Serve the page until Ctrl-C, then print how to go on."""
    from exempla.review import serve
    from exempla.review.session import checked_share

    def announce(line: str) -> None:
        found = re.search(r"http://\S+", line)
        if options.json:
            if found:
                print(json.dumps({"address": found.group(0)}), flush=True)
        elif found or not options.quiet:
            print(plain(line, sys.stdout), flush=True)

    if options.stop_below is not None:
        checked_share(options.stop_below)
    serve(options.folder, options.port, not options.no_browser, announce, options.stop_below)
    console.say(
        f"Your decisions are saved in {options.folder}. Run `exempla review {options.folder}` to "
        f"continue, or `exempla review {options.folder} --export` to write the corrected file."
    )
    return 0
