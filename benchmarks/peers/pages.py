"""The tables of docs/studies/faithfulness.md and its appendix, written from the CSVs behind them.

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
_STUDIES = ROOT / "docs" / "studies"
PAGES = (_STUDIES / "faithfulness.md", _STUDIES / "faithfulness_tried.md")
MARK = re.compile(r"(<!-- table: ([a-z, 0-9]+) -->\n).*?(<!-- end -->)", re.DOTALL)
HALF = "half, mean of seeds"
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


COMPARED = {
    "kronfluence": ("kronfluence, EK-FAC", "default"),
    "its own damping": ("kronfluence, EK-FAC", "its own choice from data"),
    "TRAK, 512": ("traker, TRAK, 512 dimensions", "default"),
}
"""Peers as they come: the columns of the tables on the truths."""
LOOKED_UP = "best of"


def suite(checkpoints: str) -> str:
    """Every library on the truths, given one model or eight moments of its training."""
    heads = ("truth", "exempla", *COMPARED, "lead", "a peer at its best", "lead")
    rows = []
    for setting, own in by_setting(checkpoints).items():
        ours = [x["LDS"] for x in own if x["damping"] == "automatic"]
        if ours:
            known = {(x["method"], x["damping"]): x["LDS"] for x in own}
            best = best_peer(own, looked_up=True)
            rows.append(
                (setting, *ours, *(known.get(key, "") for key in COMPARED.values()),
                 lead(best_peer(own, looked_up=False)),
                 f"{best['LDS']} ({best['method'].split(', ')[0]})" if best else "", lead(best))
            )  # fmt: skip
    return markdown(heads, rows)


def by_setting(checkpoints: str) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for x in lines_of("peers_truths", outcome=HALF, checkpoints=checkpoints):
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
    return max(some, key=lambda x: float(x["LDS"])) if asked and some else None


def lead(best: Line | None) -> str:
    """exempla's lead on a line, with its interval."""
    if best is None:
        return ""
    mean, low, high = (float(best[name]) for name in LEAD)
    return f"{mean:+.3f} ({low:.3f} … {high:.3f})"


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
    lines = [*one_model(), *against_peers(), *checkpoints(), *older_truths()]
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
    for given, name in (("1", "one network each"), ("8", "eight moments of a training each")):
        as_they_come, looked_up = leads(given, False), leads(given, True)
        if not (as_they_come and looked_up):
            continue
        means = [mean for mean, *_ in as_they_come.values()]
        sure = sum(low > 0 for _, low, *_ in as_they_come.values())
        behind = [setting for setting, (mean, *_) in looked_up.items() if mean < 0]
        yield (
            f"**Beside kronfluence and TRAK, {name}**: ahead of the best of them on "
            f"{sum(mean > 0 for mean in means)} of {len(means)} truths, on {sure} beyond a 95 % "
            f"interval; leads {min(means):+.3f} to {max(means):+.3f}. At its best "
            f"damping, looked up on the truth, a peer would be ahead on {len(behind)} of "
            f"{len(looked_up)}" + (f" ({', '.join(behind)})." if behind else ".")
        )


def leads(checkpoints: str, looked_up: bool) -> dict[str, tuple[float, ...]]:
    """exempla's lead on the best peer of each truth, and its interval."""
    found = {k: best_peer(own, looked_up) for k, own in by_setting(checkpoints).items()}
    return {k: tuple(float(x[name]) for name in LEAD) for k, x in found.items() if x}


def checkpoints() -> Iterable[str]:
    found = [x for x in lines_of("truths", outcome=HALF) if x["run"]]
    gain = [float(x["run"]) - float(x["automatic"]) for x in found]
    yield (
        f'**Keep snapshots of the training** (`exempla.Recorder`, `Explainer([model, "run/"])`): '
        f"the largest lever seen. Eight moments of one run add {min(gain):+.3f} to "
        f"{max(gain):+.3f} "
        f"(median {median(gain):+.3f}) on the {len(found)} truths asked."
    )


def older_truths() -> Iterable[str]:
    def lds(truth: str, library: str, models: str, damping: str = "automatic", **more: str) -> str:
        wanted = {"library": library, "models": models, "damping": damping} | more
        return next((x["LDS"] for x in lines_of(f"peers_{truth}", **wanted)), "–")

    trak = {"method": "TRAK, 512 dimensions"}
    yield (
        f"On the digits MLP below: alone {lds('digits', 'exempla', 'one')}, with eight moments "
        f"{lds('digits', 'exempla', 'run')}; kronfluence with the same moments "
        f"{lds('digits', 'kronfluence', 'run', 'default')}, with its own damping "
        f"{lds('digits', 'kronfluence', 'run', 'none')}, at the best of seven "
        f"{lds('digits', 'kronfluence', 'run', 'best of 7')}. On the MNIST CNN: alone "
        f"{lds('mnist', 'exempla', 'one')}, with eight moments {lds('mnist', 'exempla', 'run')}; "
        f"TRAK with the same moments {lds('mnist', 'traker', 'run', 'default', **trak)}, at the "
        f"best of seven {lds('mnist', 'traker', 'run', 'best of 7', **trak)}."
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
