"""The Fisher kernel: scores become rows, and rows become whitened features."""
