"""The tables of the documentation as their CSVs make them, page by page.

A page of an experiment is made by that experiment's own code from the CSV as it lies; the other
tables are put together here. Only lines of tables matter: the words between them are free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

from tests.docs.csv_fit import budgets, fitting, whole_jobs
from tests.docs.csv_language import facts
from tests.docs.csv_lines import DATA, line, signed, table
from tests.docs.csv_scaling import plan, scaling


def difference(one: pd.Series, other: pd.Series) -> str:
    """Mean of the paired differences with half a 95 % interval."""
    apart = one.to_numpy() - other.to_numpy()
    half = student.ppf(0.975, len(apart) - 1) * apart.std(ddof=1) / np.sqrt(len(apart))
    return f"{signed(apart.mean())} ± {half:.3f}"


TREES = {
    "Adult": "adult", "CovType, class 2 or not": "covtype", "ChemReact": "chemreact",
    "breast cancer": "breast cancer", "digits, ten classes": "digits",
    "diabetes, a number": "diabetes", "Adult, hours a week": "hours",
    "wine, three classes, 124 rows": "wine", "wine": "wine", "diabetes": "diabetes",
}  # fmt: skip


def agreements(name: str, methods: Iterable[str], rival: str) -> list[str]:
    found, out = table(name), []
    for title, data in TREES.items():
        part = found[found.table == data].pivot(index="split", columns="method", values="lds")
        if part.empty:
            continue
        means = [signed(part[method].mean(), plus=False) for method in methods]
        out.append(line(title, *means, difference(part["exempla"], part[rival])))
    return out


def trees() -> list[str]:
    methods = ("exempla", "exempla, five stages", "BoostIn", "LeafInfluence", "TreeSim", "random")
    out = agreements("trees_lds", methods, "BoostIn")
    out += agreements("trees_forest", ("exempla", "proximity", "random"), "proximity")
    shares = table("trees_labels").groupby(["method", "rows", "model"]).found.mean()
    names = {"`fix_labels` (500 curated rows)": "fix_labels", "loss": "loss",
             "self-confidence, five folds": "self-confidence (5 folds)"}  # fmt: skip
    models = [(n, m) for n in (2000, 10000) for m in ("LightGBM", "logistic regression")]
    for title, method in names.items():
        out.append(line(title, *(f"{shares[(method, *one)]:.3f}" for one in models)))
    return out + through_boosting()


def through_boosting() -> list[str]:
    """Return the lines of `boosting_influence`: LDS, and the gain of removing harmful rows."""
    runs = table("trees_blends")
    runs = runs[runs.split < 1000]  # the splits from 1000 chose the combination
    methods = ["last stage", "five stages", "derivative", "all three", "BoostIn", "LeafInfluence"]
    agreement = runs.groupby(["table", "method"]).lds.mean()
    later = runs[runs.split >= 3].groupby(["table", "method"])[["gain_1", "gain_5"]].mean()
    titles = {data: title.partition(",")[0] for title, data in reversed(TREES.items())}
    out = []
    for data, title in (titles | {"hours": "Adult, hours a week"}).items():
        out.append(line(title, *(f"{agreement[data, m]:.3f}" for m in methods)))
        for gain in ("gain_1", "gain_5"):
            cells = [signed(later[gain][data, m], 2, plus=False) for m in (*methods, "random")]
            out.append(line(f"{title}, {gain[-1]} %", *cells))
    return out


def commands() -> list[str]:
    """Return the lines of `explain` beside the training of its model."""
    out, runs = [], table("command_cost")
    for case, part in runs.groupby("case", sort=False):
        by = {run.code: run for run in part.itertuples()}
        now, names = by["now"], ("before", "now")
        times = [f"{by[name].times:.1f} ×" if name in by else "" for name in names]
        stages = now.reading_s + now.features_s, now.choosing_s, now.fit_s, now.query_s
        cells = [f"{x:.1f}" for x in (now.training_s, now.start_s, *stages, now.removal_s)]
        out.append(line(case, *cells, *times))
    return out


PLAIN = ("plain NumPy loop", "plain torch loop")


def speed() -> list[str]:
    loops, out = table("speed"), []
    names = {"`SBQ()`": "exempla noise 0", "`SBQ(10)`": "exempla noise 10"}
    for title, loop in [*names.items(), *zip(PLAIN, PLAIN, strict=True)]:
        part = loops[loops.loop == loop].set_index("t").readings_a_pick
        # a half is rounded up, as on paper
        out.append(line(title, *(f"{part[t] + 1e-9:.2f}" for t in (400000, 20000, 150000, 80000))))
    several = loops[loops.loop.str.contains(",")]
    for (kind, t, p), part in several.groupby(["rows", "t", "p"]):
        title = f"{t:,} × {p}".replace(",", " ") + (" decaying" if kind == "decaying" else "")
        each = part.pivot(index="loop", columns="threads", values="ms_a_pick")
        ratios = (each[1] / each[2]).sort_index(ascending=False)  # wall, longest path
        out.append(line(title, *(f"{ratio:.2f}" for ratio in ratios)))
    calls = table("speed_whole").set_index("call").seconds
    named = {"`select`, `SBQ()`": "exempla select, SBQ()", "plain NumPy loop": "plain NumPy loop",
             "`select`, `SBQ(10)`": "exempla select, SBQ(10)",
             "scikit-learn `orthogonal_mp`": "sklearn orthogonal_mp"}  # fmt: skip
    out += [line(title, f"{calls[call]:.3f}") for title, call in named.items()]
    for varied, part in table("speed_growth").groupby("varied"):
        ends = (part["size"].min(), part["size"].max())
        low, high = (f"{size:,}".replace(",", " ") for size in ends)
        out.append(line(varied, f"{low} to {high}", f"{part.exponent.iloc[0]:.2f}"))
    return out + speed_gpu()


def speed_gpu() -> list[str]:
    out = []
    for (t, p, k), part in table("speed_gpu").groupby(["t", "p", "k"]):
        rows = f"{t // 10**6} M" if t >= 10**6 else f"{t:,}".replace(",", " ")
        plain = part[part.what == "plain torch loop"]
        for x in part[part.what.str.startswith("exempla")].itertuples():
            kind = str(x.what).removeprefix("exempla").strip()
            if x.unit == "seconds":
                title = f"{kind} × {k} picks, {rows} × {p}"
                out.append(line(title, f"{x.low} to {x.high} s in all", "").replace("|  |", "| |"))
                continue
            title = f"{rows} × {p}, k = {k}, `{kind}`"
            spans = (f"{y.low:.2f} to {y.high:.2f}" for y in (x, next(plain.itertuples())))
            out.append(line(title, *spans))
    for (t, p), part in table("gpu_targets").groupby(["t", "p"]):
        rows = f"{t // 10**6} M" if t >= 10**6 else f"{t:,}".replace(",", " ")
        old, new = (part[part.code == code].iloc[0] for code in ("before", "now"))
        spans = (f"{old[x]:.2f} s → {new[x]:.2f} s" for x in ("whole_s", "first_s"))
        out.append(line(f"{rows} × {p}", old.readings_a_pick, new.readings_a_pick, *spans))
    return out


def _review_title(x: Any) -> str:
    sets = {"adult": "Adult", "enron": "Enron", "sst2": "SST-2"}
    kinds = {"uniform": "uniform", "one direction": "one direction", "ambiguous": "ambiguous rows",
             "turned round (uniform)": "probabilities turned round"}  # fmt: skip
    # two classes have no pairs but the other direction
    pairs = "pairs of classes" if x.data in ("digits", "synthetic") else "the other direction"
    return f"{sets.get(x.data, x.data)}, {kinds.get(x.kind, pairs)}"


def reviews() -> list[str]:
    found, out = table("reviews"), []
    for x in table("reviews_first").itertuples():
        spans = [(x.stated, x.stated_low, x.stated_high), (x.after, x.after_low, x.after_high)]
        words = [f"{mean:.0f} ({low:.0f}–{high:.0f})" for mean, low, high in spans]
        order = (f"{value:.3f}" for value in (x.ap_before, x.ap_after))
        out.append(line(_review_title(x), f"{x.wrong}", *words, f"{x.covered:.3f}", *order))
    for x in found[found.rate == 0.1].itertuples():
        title = _review_title(x)
        left = f"{round(x.median_stated_left):,} / {half_up(x.median_left):,} / "
        left += f"{x.median_low:.0f}–{x.median_high:.0f}"
        covered = "1.00" if x.covered == 1 else f"{x.covered:g}"
        effort = (x.fixed_90, x.learned_90, x.page_90)
        out.append(line(title, left, covered, *("" if v != v else f"{v:,.0f}" for v in effort)))
    return out


def half_up(value: float) -> int:
    return int(np.floor(value + 0.5))


def label_jobs() -> list[str]:
    found = table("label_jobs")
    return numbers(found[found.split == "report"]) + parts(found[found.split == "report"])


def numbers(found: Any) -> list[str]:
    """Jobs on numbers, which are compared with the size of the residual."""
    columns = ["ap", "planted", "expected", "low", "high"]
    means = found[found.kind != "none"].groupby(["table", "kind", "method"])[columns].mean()
    words = {"x10": "×10", "div10": "÷10"}
    out = []
    for (data, kind), part in means.groupby(level=[0, 1]):
        own = part.loc[(data, kind)]
        if "residual" not in own.index:
            continue
        rival = own.ap.get("cleanlab")
        ours = own.loc["exempla"]
        figures = [f"{ours[name]:.0f}" for name in ("planted", "expected", "low", "high")]
        out.append(line(
            data, words.get(str(kind), kind), f"{own.ap['residual']:.2f}",
            "–" if rival is None or rival != rival else f"{rival:.2f}", f"{ours.ap:.2f}",
            figures[0], f"{figures[1]} ({figures[2]}–{figures[3]})",
        ))  # fmt: skip
    return out


def parts(found: Any) -> list[str]:
    """Jobs on several labels, tokens and many classes, compared with self-confidence."""
    columns = ["rows", "at_planted", "planted", "expected", "low", "high"]
    means = found.groupby(["table", "kind", "method"])[columns].mean()
    out = []
    for data in found[found.method == "self-confidence"].table.unique():
        ours, clean = means.loc[(data, "other", "exempla")], means.loc[(data, "none", "exempla")]
        rival = means.loc[(data, "other", "self-confidence")]
        expected = [f"{x.expected:,.0f} ({x.low:,.0f}–{x.high:,.0f})" for x in (ours, clean)]
        shares = (f"{x.at_planted:.3f}" for x in (ours, rival))
        out.append(line(data, f"{ours.rows:,.0f}", *shares, f"{ours.planted:,.0f}", *expected))
    return out


def kinds() -> list[str]:
    from benchmarks.kinds import tables

    found = pd.read_csv(DATA / "kinds.csv", dtype=str, keep_default_na=False)
    return tables(found.to_numpy().tolist()).splitlines()


def attack() -> list[str]:
    """A line per model, target and arm: the share flipped ± half its interval, by budget."""
    found, out = table("attack"), []
    for (model, target, arm), part in found.groupby(["model", "target", "arm"], sort=False):
        own = part.set_index("budget")
        cells = [
            f"{own.flipped[b]:.2f} ± {own.half_width[b]:.2f}" if b in own.index else ""
            for b in sorted(found.budget.unique())
        ]
        out.append(line(f"{model}, {target}", arm, part["count"].iloc[0], *cells))
    return out


def planted_errors(name: str) -> Callable[[], list[str]]:
    """Shares and accuracies of every method on all seeds, for each data set of a CSV."""

    def made() -> list[str]:
        from experiments.label_study import markdown, summary

        found, out = table(name), []
        for data in found["data"].unique():
            part = found[found["data"] == data]
            for value, digits in (("share", 3), ("accuracy", 4)):
                out += markdown(summary(part, value), digits).splitlines()
        return out

    return made


def label_noise() -> list[str]:
    from experiments import label_noise_page as study

    found = table("label_noise")
    return (study.orders(found, None) + study.numbers(found)).splitlines()


def summaries(*names: str) -> Callable[[], list[str]]:
    def made() -> list[str]:
        from experiments.summary_page import complete, section

        return [x for n in names for x in section("", complete(table(n))).splitlines()]

    return made


def theorem() -> list[str]:
    from experiments import theorem as study

    return study.markdown(study.summary(table("theorem"))).splitlines()


def toy() -> list[str]:
    from experiments.toy import markdown

    return markdown(table("toy")).splitlines()


def variants() -> list[str]:
    from experiments import variants as study

    found = table("variants")
    largest = found[(found["t"] == study.TS[-1]) & (found["k"] == study.KS[-1])]
    made = study.markdown(study.quality(largest)) + "\n" + study.markdown(study.growth(found))
    return made.splitlines()


def first_hour() -> list[str]:
    out = []
    for x in table("first_hour").itertuples():
        busy = "" if x.processor != x.processor else f"{x.processor:.0f} s"
        said = "" if x.said != x.said else f"{x.said:.0f} s"
        out.append(line(x.step, f"{x.value:.0f} s", busy, said))
    return out


def influence() -> list[str]:
    from experiments import influence as study

    picks = table("influence").set_index("data").T.rename_axis("first pick").reset_index()
    loo = table("influence_loo")
    removals = {str(name): part for name, part in loo.groupby("data", sort=False)}
    frames = (picks, table("influence_metrics"), study.agreement(removals))
    return [x for frame in frames for x in study.markdown(frame).splitlines()]


def mnist() -> list[str]:
    from experiments import mnist_report as study

    cells = pd.read_csv(DATA / "mnist_seeds.csv", dtype={"networks": str})
    frames = (study.by_networks(cells), study.with_intervals(table("mnist")), table("mnist_people"))
    return [x for frame in frames for x in study.markdown(frame).splitlines()]


def acquire() -> list[str]:
    found, aimed = table("acquire"), table("acquire_target")
    by = found.set_index(["data", "method"])
    names = ["mnist", "enron", "adult", "covtype", "digits", "sst2"]
    lines = [
        line(m, *(f"{by.queried[d, m]:.2f} / {by['all'][d, m]:.3f}" for d in names))
        for m in found.method.unique()
    ]
    loss = aimed.set_index(["data", "share", "method"])["log-loss"]
    sizes = [(d, s) for d in ("digits", "adult") for s in (0.01, 0.05, 0.1)]
    lines += [line(m, *(f"{loss[d, s, m]:.2f}" for d, s in sizes)) for m in aimed.method.unique()]
    texts, mine = table("acquire_language"), "acquire, cosine"
    before = "acquire, rows of their own length"
    for m in (mine, before, "random", "similar hidden states (RDS+)", "gradient cosine (LESS)"):
        means = texts.groupby("domain")[m].mean()
        lead = texts[m] - texts[mine]
        half = student.ppf(0.975, len(lead) - 1) * lead.std() / np.sqrt(len(lead))
        cells = [f"{means[d]:.2f}" for d in ("mails", "reviews", "news", "posts")]
        said = "" if m == mine else f"{lead.mean():.3f} ± {half:.3f}"
        name = {mine: "acquire", before: f"{before} (before)"}.get(m, m)
        lines.append(line(name, *cells, f"{texts[m].mean():.3f}", said))
    return lines


def quanda() -> list[str]:
    found = table("quanda")
    values = found.groupby(["method", "metric"])["value"]
    mean, half = values.mean(), student.ppf(0.975, 4) * values.std() / np.sqrt(5)
    metrics = ["class", "cardinality", "shortcut", "mixed", "subclass"]
    return [
        line(m, *(f"{mean[m, x]:.2f} ± {half[m, x]:.2f}" for x in metrics))
        for m in found.method.unique()
    ]


PAGES: dict[str, Callable[[], list[str]]] = {
    "docs/studies/acquire.md": acquire,
    "docs/studies/quanda.md": quanda,
    "docs/studies/first-hour.md": first_hour,
    "docs/studies/trees.md": trees,
    "docs/studies/speed.md": lambda: speed() + fitting() + budgets() + commands(),
    "docs/studies/jobs.md": whole_jobs,
    "docs/scaling.md": plan,
    "docs/studies/scaling.md": scaling,
    "docs/studies/kinds.md": kinds,
    "docs/studies/facts.md": facts,
    "docs/studies/reviews.md": reviews,
    "docs/studies/label-jobs.md": label_jobs,
    "docs/studies/attack.md": attack,
    "docs/studies/enron.md": planted_errors("enron"),
    "docs/studies/label_errors.md": planted_errors("label_errors"),
    "docs/studies/label_noise.md": label_noise,
    "docs/studies/covtype.md": summaries("covtype"),
    "docs/studies/chemreact.md": summaries("chemreact", "chemreact100"),
    "docs/studies/influence.md": influence,
    "docs/studies/mnist.md": mnist,
    "docs/studies/theorem.md": theorem,
    "docs/studies/toy.md": toy,
    "docs/studies/variants.md": variants,
}
"""What makes the tables of a page."""
