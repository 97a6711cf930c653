"""The jobs: explain errors, fix labels, clean, summarise, attack; one short file each."""
