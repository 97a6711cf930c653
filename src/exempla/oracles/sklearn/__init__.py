"""scikit-learn models as oracles.

Modules: registry (which oracle scores which model), unwrap, data, base (what all oracles share),
linear (dense layers and who has them), kernels, oracle, losses, neighbours, generative, wrappers.
Imports: data, recorder (its files), oracles.base, oracles.likelihoods, errors.
"""
