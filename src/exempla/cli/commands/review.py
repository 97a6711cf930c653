"""`exempla review`: the local page on which a person decides about suspicious labels."""

from __future__ import annotations

import json
import re
import sys
from argparse import Namespace
from typing import Any

from exempla.cli.options import Console, plain
from exempla.errors import ExemplaError


def run(options: Namespace) -> int:
    """Serve the page, export, import, or recover the log."""
    from exempla.review import read_review

    console = Console(options)
    for asked, act in (
        (options.recover, _recover),
        (options.import_from, _import),
        (options.export, _export),
    ):
        if asked:
            console.result(act(read_review(options.folder), options, console))
            return 0
    _serve(options, console)
    return 0


def _recover(review: Any, options: Namespace, console: Console) -> dict[str, Any]:
    """Rebuild a damaged log from its readable events and keep the damaged file."""
    from exempla.review.log import recover_log

    found = recover_log(review.directory / "decisions.sqlite")
    if found.kept is None:
        console.say("decisions.sqlite is not damaged; there is nothing to recover.")
    else:
        console.say(f"Recovered {found.events:,} events into decisions.sqlite.")
        console.say(f"  {found.kept}  the damaged file, unchanged")
    return {"events": found.events, "kept": found.kept and str(found.kept)}


def _import(review: Any, options: Namespace, console: Console) -> dict[str, Any]:
    """Import decisions that were made in another tool."""
    from exempla.review.integrations import import_decisions

    found = import_decisions(review, options.import_from)
    console.say(f"Imported {found.written:,} decisions; {found.known:,} were known already.")
    if found.kept:
        few = ", ".join(found.kept[:5]) + (", …" if len(found.kept) > 5 else "")
        console.warn(f"{len(found.kept):,} rows keep an earlier, different decision: {few}.")
    return {"written": found.written, "known": found.known, "kept": list(found.kept)}


def _export(review: Any, options: Namespace, console: Console) -> dict[str, Any]:
    """Write decisions.json, patch.csv and the corrected data."""
    from exempla.review.export import export_review

    made = export_review(review)
    if made.problem:
        raise ExemplaError(made.problem)
    console.say(f"{len(made.decisions):,} decisions, {made.changed:,} of them change the data.")
    if made.corrected is not None:
        console.say(f"  {made.corrected}  the corrected data")
    console.say(f"  {options.folder / 'patch.csv'}  the changes")
    if made.elsewhere:
        console.warn(made.elsewhere)
    return {
        "decisions": len(made.decisions),
        "changed": made.changed,
        "corrected": made.corrected and str(made.corrected),
        "elsewhere": made.elsewhere,
    }


def _serve(options: Namespace, console: Console) -> None:
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
