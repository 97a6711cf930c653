"""exempla: which training examples are most responsible for this set of predictions?

    import exempla
    answer = exempla.explain(model, (X_train, y_train), (X_test, y_test), k=50)
    answer.indices, answer.weights

Ask             explain, Explainer, Explanation
Do a job        explain_errors, fix_labels, clean, summarize, acquire, attack
Get back        Answer, and of its kind LabelFixes, Cleaning,
                Summary, Acquisition, Attack; Verification
Pick yourself   select, select_from_kernel, Selection, and the selectors
Language        Completions: prompts and completions as training data and as a question
Record          Recorder: snapshots of a training, which make answers truer
Measure         metrics, certificate
Stand in        surrogate, for a model that has no scores
Errors          ExemplaError, ExemplaWarning
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exempla import metrics
    from exempla.data import Completions
    from exempla.errors import ExemplaError, ExemplaWarning
    from exempla.estimator import FisherExplainer
    from exempla.explainer import Explainer, KernelOptions
    from exempla.oracles.scores import ArrayScores, ScoreModel
    from exempla.recorder import Recorder
    from exempla.results import Answer, Explanation, Features, Selection
    from exempla.selection import (
        SBQ,
        Herding,
        MatchingPursuit,
        NonNegative,
        Random,
        Sharded,
        StochasticGreedy,
        TopInfluence,
        select,
        select_from_kernel,
    )
    from exempla.selection.certificate import certificate
    from exempla.tables.models.surrogate import Surrogate, surrogate
    from exempla.tasks.acquire import Acquisition, acquire
    from exempla.tasks.attack import Attack, attack
    from exempla.tasks.clean import Cleaning, clean
    from exempla.tasks.explain import explain, explain_errors
    from exempla.tasks.labels.fix_labels import fix_labels
    from exempla.tasks.labels.result import LabelFixes
    from exempla.tasks.summarize import Summary, summarize
    from exempla.tasks.verify import Verification
    from exempla.version import __version__

# Where each public name lives. Names are imported on first use, so that `import exempla` is
# quick and nothing heavy loads unless it is asked for.
_HOMES = {
    "exempla.explainer": "Explainer KernelOptions",
    "exempla.results": "Answer Explanation Features Selection",
    "exempla.tasks.explain": "explain explain_errors",
    "exempla.tasks.labels.fix_labels": "fix_labels LabelFixes",
    "exempla.tasks.clean": "clean Cleaning",
    "exempla.tasks.acquire": "acquire Acquisition",
    "exempla.tasks.summarize": "summarize Summary",
    "exempla.tasks.attack": "attack Attack",
    "exempla.tasks.verify": "Verification",
    "exempla.selection": "select select_from_kernel SBQ MatchingPursuit StochasticGreedy "
    "NonNegative Herding TopInfluence Random Sharded",
    "exempla.selection.certificate": "certificate",
    "exempla.data": "Completions",
    "exempla.recorder": "Recorder",
    "exempla.estimator": "FisherExplainer",
    "exempla.tables.models.surrogate": "surrogate Surrogate",
    "exempla.oracles.scores": "ArrayScores ScoreModel",
    "exempla.errors": "ExemplaError ExemplaWarning",
    "exempla.version": "__version__",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "explain", "Explainer", "Answer", "Explanation", "Features",
    "explain_errors", "fix_labels", "clean", "summarize", "acquire", "attack",
    "LabelFixes",
    "Cleaning", "Summary", "Acquisition", "Attack", "Verification",
    "select", "select_from_kernel", "Selection",
    "SBQ", "MatchingPursuit", "StochasticGreedy", "NonNegative", "Herding", "TopInfluence",
    "Random", "Sharded",
    "metrics", "certificate", "KernelOptions",
    "FisherExplainer", "ArrayScores", "ScoreModel", "surrogate", "Surrogate", "Recorder",
    "Completions",
    "ExemplaError", "ExemplaWarning",
    "__version__",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "metrics":
        return import_module("exempla.metrics")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'exempla' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
