"""The parts of `fix_labels`: one kind of evidence, one step of weighing it, in each file."""
