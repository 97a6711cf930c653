"""The tables of docs/studies/faithfulness.md and its appendix, written from the CSVs behind them.

    python -m benchmarks.peers.pages

A table on a page stands between `<!-- table: NAME -->` and `<!-- end -->`; what stands between is
replaced, the words around it are left alone. tests/docs asks that nothing would change.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable
from statistics import mean, median, stdev

from benchmarks.peers.environments import ROOT

__all__ = ["PAGES", "lines_of", "rewritten"]

DATA = ROOT / "docs" / "experiments"
_STUDIES = ROOT / "docs" / "studies"
PAGES = (_STUDIES / "faithfulness.md", _STUDIES / "faithfulness_tried.md")
MARK = re.compile(r"(<!-- table: ([a-z, 0-9]+) -->\n).*?(<!-- end -->)", re.DOTALL)
HALF, FEW = "half, mean of seeds", "5 %, mean of seeds"
LEAD = ("lead", "lead low", "lead high")
NAMES = {"pydvl": "pyDVL 0.10.0", "captum": "captum 0.9.0", "traker": "traker 0.3.2",
         "dattri": "dattri 0.3.0", "kronfluence": "kronfluence 1.0.1"}  # fmt: skip

Line = dict[str, str]


def lines_of(name: str, **wanted: str) -> list[Line]:
    """The lines of a CSV whose columns have these values."""
    file = DATA / f"{name}.csv"
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as stream:
        lines = list(csv.DictReader(stream))
    return [line for line in lines if all(line[k] == v for k, v in wanted.items())]


def markdown(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    made = [heads, ["---"] * len(heads), *rows]
    return "".join("| " + " | ".join(cell or "–" for cell in row) + " |\n" for row in made)


def rules() -> str:
    """What each rule of damping loses, with the exact solve."""
    names = ("trust", "implicit", "per-row", "per-effective-row")
    found = lines_of("truths_rules", outcome=HALF)
    rows = []
    for setting in dict.fromkeys(x["setting"] for x in found):
        own = {x["rule"]: x for x in found if x["setting"] == setting}
        rows.append((setting, own["trust"]["part"], own["trust"]["best"],
                     *(own[name]["regret"] for name in names)))  # fmt: skip
    return markdown(("truth", "part", "exact, best damping", *names), rows)


COMPARED = {
    "kronfluence": ("kronfluence, EK-FAC", "default"),
    "its own damping": ("kronfluence, EK-FAC", "its own choice from data"),
    "TRAK, 512": ("traker, TRAK, 512 dimensions", "default"),
}
"""Peers as they come: the columns of the tables on the truths."""
LOOKED_UP = "best of"


def suite(checkpoints: str) -> str:
    """Every library on the truths, given one model or eight moments of its training."""
    heads = ("setting", "exempla", *COMPARED, "lead", "best peer, damping tuned on the outcome")
    rows = []
    for setting, own in by_setting(checkpoints).items():
        ours = [x["LDS"] for x in own if x["damping"] == "automatic"]
        if ours:
            known = {(x["method"], x["damping"]): x["LDS"] for x in own}
            best = best_peer(own, looked_up=True)
            rows.append(
                (setting, *ours, *(known.get(key, "") for key in COMPARED.values()),
                 lead(best_peer(own, looked_up=False)),
                 f"{best['LDS']} ({best['method'].split(', ')[0]})" if best else "")
            )  # fmt: skip
    return markdown(heads, rows)


def by_setting(checkpoints: str, outcome: str = HALF) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for x in lines_of("peers_truths", outcome=outcome, checkpoints=checkpoints):
        found.setdefault(x["setting"], []).append(x)
    return found


def best_peer(own: list[Line], looked_up: bool) -> Line | None:
    """The best line of the peers on one truth; None where not all of them were asked."""
    if looked_up:
        some = [x for x in own if x["damping"].startswith(LOOKED_UP)]
        asked = {x["method"] for x in some} >= {method for method, _ in COMPARED.values()}
    else:
        some = [x for x in own if (x["method"], x["damping"]) in COMPARED.values()]
        asked = len(some) == len(COMPARED)
    some = [x for x in some if x["lead"]]
    return min(some, key=lambda x: (-float(x["LDS"]), float(x["lead"]))) if asked and some else None


def lead(best: Line | None) -> str:
    """exempla's lead on a line, with its interval."""
    if best is None:
        return ""
    mean, low, high = (float(best[name]) for name in LEAD)
    return f"{mean:+.3f} ({low:.3f} … {high:.3f})"


