"""Where the rows live while they are chosen among: NumPy, torch, fused numba passes.

Imports: arrays, errors.
"""
