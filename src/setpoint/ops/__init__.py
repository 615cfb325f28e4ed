"""Operations of runs: training does without them, and they enter as add-ons of others do."""
