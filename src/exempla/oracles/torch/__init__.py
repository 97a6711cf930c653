"""torch modules as oracles.

Inside, from data to scores: sources and examples (what is read), trainers (Trainers, pipelines,
checkpoints, selection of parameters), likelihood (what outputs mean), tape (uses of parameters in
a forward pass), layers, factors and conv (their scores), survey and network (where samples stand,
passes), restore (the model is put back), oracle (a data set), curvature (products
with its Fisher). torch is imported at the top of these files; `exempla.oracles` imports them when a
torch model arrives.
Imports: recorder, likelihoods, factors, memory, arrays, errors, oracles.base.
"""