def libraries() -> str:
    """Every library on the digits and MNIST truths; an earlier figure, marked *, where there is no
    newer one."""
    found = {
        truth: (lines_of(f"peers_{truth}"), lines_of("peers_earlier", truth=truth))
        for truth in ("digits", "mnist")
    }
    known = dict.fromkeys(
        (x["library"], x["method"]) for both in found.values() for lines in both for x in lines
    )
    order = ("exempla", "kronfluence", "pydvl", "captum", "traker", "dattri")

    def figure(key: tuple[str, str], truth: str, models: str, damping: str) -> str:
        for lines, mark in zip(found[truth], ("", "*"), strict=True):
            for x in lines:
                same = (x["library"], x["method"], x["models"], x["damping"])
                if same == (*key, models, damping) and x["LDS"]:
                    return x["LDS"] + mark
        return "–"

    rows = []
    for key in sorted(known, key=lambda key: order.index(key[0])):
        dampings = ("automatic",) if key[0] == "exempla" else ("default", "none", "best of 7")
        row = [NAMES.get(key[0], key[0]), key[1]]
        for truth in found:
            for models in ("one", "run"):
                cells = [figure(key, truth, models, damping) for damping in dampings]
                row.append("/".join(cells) if set(cells) != {"–"} else "")
        rows.append(row)
    groups = (f"{truth}, {given}" for truth in ("digits", "MNIST")
              for given in ("one model", "eight snapshots"))  # fmt: skip
    return markdown(("library", "method", *groups), rows)


# ---- where people act: a few rows left out, and the rows that a method names

OURS = ("exempla, one model", "exempla, five seeds", "exempla, eight snapshots")
OTHERS = ("EK-FAC, one model", "EK-FAC, eight snapshots", "TRAK, eight snapshots",
          "TracIn, eight snapshots", "gradient cosine, one model")  # fmt: skip
LEFT_OUT = ("1 %", "5 %", "50 %")
ONE_PERCENT, FIVE_PERCENT = (0.0, 0.03), (0.03, 0.1)


def left_out() -> str:
    """LDS of every method, mean over the settings `report new`."""
    found = lines_of("truths_left_out", part="report new")
    heads = ("method", *(f"{share}, {way}" for share in LEFT_OUT for way in ("common", "fresh")))
    rows = []
    for name in (*OURS, *OTHERS, "half of the retrainings, "):
        row = [name.removesuffix(", ")]
        for share in LEFT_OUT:
            for way in ("common", "fresh"):
                own = [float(x["lds"]) for x in found if f"{x['method']}, {x['models']}" == name
                       and (x["left out"], x["seeds"]) == (share, way)]  # fmt: skip
                row.append(f"{mean(own):.3f}")
        rows.append(row)
    return markdown(heads, rows)


def gains(method: str, share: tuple[float, float]) -> dict[str, float]:
    """Mean gain of the queried errors, by network."""
    least, most = share
    by_network: dict[str, list[float]] = {}
    for x in lines_of("truths_removal_test", method=method):
        if least < float(x["share"]) < most:
            by_network.setdefault(x["setting"], []).append(float(x["gain"]))
    return {network: mean(values) for network, values in by_network.items()}


def removal() -> str:
    """What removing the named rows does to the errors asked about, method by method."""
    heads = ("method", "1 % removed", "5 % removed")
    rows = []
    for name in (*OURS, *OTHERS, "TRAK, one model", "random rows"):
        row = [name]
        for share in (ONE_PERCENT, FIVE_PERCENT):
            own = list(gains(name, share).values())
            row.append(f"{mean(own):+.3f} ± {standard_error(own):.3f}")
        rows.append(row)
    return markdown(heads, rows)


