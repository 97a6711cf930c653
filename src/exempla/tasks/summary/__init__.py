"""The parts of `summarize`: the linear head, its posterior, the weights and their total."""
