"""Simulated reviews: does the interval cover the truth, and how soon are the wrong labels found?

    python -m benchmarks.reviews --data DATA --cache CACHE [--reviews 200]

Each review uses the page's own code (`exempla.review.session`,
`exempla.tasks.labels.decisions`): sixty decisions, twenty of them spot checks, by a person who is
always right. A review counts as covered if the number of wrong labels left lies in its 90 %
interval. Then, with every row listed: decisions
until 90 % of the wrong labels are found, in the analysis's own order, in the learned order without
spot checks, and on the page as it is. Last, whether the page ever says "stop" too early, within 900
decisions, where the share left lies a little above the one named.

    python -m benchmarks.reviews --first 50 --data DATA --reviews 100

measures reviews that begin with 50 random rows, of files without trusted rows: what `fix_labels`
states, what the page states after the checks, and the average precision of the order before and
after, over the rows that were not checked.

The constants of learning.py were chosen (twelve variants) on digits and on Adult with uniform
mistakes, both with --seed 0; the table is of --seed 1, run once.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np
from sklearn.metrics import average_precision_score

from benchmarks.review_cases import KINDS, RATES, Case, real_cases, synthetic_case
from exempla.review.folder import Suspect
from exempla.review.log import Draw
from exempla.review.sampling import RemainingErrors, sample_rest
from exempla.review.session import ReviewPlan, ReviewState, Settled

REFIT = 5
FIELDS = (
    "data", "kind", "rate", "rows", "listed", "wrong", "expected", "reviews", "covered",
    "median_low", "median_high", "median_left", "median_stated_left", "fixed_90", "learned_90",
    "page_90",
)  # fmt: skip


@dataclass
class Person:
    """A review in progress: the page's rules, and a person who knows the truth."""

    plan: ReviewPlan
    wrong: dict[int, bool]
    spots: bool = True
    learning: bool = True
    settled: dict[int, Settled] = field(default_factory=dict)
    draws: list[Draw] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    fitted: int = -1

    @property
    def state(self) -> ReviewState:
        return ReviewState(self.settled, (), self.draws)

    def decide(self) -> bool:
        """One row: a spot check if one is due, else the most suspicious; False at the end."""
        state = self.state
        if self.spots and self.plan.due(state):
            item = self.plan.draw(state)
            if item is not None:
                self.draws.append(Draw(item, len(self.settled)))
                return self._answer(item)
        stage = len(self.settled) // REFIT if self.learning else 0
        if stage != self.fitted:
            learned = self.plan.learned(state if self.learning else ReviewState({}))
            order = self.plan.order(ReviewState({}), learned)
            self.order = [item for item in order if item not in self.settled]
            self.fitted = stage
        for item in self.order:
            if item not in self.settled:
                return self._answer(item)
        return False

    def _answer(self, item: int) -> bool:
        self.settled[item] = Settled(len(self.settled) + 1, self.wrong[item])
        return True

    def remaining(self) -> RemainingErrors:
        state = self.state
        return self.plan.remaining(state, self.plan.learned(state))


