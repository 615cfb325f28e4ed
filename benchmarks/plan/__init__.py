"""What the plan of a job says, beside what was measured."""
