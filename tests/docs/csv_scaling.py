"""The tables of docs/studies/scaling.md as their CSVs make them."""

from __future__ import annotations

from typing import Any

from tests.docs.csv_lines import line, signed, table

TITLES = {
    "select": "`select`, k = 50", "fit and explain": "`fit` and `explain`",
    "labels": "`fix_labels(method=\"sbq\")`, k = 50", "summary": "`summarize`, k = 20",
}  # fmt: skip


def out_of_core() -> list[str]:
    out = []
    for x in table("out_of_core").itertuples():
        job, _, size = str(x.job).partition(", ")
        title = f"{TITLES[job]}, {size}"
        time = f"{x.seconds:.0f} s"
        if x.seconds_fit == x.seconds_fit:
            time += f" (fit {x.seconds_fit:.0f} s, a next question {x.seconds_next_question:.0f} s)"
        inside = "not tried"
        if x.in_memory_gib == x.in_memory_gib:
            inside = f"{x.seconds_in_memory:.0f} s, {x.in_memory_gib:.2f} GiB"
        passes = "–" if x.readings != x.readings else f"{x.readings:.0f}"
        memory = (f"{x.rows_gib:.2f} GiB", f"{x.cap_gib:g} GiB")
        out.append(line(title, *memory, time, passes, f"{x.anonymous_gib:.2f} GiB", inside))
    return out


def sketch_rest() -> list[str]:
    def short(value: float, digits: int = 3) -> str:
        return "" if value != value else f"{value:.{digits}f}".removeprefix("0")

    ways = ["ours", "strongest", "random", "random, whitened"]
    measures = ("error", "correlation", "self correlation")
    found, out = table("sketch_rest"), []
    for (truth, width), part in found[found.way.isin(ways)].groupby(["truth", "width"]):
        own = part.set_index("way").reindex(ways)
        if own["LDS auto"].isna()["strongest"]:
            continue
        cells = [short(value) for value in own["LDS auto"]]
        pairs = [" / ".join(short(own[m][way], 2) for way in ways[:2]) for m in measures]
        out.append(line(truth, width, short(own["share kept"]["ours"]), *cells, *pairs))
    return out


def sketch_rest_whole() -> list[str]:
    """Ways that keep all parameters."""
    ways, out = ["ours", "exact", "EK-FAC", "kronfluence EK-FAC"], []
    found = table("sketch_rest")
    for truth, part in found[found.width == found.parameters].groupby("truth", sort=False):
        own = part.set_index("way")["LDS auto"].reindex(ways)
        out.append(line(truth, *(f"{value:.3f}".removeprefix("0") for value in own)))
    return out


def size(count: float) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} KB"


def travel() -> list[str]:
    """What a cluster sends, and what a thousand places would."""
    out, same = [], {True: "yes", False: "no"}
    for x in table("ray_cluster").itertuples():
        sent = (size(x.to_each_worker_per_pick_bytes), size(x.received_per_pick_bytes))
        each = f"{x.exchanges_per_pick:.2f}"
        out.append(line(x.case, x.workers, same[bool(x.same_picks)], x.restarts, each, *sent))
    found = table("exchange")
    for x in found[found.rows == "gaussian"].itertuples():
        driver = size(x.sent_per_pick_bytes + x.received_per_pick_bytes)
        each = (f"{x.exchanges_per_pick:.2f}", size(x.to_each_place_per_pick_bytes))
        picks = same[bool(x.same_picks)]
        out.append(line(x.places, x.pool, picks, *each, driver, f"{x.wire_s:.3f} s"))
    return out


GROWTH = {
    "t": ("rows (128 wide, 64 picks)", ".3g", " s"),
    "p": ("width (80 000 rows, 64 picks)", ".3g", " s"),
    "k": ("picks (80 000 × 128)", ".3g", " s"),
    "workers: slowest_place_s": (
        "workers (640 000 × 128, 64 picks): the slowest one", ".3g", " s"
    ),
    "workers: exchanges": ("workers: exchanges", ",.0f", ""),
    "workers: sent_per_pick_bytes": ("workers: bytes sent a pick", ",.0f", ""),
    "workers: received_per_pick_bytes": ("workers: bytes received a pick", ",.0f", ""),
}  # fmt: skip


def ends(part: Any) -> str:
    """The first and the last value of a size that is varied, with their unit."""
    _, digits, unit = GROWTH[part.varied.iloc[0]]
    return " → ".join(f"{value:{digits}}{unit}" for value in part.value.iloc[[0, -1]])


def growth() -> list[str]:
    found, out = table("scaling"), []
    for varied, part in found[found.varied.isin(list(GROWTH))].groupby("varied"):
        slope = signed(part.exponent.iloc[0], 2, plus=False)
        sizes = (f"{size:,}" for size in part["size"].iloc[[0, -1]])
        out.append(line(GROWTH[str(varied)][0], *sizes, ends(part), slope))
    return out


JOBS = {
    "rows": "rows in memory (256 wide, exact)",
    "stored rows": "rows in a store (256 wide, exact)",
    "width": "width of a sketch of 4,096 parameters (20,000 rows)",
    "parameters": "parameters (20,000 rows, 256 directions)",
}
MEASURES = {
    "fit_s": " s",
    "first_s": " s",
    "next_s": " s",
    "memory_mib": " MiB",
    "disk_mib": " MiB",
}


def measured(series: str, measure: str) -> Any:
    """What was measured of whole jobs while one size was varied."""
    found = table("scaling")
    return found[found.varied == f"{series}: {measure}"]


