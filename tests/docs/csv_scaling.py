"""The tables of docs/studies/scaling.md as their CSVs make them."""

from __future__ import annotations

from tests.docs.csv_lines import line, signed, table


def out_of_core() -> list[str]:
    out = []
    for x in table("out_of_core").itertuples():
        job, _, size = str(x.job).partition(", ")
        title = f"`select`, k = 50, {size}" if job == "select" else f"`fit` and `explain`, {size}"
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


def growth() -> list[str]:
    out = []
    for varied, part in table("scaling").groupby("varied"):
        title, digits, unit = GROWTH[str(varied)]
        first, last = part.iloc[0], part.iloc[-1]
        ends = " → ".join(f"{x.value:{digits}}{unit}" for x in (first, last))
        slope = signed(first.exponent, 2, plus=False)
        out.append(line(title, f"{first['size']:,}", f"{last['size']:,}", ends, slope))
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


def scaling() -> list[str]:
    made = (out_of_core, sketch_rest, sketch_rest_whole, travel, growth, load, language_cost)
    return [x for one in made for x in one()]
