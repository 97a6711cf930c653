"""Rows that lie close together: what their labels say of each other.

features    what a row is compared by: what a model's last step sees, or the inputs
neighbours  the nearest rows, and how they vote
conflicts   equal and nearly equal rows with different labels
"""
