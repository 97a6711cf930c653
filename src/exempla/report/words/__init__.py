"""What a report says: the answer in words, how far to trust it, and where the data came from."""