PEERS_ASKED = ("digits-cnn-adamw", "mnist-cnn-adam-early")


def peers_removal() -> str:
    """The removal test with the peers' own libraries: mean gain ± standard error over questions."""
    found = lines_of("peers_removal")
    shares = {"1 %": ONE_PERCENT, "5 %": FIVE_PERCENT}
    rows = []
    for method in dict.fromkeys(x["method"] for x in found):
        row = [method]
        for setting in PEERS_ASKED:
            for least, most in shares.values():
                own = [
                    float(x["gain"])
                    for x in found
                    if (x["method"], x["setting"]) == (method, setting)
                    and least < float(x["share"]) < most
                ]
                row.append(f"{mean(own):+.3f} ± {standard_error(own):.3f}" if own else "")
        rows.append(row)
    heads = (f"{setting}, {share}" for setting in PEERS_ASKED for share in shares)
    return markdown(("method", *heads), rows)


def standard_error(values: list[float]) -> float:
    return stdev(values) / len(values) ** 0.5


def acting() -> Iterable[str]:
    for words, share in (("1 %", ONE_PERCENT), ("5 %", FIVE_PERCENT)):
        ours = {name: gains(name, share) for name in OURS}
        others = [gains(name, share) for name in (*OTHERS, "TRAK, one model")]
        best = {network: max(other[network] for other in others) for network in ours[OURS[0]]}
        figures = [f"{mean(found.values()):+.2f}" for found in ours.values()]
        ahead = [sum(found[n] > best[n] for n in best) for found in ours.values()]
        chance = mean(gains("random rows", share).values())
        ekfac = mean(gains("EK-FAC, eight snapshots", share).values())
        yield (
            f"**{words} of the rows removed**: the log-likelihood of ten errors rises by "
            f"{figures[0]} with one model, {figures[1]} with five seeds and {figures[2]} with "
            f"eight snapshots (our EK-FAC with the same snapshots: {ekfac:+.2f}; random rows: "
            f"{chance:+.2f}). These beat every other method on {ahead[0]}, {ahead[1]} and "
            f"{ahead[2]} of {len(best)} networks."
        )
    found = lines_of("truths_left_out", part="report new", seeds="common")

    def lds(share: str, method: str) -> float:
        return mean(float(x["lds"]) for x in found if x["left out"] == share
                    and f"{x['method']}, {x['models']}" == method)  # fmt: skip

    for share in ("5 %", "1 %"):
        figures = [f"{lds(share, name):.2f}" for name in OURS]
        other = max(OTHERS, key=lambda name: lds(share, name))
        yield (
            f"**LDS with {share} left out** (common seeds, five networks on which nothing was "
            f"tuned) is {figures[0]} with one model, {figures[1]} with five seeds and "
            f"{figures[2]} with eight snapshots; the best other method, {other}, reaches "
            f"{lds(share, other):.2f}."
        )


def bullets(*parts: Iterable[str]) -> str:
    """What the tables say, in a few lines."""
    return "".join(f"- {line}\n" for part in parts for line in part)


def one_model() -> Iterable[str]:
    found = [x for x in lines_of("truths", outcome=HALF) if x["regret"]]
    own = [x for x in found if x["part"] == "report"]
    loss = [float(x["regret"]) for x in own]
    apart = [float(x["automatic"]) - float(x["exact best"]) for x in own]
    yield (
        f"**One network, automatic damping.** In the {len(own)} `report` settings it loses at most "
        f"{max(loss):.3f} of LDS (median {median(loss):.3f}) compared with the damping that is "
        f"best on the outcome itself, and differs by {min(apart):+.3f} to {max(apart):+.3f} from "
        f"the exact Gauss–Newton influence at its best damping."
    )
    exact = [float(x["regret"]) for x in lines_of("truths_rules", outcome=HALF, rule="trust")]
    yield (
        f"With the exact solve in all {len(exact)} settings, the automatic damping loses at most "
        f"{max(exact):.3f} (median {median(exact):.3f}); with 5 % left out, at most "
        f"{worst_of_few():.3f}."
    )


