"""Facts planted in a text, a language model trained on it from scratch, and the lines that taught
them: which methods find those lines?

    python -m benchmarks.facts --out FOLDER        (EXEMPLA_DATA names the folder with SST-2)

corpus      real sentences, and facts stated in ten wordings each beside lines that only sound alike
model       a small decoder of plain torch, and its training
methods     exempla and the baselines that need nothing installed
run_…       peers, each in an environment of its own
"""
