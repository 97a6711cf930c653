"""scikit-learn models as oracles.

Modules: registry (which oracle scores which model), unwrap, data, base (what all oracles share),
oracle (dense layers; read by linear and kernels), losses, neighbours, generative, wrappers.
Imports: data, recorder (its files), oracles.base, oracles.likelihoods, errors.
"""
