"""Other data-attribution libraries, each run by a small script in an environment of its own."""
