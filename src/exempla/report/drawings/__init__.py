"""What a report draws: the curve, effects, figures and small pictures."""
