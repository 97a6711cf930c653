"""One file per way to choose: each a small frozen object on top of the greedy engine.

Imports: selection's engine, basis, candidates; never another job.
"""
