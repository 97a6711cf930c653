"""Strange input at every door: each call answers rightly or refuses with one of our errors.

values.py holds what is put in, doors.py the calls, cases.py puts the two together and judges how a
call ends, meaning.py says which values may be answered; files.py breaks files. corpus.py and
corpus_runs.py keep every call and every command that ever failed. A short run goes with the tests,
a long one with `make fuzz`, which counts what it tried.
"""
