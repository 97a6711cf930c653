"""Strange input at every door: each call answers rightly or refuses with one of our errors.

values.py holds what is put in, doors.py the calls, corpus.py every case that ever failed. A short
run goes with the tests, a long one with `make fuzz`.
"""
