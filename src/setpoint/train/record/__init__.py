"""What a run directory keeps, and how a run goes on from it."""