def worst_of_few() -> float:
    few = lines_of("truths_rules", outcome=FEW, rule="trust")
    return max(float(x["regret"]) for x in few)


def against_peers() -> Iterable[str]:
    asked = (
        ("1", HALF, "one network each, half left out"),
        ("8", HALF, "eight snapshots each, half left out"),
        ("8", FEW, "eight snapshots each, 5 % left out"),
    )
    for given, outcome, name in asked:
        as_they_come, looked_up = leads(given, False, outcome), leads(given, True, outcome)
        if not (as_they_come and looked_up):
            continue
        means = [mean for mean, *_ in as_they_come.values()]
        sure = sum(low > 0 for _, low, *_ in as_they_come.values())
        best = [mean for mean, *_ in looked_up.values()]
        yield (
            f"**Compared with kronfluence and TRAK, {name}**: exempla is ahead of the better one "
            f"in {sum(mean > 0 for mean in means)} of {len(means)} settings, in {sure} of them "
            f"beyond the 95 % interval (leads {min(means):+.3f} to {max(means):+.3f}, median "
            f"{median(means):+.3f}). If the peers' damping is tuned on the outcome itself, a peer "
            f"is level or ahead in {sum(mean <= 0 for mean in best)} of {len(best)} settings, and "
            f"the median lead is {median(best):+.3f}."
        )


def leads(checkpoints: str, looked_up: bool, outcome: str = HALF) -> dict[str, tuple[float, ...]]:
    """Return exempla's lead over the best peer in each setting, and its interval."""
    found = {k: best_peer(own, looked_up) for k, own in by_setting(checkpoints, outcome).items()}
    return {k: tuple(float(x[name]) for name in LEAD) for k, x in found.items() if x}


def checkpoints() -> Iterable[str]:
    half, few = ([float(x["run"]) - float(x["automatic"])
                  for x in lines_of("truths", outcome=outcome) if x["run"]]
                 for outcome in (HALF, FEW))  # fmt: skip
    yield (
        f'**Snapshots of the training** (`exempla.Recorder`, `Explainer([model, "run/"])`) help '
        f"when half of the rows are left out: eight snapshots of one run add {min(half):+.3f} to "
        f"{max(half):+.3f} of LDS (median {median(half):+.3f}) in the {len(half)} settings. With "
        f"5 % left out they add {min(few):+.3f} to {max(few):+.3f} (median {median(few):+.3f})."
    )


TABLES: dict[str, Callable[[], str]] = {
    "verdict": lambda: bullets(acting()),
    "removal": removal,
    "removal, peers": peers_removal,
    "left out": left_out,
    "half": lambda: bullets(checkpoints(), against_peers(), one_model()),
    "peers, eight moments": lambda: suite("8"),
    "libraries": libraries,
    "rules": rules,
}


def rewritten(text: str) -> str:
    """The page with every marked table as the CSVs have it."""
    return MARK.sub(lambda m: m[1] + TABLES[m[2]]() + m[3], text)


def plot() -> None:
    """The removal test over networks, as bars with standard errors."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "exempla"
    names = (*OURS, *OTHERS, "random rows")
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
    for axis, share, title in zip(
        axes, (ONE_PERCENT, FIVE_PERCENT), ("1 % removed", "5 % removed"), strict=True
    ):
        found = [list(gains(name, share).values()) for name in names]
        colours = ["tab:blue" if name in OURS else "tab:gray" for name in names]
        axis.barh(names, [mean(own) for own in found], color=colours,
                  xerr=[standard_error(own) for own in found])  # fmt: skip
        axis.axvline(0, color="black", linewidth=0.8)
        axis.set_title(title)
        axis.set_xlabel("gain in log-likelihood of the errors")
    axes[0].invert_yaxis()
    figure.savefig(DATA / "removal_test.svg", metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    plot()
    for page in PAGES:
        page.write_text(rewritten(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
