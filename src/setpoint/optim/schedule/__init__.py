"""Learning-rate schedules: pure functions of the step's number, and their configuration."""