def jobs() -> list[str]:
    """Whole jobs: sizes, and each measure from the smallest to the largest with its exponent."""
    out = []
    for series, title in JOBS.items():
        cells = []
        for measure, unit in MEASURES.items():
            part = measured(series, measure)
            low, high = (f"{value:.3g}" for value in part.value.iloc[[0, -1]])
            slope = signed(part.exponent.iloc[0], 2, plus=False)
            cells.append(f"{low} → {high}{unit}, {slope}" if part.value.max() else "–")
        first, last = part["size"].iloc[[0, -1]]
        out.append(line(title, f"{first:,} → {last:,}", *cells))
    return out


ALL = ("rows", "width", "parameters")
PLAN = {
    ("memory", "2tpb+24p²+(48+4ℓ)t"): ("rows", "memory_mib", ALL),
    ("memory, store", "32p²+80t"): ("stored rows", "memory_mib", ("stored rows",)),
    ("disk, store", "2tpb"): ("stored rows", "disk_mib", ("stored rows",)),
    ("fit", "tp²; sketch: t(P+p²)"): ("rows", "fit_s", ALL),
    ("first question", "tp²+ktp"): ("rows", "first_s", ALL),
    ("next question", "ktp"): ("rows", "next_s", ALL),
}
PLAN_SHARDS = {
    "slowest_place_s": ("slowest shard", "1/S"),
    "exchanges": ("exchanges", "k/2"),
    "sent_per_pick_bytes": ("bytes sent a pick", "pS"),
    "received_per_pick_bytes": ("bytes received a pick", "p"),
}


def plan() -> list[str]:
    """The table by which a job is planned: formula, a measured size, and exponents."""
    out = []
    for (cost, formula), (series, measure, varied) in PLAN.items():
        unit, value = MEASURES[measure], measured(series, measure).value.iloc[-1]
        shown = f"{value:.3g}{unit}"
        if measure == "memory_mib":
            shown += f" (forecast {measured(series, 'forecast_mib').value.iloc[-1]:.3g})"
        slopes = [signed(measured(x, measure).exponent.iloc[0], 2, plus=False) for x in varied]
        out.append(line(cost, f"`{formula}`", shown, "/".join(slopes)))
    for name, (cost, formula) in PLAN_SHARDS.items():
        part = table("scaling")
        part = part[part.varied == f"workers: {name}"]
        slope = signed(part.exponent.iloc[0], 2, plus=False)
        out.append(line(cost, f"`{formula}`", ends(part), slope))
    return out


def two_ranks() -> list[str]:
    out = []
    for x in table("two_ranks").itertuples():
        where = f"{x.device}, {x.rows}, {x.targets} target" + "s" * (x.targets > 1)
        times = (f"{seconds:.2f} s" for seconds in (x.seconds_one_process, x.seconds_ranks))
        each = f"{x.exchanges_per_pick:.2f}"
        same = "yes" if x.same_picks else "no"
        out.append(
            line(where, f"{x.t:,} × {x.p}", same, *times, each, size(x.sent_by_a_rank_bytes))
        )
    return out


def load() -> list[str]:
    found, out = table("load"), []
    # the last line is after the end, when the server has gone
    for x in found[found.server_mib.notna()].itertuples():
        memory = (f"{x.server_mib:.1f} MiB", f"{x.driver_mib:.1f} MiB")
        counts = (f"{count:,}" for count in (x.sent, x.answered, x.decisions_confirmed))
        end = (f"{x.slowest_s:.2f} s", x.commands, x.commands_failed)
        out.append(line(f"{x.minute:.0f}", *memory, *counts, *end))
    return out


def language_cost() -> list[str]:
    names = {"llama": "Llama, {} M", "qwen": "Qwen, {} M (head tied)",
             "gpt2": "GPT-2, {} M (head tied)"}  # fmt: skip
    out = []
    for x in table("language_cost").itertuples():
        title = names[str(x.shape)].format(f"{x.parameters / 1e6:,.1f}")
        times = (f"{value:.2f} ×" for value in (x.scores_times, x.fit_times, x.memory_times))
        kept = f"{x.share:.3f}".removeprefix("0")
        error = "" if x.error != x.error else f"{x.error:.2f}, {x.correlation:.2f}"
        data = f"{x.examples} × {x.length}"
        epoch = f"{x.epoch_s:.1f} s, {x.epoch_gib:.2f} GiB"
        out.append(line(title, data, epoch, *times, kept, error))
    return out


def gpu_cost() -> list[str]:
    out = []
    for x in table("gpu_cost").itertuples():
        title = f"{str(x.model).title()}, {x.parameters / 1e6:,.1f} M, {x.code}"
        fits = ", ".join(f"{s / x.epoch_s:.1f}" for s in (x.fit_first_s, x.fit_again_s))
        asked = f"{x.explain_first_s:.2f} s, {x.explain_again_s:.2f} s"
        out.append(line(title, f"{x.examples} × {x.length}", fits, f"{x.fit_gib:.2f} GiB", asked))
    return out


def trained_lm() -> list[str]:
    out = []
    for x in table("trained_lm").itertuples():
        name = "LoRA, {} M" if x.model == "LoRA" else "all {} M weights"
        found = (x.precision_influence, x.precision_relative, x.precision_bm25)
        shares = (f"{value:.3f}".removeprefix("0") for value in (x.share, *found))
        kept, *rest = shares
        cost = (f"{x.epochs:.2f}", f"{x.memory:.2f} ×", kept, f"{x.explain_s:.1f} s")
        out.append(line(name.format(f"{x.parameters / 1e6:.1f}"), *cost, *rest))
    return out


def scaling() -> list[str]:
    made = (
        out_of_core, sketch_rest, sketch_rest_whole, travel, two_ranks, growth, jobs, load,
        language_cost, gpu_cost, trained_lm,
    )  # fmt: skip
    return [x for one in made for x in one()]
