"""The tables of docs/faithfulness.md and its appendix, written from the CSVs behind them.

    python -m benchmarks.peers.pages

A table on a page stands between `<!-- table: NAME -->` and `<!-- end -->`; what stands between is
replaced, the words around it are left alone. tests/docs asks that nothing would change.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable
from statistics import median

from benchmarks.peers.environments import ROOT

__all__ = ["PAGES", "lines_of", "rewritten"]

DATA = ROOT / "docs" / "experiments"
PAGES = (ROOT / "docs" / "faithfulness.md", DATA / "faithfulness_tried.md")
MARK = re.compile(r"(<!-- table: ([a-z, 0-9]+) -->\n).*?(<!-- end -->)", re.DOTALL)
HALF = "half, mean of seeds"
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


def truths() -> str:
    """One model and a run on every truth, against the best damping and the exact solve."""
    heads = ("truth", "part", "automatic", "best damping", "regret", "exact, best damping",
             "automatic less exact", "eight moments")  # fmt: skip
    rows = []
    for x in lines_of("truths", outcome=HALF):
        apart = float(x["automatic"]) - float(x["exact best"])
        rows.append((x["setting"], x["part"], x["automatic"], x["best"], x["regret"],
                     x["exact best"], f"{apart:+.3f}", x["run"]))  # fmt: skip
    return markdown(heads, rows)


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


def suite(checkpoints: str) -> str:
    """Every library on the truths, given one model or eight moments of its training."""
    columns = {
        "kronfluence": ("kronfluence, EK-FAC", "default"),
        "its own damping": ("kronfluence, EK-FAC", "its own choice from data"),
        "TRAK": ("traker, TRAK", "default"),
        "TRAK, 512": ("traker, TRAK, 512 dimensions", "default"),
    }
    heads = ("truth", "exempla", *columns, "lead on the best of these", "a peer's best of 7",
             "lead on that")  # fmt: skip
    found = lines_of("peers_truths", outcome=HALF, checkpoints=checkpoints)
    rows = []
    for setting in dict.fromkeys(x["setting"] for x in found):
        own = [x for x in found if x["setting"] == setting]
        ours = [x["LDS"] for x in own if x["damping"] == "automatic"]
        if not ours:
            continue
        as_is = [
            next((x for x in own if (x["method"], x["damping"]) == key), None)
            for key in columns.values()
        ]
        looked_up = [x for x in own if x["damping"].startswith("best of 7")]
        rows.append((setting, *ours, *(x["LDS"] if x else "" for x in as_is),
                     lead(x for x in as_is if x), *best_of(looked_up)))  # fmt: skip
    return markdown(heads, rows)


def best_of(lines: list[Line]) -> tuple[str, str]:
    if not lines:
        return "", ""
    best = max(lines, key=lambda x: float(x["LDS"]))
    return f"{best['LDS']} ({best['method'].split(', ')[0]})", lead([best])


def lead(lines: Iterable[Line]) -> str:
    """exempla's lead on the best of some lines, with its interval."""
    lines = list(lines)
    if not lines:
        return ""
    best = max(lines, key=lambda x: float(x["LDS"]))
    return "{:+.3f} ({:+.3f} … {:+.3f})".format(
        *(float(best[name]) for name in ("lead", "lead low", "lead high"))
    )


def peers(truth: str) -> str:
    """Every library on one truth; an earlier figure, marked *, where there is no newer one."""
    many = {"digits": "10", "mnist": "5"}[truth]
    groups = {"one": "one model", many: f"{many} models", "run": "eight moments"}
    new, old = lines_of(f"peers_{truth}"), lines_of("peers_earlier", truth=truth)
    known = dict.fromkeys((x["library"], x["method"]) for x in (*new, *old))
    order = ("exempla", "kronfluence", "pydvl", "captum", "traker", "dattri")

    def figure(key: tuple[str, str], models: str, damping: str, *names: str) -> str:
        for lines, mark in ((new, ""), (old, "*")):
            for x in lines:
                if (
                    (x["library"], x["method"]) == key
                    and x["models"] == models
                    and (x["damping"] == damping and x[names[0]])
                ):
                    value = f" ({x['value']})" if damping == "best of 7" and x["value"] else ""
                    return " / ".join(x[name] for name in names) + value + mark
        return ""

    heads = ("library", "method", *groups.values(), "CPU s / of it the job", "peak MB", "lines")
    rows = []
    for key in sorted(known, key=lambda key: order.index(key[0])):
        ours = key[0] == "exempla"
        dampings = ("automatic",) if ours else ("default", "none", "best of 7")
        row = [NAMES.get(key[0], key[0]), key[1]]
        for models in groups:
            found = [figure(key, models, damping, "LDS") or "–" for damping in dampings]
            row.append(" / ".join(found) if set(found) != {"–"} else "")
        row += [
            figure(key, "one", dampings[0], *names)
            for names in (("CPU s", "of it the job"), ("peak MB",), ("lines",))
        ]
        rows.append(row)
    return markdown(heads, rows)


