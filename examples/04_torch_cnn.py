"""Explain the mistakes of a small convolutional network.

Run it:         python examples/04_torch_cnn.py [OUT]
It takes:       under a minute on a CPU, no downloads (scikit-learn's 8×8 digits)
It needs:       torch (`pip install 'exempla[torch]'`); without it, it says so and ends
It writes:      OUT/cnn.png    misread digits beside the training images responsible
It shows:       a torch module is explained as it is: no wrapping, no vmap, no settings

Read it top to bottom.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

if find_spec("torch") is None:
    sys.exit("This example needs torch: pip install 'exempla[torch]'")

import torch
from sklearn.datasets import load_digits
from torch import nn

import exempla
from exempla.report import ImageView, plot_evidence

out = Path(sys.argv[1] if len(sys.argv) > 1 else "examples-out")
out.mkdir(parents=True, exist_ok=True)

# 1. A network as you would train it.
torch.manual_seed(0)
pixels, labels = load_digits(return_X_y=True)
X = torch.tensor(pixels / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
y = torch.tensor(labels)
X_train, y_train, X_test, y_test = X[:400], y[:400], X[400:1000], y[400:1000]
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)
)
optimiser = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-4)
for _ in range(60):
    optimiser.zero_grad()
    nn.functional.cross_entropy(model(X_train), y_train).backward()
    optimiser.step()
model.eval()
with torch.no_grad():
    said = model(X_test).argmax(1)
wrong = said != y_test
print(f"The network misreads {int(wrong.sum())} of {len(y_test)} digits.")

# 2. The question. Damping, likelihood and basis are found, and said in the answer.
answer = exempla.explain_errors(model, (X_train, y_train), (X_test, y_test), k=20, progress=False)
print(answer)

# 3. Look.
train_view = ImageView(X_train[:, 0].numpy(), labels=y_train.numpy())
test_view = ImageView(
    X_test[wrong][:, 0].numpy(), labels=y_test[wrong].numpy(), predicted=said[wrong].numpy()
)
plot_evidence(answer, train_view, test_view, out / "cnn.png", questioned=6)

# 4. Only the last layer? Much cheaper for a large network, and another question: what moved the
#    decision on top of fixed features.
explainer = exempla.Explainer(model, parameters="4.*", progress=False).fit((X_train, y_train))
head = explainer.explain((X_test[wrong], y_test[wrong]), k=20)
shared = len(set(answer.indices.tolist()) & set(head.indices.tolist()))
print(f"The last layer alone names {shared} of the same 20 rows.")
