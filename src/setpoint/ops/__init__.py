"""Operations of runs: add-ons that training does not depend on."""
