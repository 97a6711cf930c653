"""Find wrong labels: which rows to check first, what they should say, and how certain that is."""
