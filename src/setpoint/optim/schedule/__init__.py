"""Learning-rate schedules: pure functions of the update's number, and their configuration."""