def verdict() -> str:
    """What the tables say, in a few lines."""
    lines = [*one_model(), *against_peers(), *checkpoints(), *digits()]
    return "".join(f"- {line}\n" for line in lines)


def one_model() -> Iterable[str]:
    found = [x for x in lines_of("truths", outcome=HALF) if x["regret"]]
    own = [x for x in found if x["part"] == "report"]
    loss = [float(x["regret"]) for x in own]
    apart = [float(x["automatic"]) - float(x["exact best"]) for x in own]
    yield (
        f"**One network, automatic damping.** On the {len(own)} `report` truths it loses at most "
        f"{max(loss):.3f} of LDS to the best damping looked up on the truth itself (median "
        f"{median(loss):.3f}), and is {min(apart):+.3f} to {max(apart):+.3f} from the exact "
        f"Gauss–Newton influence at its best."
    )
    exact = [float(x["regret"]) for x in lines_of("truths_rules", outcome=HALF, rule="trust")]
    yield (
        f"With the exact solve on all {len(exact)} truths the rule loses at most {max(exact):.3f} "
        f"(median {median(exact):.3f}); where 5 % of the rows go, at most {worst_of_few():.3f}."
    )


def worst_of_few() -> float:
    few = lines_of("truths_rules", outcome="5 %, mean of seeds", rule="trust")
    return max(float(x["regret"]) for x in few)


def against_peers() -> Iterable[str]:
    for given, name in (("1", "One network each"), ("8", "Eight moments of its training each")):
        as_they_come, looked_up = leads(given, False), leads(given, True)
        sure = sum(low > 0 for _, low, _ in as_they_come.values())
        text = (
            f"**{name}, beside kronfluence and TRAK** as they come, kronfluence also with its own "
            f"damping from data, TRAK also with 512 dimensions: ahead of the best of them on "
            f"{sum(mean > 0 for mean, *_ in as_they_come.values())} of {len(as_they_come)} truths "
            f"(surely, by a 95 % interval, on {sure}); the smallest lead is "
            f"{min(mean for mean, *_ in as_they_come.values()):+.3f}."
        )
        behind = [setting for setting, (mean, *_) in looked_up.items() if mean < 0]
        text += (
            f" Were a peer given the best of seven dampings looked up on the truth, it would be "
            f"ahead on {len(behind)} of {len(looked_up)}"
        )
        yield text + (f" ({', '.join(behind)})." if behind else ".")


def leads(checkpoints: str, looked_up: bool) -> dict[str, tuple[float, float, float]]:
    """exempla's lead on the best peer of each truth, and its interval."""
    best: dict[str, Line] = {}
    for x in lines_of("peers_truths", outcome=HALF, checkpoints=checkpoints):
        if x["lead"] and x["damping"].startswith("best of 7") == looked_up:
            known = best.get(x["setting"])
            if known is None or float(x["LDS"]) > float(known["LDS"]):
                best[x["setting"]] = x
    names = ("lead", "lead low", "lead high")
    return {k: (float(x[names[0]]), float(x[names[1]]), float(x[names[2]]))
            for k, x in best.items()}  # fmt: skip


def checkpoints() -> Iterable[str]:
    found = [x for x in lines_of("truths", outcome=HALF) if x["run"]]
    gain = [float(x["run"]) - float(x["automatic"]) for x in found]
    yield (
        f'**Keep snapshots of the training** (`exempla.Recorder`, `Explainer([model, "run/"])`): '
        f"the largest lever seen. Eight moments of one run add {min(gain):+.3f} to "
        f"{max(gain):+.3f} "
        f"(median {median(gain):+.3f}) on the {len(found)} truths asked."
    )


def digits() -> Iterable[str]:
    def lds(library: str, models: str, damping: str) -> str:
        wanted = {"library": library, "models": models, "damping": damping}
        return next((x["LDS"] for x in lines_of("peers_digits", **wanted)), "–")

    yield (
        f"On the digits MLP that libraries are compared on below: alone "
        f"{lds('exempla', 'one', 'automatic')}, with eight moments "
        f"{lds('exempla', 'run', 'automatic')}; kronfluence with the same moments "
        f"{lds('kronfluence', 'run', 'default')}, with its own damping "
        f"{lds('kronfluence', 'run', 'none')}, at the best of seven "
        f"{lds('kronfluence', 'run', 'best of 7')}."
    )


TABLES: dict[str, Callable[[], str]] = {
    "verdict": verdict,
    "truths": truths,
    "rules": rules,
    "peers, one model": lambda: suite("1"),
    "peers, eight moments": lambda: suite("8"),
    "digits": lambda: peers("digits"),
    "mnist": lambda: peers("mnist"),
}


def rewritten(text: str) -> str:
    """The page with every marked table as the CSVs have it."""
    return MARK.sub(lambda m: m[1] + TABLES[m[2]]() + m[3], text)


def main() -> None:
    for page in PAGES:
        page.write_text(rewritten(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
