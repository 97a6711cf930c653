"""Wrong labels that are no single class: numbers, one of several labels, tokens, very many classes.

`exempla.fix_labels` is the one door; `job_of` tells what it was given.

    kinds             what kind of labels was given
    shares            the share of wrong labels, as a posterior
    residuals         what models that have not seen a number expect of it, and its spread
    mixture           right and wrong numbers as a mixture: the probability of each
    numbers           which numbers of a regression are wrong
    predictions       what models that have not seen a class label predict of it, in little room
    blunders          the probability that such a label is wrong
    from_predictions  both, twice: the second time without the suspects
    softmax           a linear model in bounded memory
    token_features    what it sees of a token
    tokens            which labels of tokens are wrong
    multilabel        which of several labels are wrong
    many              which labels of 1,000 classes and more are wrong
    results           what comes back
"""

from __future__ import annotations

from typing import Any

from exempla.checks import check_choice, check_flag
from exempla.errors import ExemplaError
from exempla.progress import showing
from exempla.tasks.label_jobs.kinds import TASKS, job_of
from exempla.tasks.label_jobs.results import ClassFixes, JobFixes, NumberFixes, PartFixes

__all__ = ["ClassFixes", "JobFixes", "NumberFixes", "PartFixes", "other_job"]


def other_job(
    task: Any,
    model: Any,
    train: Any,
    curated: Any,
    k: int | None,
    *,
    progress: bool,
    probabilities: Any = None,
    original_labels: Any = None,
    **options: Any,
) -> JobFixes | None:
    """The answer where labels are not one of a few classes; None where they are."""
    job = job_of(model, train, check_choice("task", task, TASKS), probabilities)
    if job == "classes":
        return None
    if original_labels is not None:
        raise ExemplaError("original_labels is only of use where labels are one of a few classes.")
    with showing(check_flag("progress", progress)):
        if job == "regression":
            from exempla.tasks.label_jobs.numbers import fix_numbers

            return fix_numbers(model, train, curated, k, **options)
        # Imported here: it reads problems as fix_labels does, which imports this module.
        from exempla.tasks.label_jobs.many import fix_many_classes
        from exempla.tasks.label_jobs.multilabel import fix_label_sets
        from exempla.tasks.label_jobs.tokens import fix_token_labels

        jobs = {"many": fix_many_classes, "multi-label": fix_label_sets, "tokens": fix_token_labels}
        return jobs[job](model, train, curated, k, probabilities=probabilities, **options)
