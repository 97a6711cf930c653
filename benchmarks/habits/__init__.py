"""Kinds of torch model, output and data that people have, each small, trained and asked.

Inside: base (a kind, its run), vectors, images, sequences, language, data, refused. Three training
examples of each are copies of the questioned ones with another label: those must be found.
"""
