"""Models become scores: one module per framework behind one interface (`base.Oracle`)."""
