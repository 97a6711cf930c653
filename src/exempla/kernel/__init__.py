"""Scores become rows, and rows become whitened features whose dot products are the Fisher kernel."""
