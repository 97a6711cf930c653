"""Train a classifier on scikit-learn's handwritten digits and explain its mistakes.

The report shows each mistake beside the training images that are responsible for it.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from typing import Any

from exempla.cli.console import Console
from exempla.cli.options import add_output, command_line


def add_arguments(parser: ArgumentParser) -> None:
    """Add the number of images and the output."""
    parser.add_argument(
        "-k", type=int, default=50, help="how many training images to pick (default: 50)"
    )
    add_output(parser, "demo-out")


def run(options: Namespace) -> int:
    """Train, explain, and write the results."""
    from exempla.cli.output import prepare_folder, published, say_files, write_results
    from exempla.explainer import Explainer
    from exempla.report import About, plot_evidence
    from exempla.report.words import answer

    console = Console.of(options)
    folder = prepare_folder(options, ["mistakes.png"])
    digits = _train(options.seed)
    console.say(
        f"1. Trained logistic regression on {len(digits.train[1]):,} handwritten digits "
        "(8 × 8 pixels, from scikit-learn)."
    )
    wrong = len(digits.errors[1])
    accuracy = f"{1 - wrong / digits.n_test:.1%}"
    console.say(
        f"2. On {digits.n_test:,} unseen digits its accuracy is {accuracy}: {wrong} mistakes."
    )
    explainer = Explainer(digits.model, seed=options.seed, progress=console.progress)
    explanation = explainer.fit(digits.train).explain(digits.errors, k=options.k)
    about = About(
        question=f"Which training images led to these {wrong} mistakes?",
        data="scikit-learn's handwritten digits",
        model="logistic regression",
        accuracy=f"{accuracy} on {digits.n_test:,} unseen digits",
        command=command_line(options),
        noun="mistakes",
        steps=(
            ("Explain errors on your own file:", "exempla explain YOURFILE.csv --label COLUMN"),
            ("Find wrong labels in your file:", "exempla fix-labels YOURFILE.csv --label COLUMN"),
        ),
    )
    train_view, test_view = digits.views()
    with published(folder, options) as stage:
        paths = write_results(
            stage, explanation, train_view=train_view, test_view=test_view, about=about
        )
        paths["picture"] = stage / "mistakes.png"
        plot_evidence(explanation, train_view, test_view, paths["picture"])
    console.say(
        f"3. Picked the {len(explanation)} training images most responsible for those mistakes."
    )
    console.say(answer(explanation, about))
    say_files(console, folder, paths)
    return 0


@dataclass(frozen=True)
class Digits:
    """The trained model, its training data, and its mistakes."""

    model: Any
    train: tuple[Any, Any]
    errors: tuple[Any, Any]
    wrong: Any
    """Positions of the mistakes among the unseen digits."""
    n_test: int

    def views(self) -> tuple[Any, Any]:
        """Return the views of training digits and of mistakes."""
        names = [f"test image {i}" for i in self.wrong]
        return self._view(*self.train, None), self._view(*self.errors, names)

    def _view(self, X: Any, y: Any, names: list[str] | None) -> Any:
        from exempla.report import ImageView

        images = X.reshape(-1, 8, 8)
        return ImageView(images, labels=y, predicted=self.model.predict(X), names=names)


def _train(seed: int) -> Digits:
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split

    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(
        X / 16.0, y, test_size=0.5, random_state=seed, stratify=y
    )
    model = LogisticRegression(max_iter=1000, tol=1e-6).fit(X_train, y_train)
    wrong = (model.predict(X_test) != y_test).nonzero()[0]
    errors = (X_test[wrong], y_test[wrong])
    return Digits(model, (X_train, y_train), errors, wrong, len(y_test))
