"""Classifiers that model x given its class: discriminants and naive Bayes.

They are fitted to log p(x, y) and asked for log p(y | x). So a training row's score is that of the
first, a questioned row's that of the second, and the metric is the Fisher of the first: dot
products are then what removing the training row does to the prediction. With a_k the gradient of
log p(x, class k), r = onehot(y) for a training row and onehot(y) − p(·|x) for a questioned one,
both are Σ_k r_k a_k.

Imports: oracles.base, the reading of data above.
"""
