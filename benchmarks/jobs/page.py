"""What was measured as one page: whole jobs beside peers, a pick beside plain loops, growth.

    python -m benchmarks.jobs.page [--out docs/experiments] [--envs .peers] [--rounds 2] [--quick]

measures the jobs alone. Writes bench.json, bench_jobs.csv, bench.svg and bench.html; the latter two
show what `benchmarks.speed` has left in the folder as well.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import platform
from pathlib import Path
from typing import Any

import exempla
from benchmarks.jobs.contests import MISSING
from benchmarks.jobs.measure import measure as measure_jobs
from benchmarks.jobs.measure import write
from benchmarks.peers.environments import ROOT

__all__ = ["measure", "page_of", "plot"]

Row = dict[str, Any]
MOST_ROUNDS = 2
"""Whole jobs take long, and differ by more than a busy moment does."""
OURS, THEIRS = "#b5532a", "#8a8f98"


def plot(rows: list[Row], path: Path) -> None:
    """Seconds above, memory below, a column for each job; exempla in its own colour."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    jobs = list(dict.fromkeys(row["job"] for row in rows)) or [""]
    most = max(1, *(sum(row["job"] == job for row in rows) for job in [*jobs, ""]))
    figure, axes = plt.subplots(2, len(jobs), figsize=(3.1 * len(jobs), 4.2), squeeze=False)
    for column, job in enumerate(jobs):
        mine = [row for row in rows if row["job"] == job and "problem" not in row][::-1]
        for axis, figures, unit in zip(axes[:, column], ("seconds", "mib"), ("s", "MiB")):
            values = [row[figures] or 0.0 for row in mine]
            names = [row["who"] for row in mine]
            colours = [OURS if name == "exempla" else THEIRS for name in names]
            bars = axis.barh(names, values, color=colours, height=0.6)
            axis.bar_label(bars, [f"{v:.3g} {unit}" for v in values], padding=3, fontsize=7)
            axis.set_ylim(len(mine) - 0.5 - most, len(mine) - 0.5)  # bars of one height everywhere
            axis.set_xlim(0, 1.35 * max([*values, 1e-9]))
            axis.tick_params(labelsize=7, length=0)
            axis.set_xticks([])
            axis.spines[["top", "right", "bottom"]].set_visible(False)
        title = next((row["title"] for row in rows if row["job"] == job), "")
        axes[0, column].set_title(title, fontsize=8)
    axes[0, 0].set_ylabel("processor seconds", fontsize=8)
    axes[1, 0].set_ylabel("memory at the peak", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def page_of(rows: list[Row], folder: Path, machine: str) -> str:
    """One HTML file; the pictures are inside."""
    pictures = {"Whole jobs": "bench.svg", "One pick, and growth": "speed.svg"}
    parts = [
        f"<h2>{title}</h2>{inner_svg(folder / name)}"
        for title, name in pictures.items()
        if (folder / name).exists()
    ]
    head = ("job", "who", "seconds", "times exempla's", "MiB", "judged by", "quality")
    body = "".join(table_row(cells(row)) for row in rows)
    missing = "".join(f"<li>{escaped(n)}: {escaped(why)}</li>" for n, why in MISSING.items())
    grown = growth_of(folder)
    exponents = "".join(table_row([name, f"{value:.2f}"]) for name, value in grown.items())
    growth = f"<h2>Growth</h2><table>{table_row(['size', 'exponent of the seconds'], 'th')}"
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>exempla bench</title><style>"
        "body{font:15px/1.5 system-ui;max-width:60em;margin:2em auto;padding:0 1em}"
        "td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #ddd}svg{max-width:100%;"
        f"height:auto}}</style><h1>exempla {exempla.__version__}, measured</h1>"
        f"<p>{escaped(machine)}; one thread, processor seconds; memory beyond model and "
        f"data; the first call of a fresh process.</p>{''.join(parts)}"
        f"<table>{table_row(head, 'th')}{body}</table>"
        f"{growth + exponents + '</table>' if grown else ''}"
        f"<h2>Not measured</h2><ul>{missing}</ul></html>\n"
    )


def cells(row: Row) -> list[str]:
    if "problem" in row:
        return [row["title"], row["who"], f"does not run: {row['problem']}", "", "", "", ""]
    shown = ("seconds", "times", "mib", "judged_by", "quality")
    return [row["title"], row["who"], *("" if row[x] is None else str(row[x]) for x in shown)]


def table_row(values: Any, kind: str = "td") -> str:
    return "<tr>" + "".join(f"<{kind}>{escaped(v)}</{kind}>" for v in values) + "</tr>"


def escaped(text: str) -> str:
    return html.escape(str(text))


def inner_svg(path: Path) -> str:
    """The picture without what stands before it in a file of its own."""
    text = path.read_text(encoding="utf-8")
    return text[text.index("<svg") :]


def growth_of(folder: Path) -> dict[str, float]:
    """Exponents in t, p, k and the number of targets, where they were measured."""
    file = folder / "speed.json"
    if not file.exists():
        return {}
    return {row["varied"]: row["exponent"] for row in json.loads(file.read_text())["growth"]}


def measure(out: Path, envs: Path, rounds: int, quick: bool) -> None:
    """The jobs, and the page of everything in the folder."""
    out.mkdir(parents=True, exist_ok=True)
    rows = measure_jobs(envs, min(rounds, MOST_ROUNDS), quick)
    machine = (
        f"{platform.system()}, {os.cpu_count()} processors, Python {platform.python_version()}"
    )
    everything = {"machine": machine, "jobs": rows, "growth": growth_of(out), "missing": MISSING}
    text = json.dumps(everything, indent=1, ensure_ascii=False) + "\n"
    (out / "bench.json").write_text(text, encoding="utf-8")
    write(rows, out / "bench_jobs.csv")
    plot(rows, out / "bench.svg")
    (out / "bench.html").write_text(page_of(rows, out, machine), encoding="utf-8")
    print(f"{out / 'bench.html'} shows all of it", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/experiments"))
    parser.add_argument("--envs", type=Path, default=ROOT / ".peers")
    parser.add_argument("--rounds", type=int, default=MOST_ROUNDS)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    given = parser.parse_args()
    measure(given.out, given.envs, given.rounds, given.quick)


if __name__ == "__main__":
    main()
