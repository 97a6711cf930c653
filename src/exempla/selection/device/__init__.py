"""The greedy loop for one target on a GPU: one round trip to the host per pass.

`lookahead` guesses and checks picks; `kernels` holds its operations as Triton kernels.
"""
