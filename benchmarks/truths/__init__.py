"""A suite of small retraining truths: which influence predicts what training again really does?

    python -m benchmarks.truths.data --out FOLDER        the data of all settings, once
    python -m benchmarks.truths.make --out FOLDER        networks trained on many subsets (a GPU)
    python -m benchmarks.truths.table --folder FOLDER    what exempla says of each

Read `settings` first: what is trained, and which half of the settings a rule may be chosen on.
"""
