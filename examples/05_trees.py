"""Which training rows are behind the mistakes of a boosted ensemble, and does that hold?

Run it:         python examples/05_trees.py [OUT]
It takes:       a few seconds, no downloads (scikit-learn's own boosting; LightGBM, XGBoost and
                CatBoost are taken the same way)
It writes:      OUT/answer.csv    the rows behind the mistakes
It shows:       a data frame with categories and gaps, wrong labels among its rows, explain,
                clean, the check by retraining, and an attack by wrong labels

Read it top to bottom.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier

import exempla

out = Path(sys.argv[1] if len(sys.argv) > 1 else "examples-out")
out.mkdir(parents=True, exist_ok=True)

# 1. A table as it comes: numbers with gaps, a column of categories. One label in eight is wrong.
rng = np.random.default_rng(0)
size, town = rng.normal(size=900), rng.choice(["north", "south", "east"], 900)
price = size + (town == "north") - (town == "south")
y = np.where(price + 0.3 * rng.normal(size=900) > 0, "dear", "cheap")
X = pd.DataFrame({"size": size, "rooms": rng.integers(1, 6, 900), "town": pd.Categorical(town)})
X.loc[rng.random(900) < 0.1, "size"] = np.nan
train, test = (X[:600], y[:600].copy()), (X[600:], y[600:])
wrong = rng.choice(600, 75, replace=False)
train[1][wrong] = np.where(train[1][wrong] == "dear", "cheap", "dear")

# 2. Trees as you would grow them. Categories and gaps fall where the library lets them fall.
model = HistGradientBoostingClassifier(max_iter=60, random_state=0).fit(*train)
print(f"Accuracy {model.score(*test):.3f} with wrong labels.")

# 3. Who is behind the mistakes? The scores are those of the leaf values; nothing is made dense.
answer = exempla.explain_errors(model, train, test, k=40, progress=False)
print(answer)
answer.to_csv(out / "answer.csv")

# 4. Whose removal would help? Grow the trees again without these rows, and without others.
harmful = exempla.clean(model, train, test, 60, ask="all", progress=False)
share = np.isin(harmful.indices, wrong).mean()
print(f"{share:.0%} of the most harmful rows have wrong labels; by chance it is 12%.")
checked = harmful.verify(seeds=2)
print(checked)

# 5. The other way round: which wrong labels would harm these predictions most?
target = (X[600:610], y[600:610])
attack = exempla.attack(model, train, target, perturb="labels", k=5, progress=False)
print(attack.verify(seeds=2))
