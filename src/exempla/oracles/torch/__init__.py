"""torch modules as oracles.

Inside, from data to scores: model (Trainers, pipelines, checkpoints, selection of parameters; the
model is put back), examples (what is read), likelihood (what outputs mean), tape (uses of
parameters in a forward pass), layers, factors and conv (their scores), network (survey and passes),
oracle (a data set), curvature (products with its Fisher). torch is imported at the top of these
files; `exempla.oracles` imports them when a torch model arrives.
Imports: recorder, likelihoods, factors, memory, arrays, errors, oracles.base.
"""
