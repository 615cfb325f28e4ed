"""Components that Setpoint does not know: any callable, by its import path and its arguments."""
