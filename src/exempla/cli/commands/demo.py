"""`exempla demo`: explain the mistakes of a classifier on scikit-learn's handwritten digits."""

from __future__ import annotations

from argparse import Namespace

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from exempla.cli.options import command_line
from exempla.cli.output import Job, write_results
from exempla.explainer import Explainer
from exempla.report import About, ImageView, plot_evidence
from exempla.report.words import answer


def run(options: Namespace) -> int:
    """Train, explain, and write the results."""
    with Job.opened(options, ["mistakes.png"]) as job:
        X, y = load_digits(return_X_y=True)
        X_train, X_test, y_train, y_test = train_test_split(
            X / 16.0, y, test_size=0.5, random_state=options.seed, stratify=y
        )
        model = LogisticRegression(max_iter=1000, tol=1e-6).fit(X_train, y_train)
        job.say(
            f"1. Trained logistic regression on {len(y_train):,} handwritten digits "
            "(8 × 8 pixels, from scikit-learn)."
        )
        wrong = np.flatnonzero(model.predict(X_test) != y_test)
        accuracy = f"{1 - len(wrong) / len(y_test):.1%}"
        job.say(
            f"2. On {len(y_test):,} unseen digits its accuracy is {accuracy}: {len(wrong)} "
            "mistakes."
        )
        explainer = Explainer(model, seed=options.seed, progress=job.progress)
        explanation = explainer.fit((X_train, y_train)).explain(
            (X_test[wrong], y_test[wrong]), k=options.k
        )
    about = About(
        question=f"Which training images led to these {len(wrong)} mistakes?",
        data="scikit-learn's handwritten digits",
        model="logistic regression",
        accuracy=f"{accuracy} on {len(y_test):,} unseen digits",
        command=command_line(options),
        noun="mistakes",
        steps=(
            ("Explain errors on your own file:", "exempla explain YOURFILE.csv --label COLUMN"),
            ("Find wrong labels in your file:", "exempla fix-labels YOURFILE.csv --label COLUMN"),
        ),
    )
    train_view, test_view = (
        ImageView(np.reshape(X, (-1, 8, 8)), labels=y, predicted=model.predict(X), names=names)
        for X, y, names in (
            (X_train, y_train, None),
            (X_test[wrong], y_test[wrong], [f"test image {i}" for i in wrong]),
        )
    )
    with job.published() as stage:
        paths = write_results(
            stage, explanation, train_view=train_view, test_view=test_view, about=about
        )
        paths["picture"] = stage / "mistakes.png"
        plot_evidence(explanation, train_view, test_view, paths["picture"])
    job.say(
        f"3. Picked the {len(explanation)} training images most responsible for those mistakes."
    )
    job.say(answer(explanation, about))
    job.say_files(paths)
    return 0
