"""Functions of torch with parameters inside, and the same sums in the open: attention, recurrent
layers and cells, bags of embeddings. Each returns None where a rarer option is asked for.

Imports: torch alone.
"""
