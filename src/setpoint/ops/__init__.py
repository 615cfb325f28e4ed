"""Operations of runs: add-ons on which training does not depend."""