def plan_of(case: Case, listed: int, seed: int) -> tuple[ReviewPlan, dict[int, bool]]:
    """The folder that `fix-labels` would write of a case: suspects, and a sample of the rest."""
    strata, chosen, stratum = sample_rest(case.p[listed:], listed=listed, seed=seed)
    half = -(-listed // 2)

    def row(i: int, stratum: int) -> Suspect:
        return Suspect(
            i, str(case.given[i]), str(case.suggested[i]), float(case.p[i]),
            float(case.model[i]), stratum=stratum,
        )  # fmt: skip

    suspects = [row(i, int(i >= half)) for i in range(listed)]
    rest = [row(listed + int(i), int(h)) for i, h in zip(chosen, stratum, strict=True)]
    truth = {s.item: bool(case.wrong[s.row]) for s in (*suspects, *rest)}
    return ReviewPlan(suspects, rest, strata), truth


def listed_by_default(case: Case) -> int:
    """As many as `exempla fix-labels` lists."""
    rows = case.p.size
    return min(max(20, min(200, rows // 10), round(2 * float(case.p.sum()))), 2000, rows)


def covered(case: Case, seed: int, decisions: int = 60) -> tuple[bool, RemainingErrors, int, float]:
    """Whether one review's interval holds the truth, and the interval before any spot check."""
    plan, truth = plan_of(case, listed_by_default(case), seed)
    person = Person(plan, truth)
    for _ in range(decisions):
        person.decide()
    left = person.remaining()
    remaining = int(case.wrong.sum()) - sum(each.wrong for each in person.settled.values())
    if left.low is None or left.high is None:
        raise RuntimeError("a review without spot checks has no interval")
    stated = ReviewState({})
    expected = plan.remaining(stated, plan.learned(stated)).mean
    return left.low <= remaining <= left.high, left, remaining, expected


def until_found(case: Case, share: float, seed: int, **how: bool) -> int:
    """Decisions until `share` of the wrong labels are found, all rows being listed."""
    plan, truth = plan_of(case, case.p.size, seed)
    person, wanted, found = Person(plan, truth, **how), share * case.wrong.sum(), 0
    while found < wanted and person.decide():
        found += next(reversed(person.settled.values())).wrong
    return len(person.settled)


def measured(make: Callable[[int], Case], reviews: int, sought: bool) -> dict[str, Any]:
    """One line of the table."""
    outcomes = [covered(make(seed), seed) for seed in range(reviews)]
    case = make(0)
    left = [each[1] for each in outcomes]
    line = {
        "data": case.data, "kind": case.kind, "rate": case.rate, "rows": case.p.size,
        "listed": listed_by_default(case), "wrong": int(case.wrong.sum()),
        "expected": round(float(case.p.sum()), 1), "reviews": reviews,
        "covered": round(float(np.mean([each[0] for each in outcomes])), 3),
        "median_low": np.median([each.low for each in left]),
        "median_high": np.median([each.high for each in left]),
        "median_left": np.median([each[2] for each in outcomes]),
        "median_stated_left": round(float(np.median([each[3] for each in outcomes])), 1),
    }  # fmt: skip
    if sought:
        line["fixed_90"] = until_found(case, 0.9, 0, spots=False, learning=False)
        line["learned_90"] = until_found(case, 0.9, 0, spots=False)
        line["page_90"] = until_found(case, 0.9, 0)
    return line


FIRST_FIELDS = (
    "data", "kind", "rate", "rows", "wrong", "stated", "stated_low", "stated_high",
    "stated_covers", "checks", "reviews", "after", "after_low", "after_high", "covered",
    "ap_before", "ap_after", "better",
)  # fmt: skip


def checked_first(case: Case, checks: int, seed: int) -> tuple[float, float, float, float, float]:
    """Wrong labels in the file after `checks` random rows (mean, low, high), and the average
    precision of the order over all other rows, before and after."""
    plan, truth = plan_of(case, listed_by_default(case), seed)
    plan.initial_sample = checks
    person = Person(plan, truth)
    for _ in range(checks):
        person.decide()
    if len(person.draws) != checks:
        raise RuntimeError("not every row was drawn at random")
    left, found = person.remaining(), sum(each.wrong for each in person.settled.values())
    everything, _ = plan_of(case, case.p.size, seed)  # the same rows, all of them in the order
    learned = everything.learned(person.state).probabilities
    open_ = ~np.isin([suspect.item for suspect in everything.items], list(person.settled))
    before, after = (
        average_precision_score(case.wrong[open_], p[open_]) for p in (case.p, learned)
    )
    if left.low is None or left.high is None:
        raise RuntimeError("a review without spot checks has no interval")
    return found + left.mean, found + left.low, found + left.high, float(before), float(after)


def first_line(case: Case, checks: int, reviews: int) -> dict[str, Any]:
    """One line of the table of reviews that begin with random checks."""
    made = np.array([checked_first(case, checks, seed) for seed in range(reviews)])
    wrong = int(case.wrong.sum())
    assert case.expected is not None
    mean, low, high = np.round(case.expected, 1).tolist()
    middle = np.median(made, axis=0)
    return {
        "data": case.data, "kind": case.kind, "rate": case.rate, "rows": case.p.size,
        "wrong": wrong, "stated": mean, "stated_low": low, "stated_high": high,
        "stated_covers": bool(low <= wrong <= high), "checks": checks, "reviews": reviews,
        "after": round(middle[0], 1), "after_low": middle[1], "after_high": middle[2],
        "covered": round(float(np.mean((made[:, 1] <= wrong) & (wrong <= made[:, 2]))), 3),
        "ap_before": round(float(made[:, 3].mean()), 4),
        "ap_after": round(float(made[:, 4].mean()), 4),
        "better": round(float(np.mean(made[:, 4] > made[:, 3])), 3),
    }  # fmt: skip


def false_stops(share: float, seeds: int, rows: int = 20_000, most: int = 900) -> float:
    """How often a page stops while a little more than `share` is left.

    Every decision is a spot check, and the page looks after each: the most looks that there can be.
    """
    from exempla.review.sampling import BETS

    wrong = int(1.02 * share * rows)
    stopped = 0
    for seed in range(seeds):
        hit = np.random.default_rng(seed).permutation(rows)[:most] < wrong
        found, too_early = np.cumsum(hit), False
        earlier = found - hit
        for x in range(int(found[-1]) + 1):  # the stake against "`share` is left, beside x found"
            p = (share * rows + x - earlier) / (rows - np.arange(most))
            steps = [(w, np.where(hit, c, (1 - c * p) / (1 - p))) for c, w in BETS]
            stake = sum(w * np.cumprod(step) for w, step in steps)
            at = (found == x) & (stake >= 10)
            too_early |= bool(at.any() and wrong - x > share * rows)
        stopped += too_early
    return stopped / seeds


def lines(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The whole table, line by line."""
    for kind in KINDS if "synthetic" in options.sets else ():
        for rate in RATES:
            yield measured(
                lambda seed, k=kind, r=rate: synthetic_case(k, r, seed), options.reviews, True
            )
    for wrongly in ("turned", "blind") if "synthetic" in options.sets else ():
        yield measured(
            lambda seed, w=wrongly: getattr(synthetic_case("uniform", 0.1, seed), w)(),
            options.reviews,
            True,
        )
    if options.data is None:
        return
    for case in real_cases(
        options.data,
        options.cache,
        options.seed,
        tuple(s for s in options.sets if s != "synthetic"),
    ):
        yield measured(lambda seed, c=case: c, options.reviews, True)
        if case.kind == "uniform" and case.rate == 0.1:
            turned = case.turned()
            yield measured(lambda seed, c=turned: c, options.reviews, False)


def main() -> None:
    """Write the table, and print it as it grows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--cache", type=Path, default=Path(gettempdir(), "exempla-reviews"))
    parser.add_argument("--sets", nargs="+", default=["synthetic", "digits", "adult", "enron"])
    parser.add_argument("--reviews", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="of the mistakes in real data")
    parser.add_argument("--out", type=Path, default=Path("docs/experiments/reviews.csv"))
    parser.add_argument("--first", type=int, help="only reviews that begin with so many checks")
    parser.add_argument("--stops", action="store_true", help="only how often a stop is too early")
    parser.add_argument("--judge", action="store_true", help="only fill the cache")
    options = parser.parse_args()
    if options.stops:
        for share in (0.01, 0.02, 0.05):
            print(share, false_stops(share, 2000), flush=True)
        return
    if options.first:
        sets = tuple(s for s in options.sets if s != "synthetic")
        cases = real_cases(options.data, options.cache, options.seed, sets, 0, (0.1,))
        made = (first_line(case, options.first, options.reviews) for case in cases)
        _write(options.out, FIRST_FIELDS, made)
        return
    if options.judge:
        for case in real_cases(options.data, options.cache, options.seed):
            print(case.data, case.kind, case.rate, case.p.sum(), case.wrong.sum(), flush=True)
        return
    _write(options.out, FIELDS, lines(options))


def _write(path: Path, fields: tuple[str, ...], lines: Iterator[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fields, lineterminator="\n")
        writer.writeheader()
        for line in lines:
            writer.writerow(line)
            file.flush()
            print(line, flush=True)


if __name__ == "__main__":
    main()
