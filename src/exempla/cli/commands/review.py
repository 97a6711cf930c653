"""Decide about suspicious labels, row by row, on a page of your own machine.

DIR is what `exempla fix-labels` wrote. Every decision is saved at once; the page exports the
corrected file, and so does --export without opening the page.
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
    """The folder and the server."""
    folder = parser.add_argument(
        "folder", metavar="DIR", type=Path, help="written by exempla fix-labels"
    )
    completed(folder, "DIRECTORY")
    parser.add_argument("--port", type=int, default=0, help="of 127.0.0.1 (default: any free one)")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")
    parser.add_argument(
        "--export", action="store_true", help="write the corrected file and end, without the page"
    )
    back = parser.add_argument(
        "--import",
        metavar="FILE",
        type=Path,
        dest="import_from",
        help="take over decisions made in Label Studio (its JSON) or FiftyOne (its CSV), and end",
    )
    completed(back, "FILE")
    parser.add_argument(
        "--stop-below",
        metavar="SHARE",
        type=float,
        help="say so when spot checks bound what is left below this share of all rows (default: "
        "0.01, or what was named last)",
    )
    parser.add_argument(
        "--recover",
        action="store_true",
        help="of a damaged decisions.sqlite, go on with what is whole; the damaged file is kept",
    )
    parser.add_argument("--quiet", action="store_true", help="say nothing but the address")
    parser.add_argument(
        "--json", action="store_true", help="print the address, or what --export wrote, as JSON"
    )


def run(options: Namespace) -> int:
    """Serve the page until interrupted, or export."""
    console = Console.of(options)
    if options.recover:
        return _recover(options, console)
    if options.import_from is not None:
        return _import(options, console)
    return _export(options, console) if options.export else _serve(options, console)


def _recover(options: Namespace, console: Console) -> int:
    """Keep a damaged log aside and go on with its whole events."""
    from exempla.review import read_review
    from exempla.review.log import recover_log

    found = recover_log(read_review(options.folder).directory / "decisions.sqlite")
    if found.kept is None:
        console.say("decisions.sqlite is whole; there is nothing to recover.")
    else:
        console.say(f"{found.events:,} whole events are in decisions.sqlite.")
        console.say(f"  {found.kept}  the damaged file, as it was")
    kept = None if found.kept is None else str(found.kept)
    console.result({"events": found.events, "kept": kept})
    return 0


def _import(options: Namespace, console: Console) -> int:
    """Take over decisions made elsewhere, and say what became of them."""
    from exempla.review import read_review
    from exempla.review.integrations import import_decisions

    found = import_decisions(read_review(options.folder), options.import_from)
    console.say(f"{found.written:,} decisions were taken over; {found.known:,} were known already.")
    if found.kept:
        few = ", ".join(found.kept[:5]) + (", …" if len(found.kept) > 5 else "")
        console.warn(f"{len(found.kept):,} were decided otherwise here before and stay so: {few}.")
    console.result({"written": found.written, "known": found.known, "kept": list(found.kept)})
    return 0


def _export(options: Namespace, console: Console) -> int:
    """Write the files, and say where they are."""
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
    """The page, until Ctrl-C; then how to get the corrected file without it."""
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
        f"Decisions are kept in {options.folder}; `exempla review {options.folder} --export` "
        "writes the corrected file, `exempla review` goes on."
    )
    return 0
