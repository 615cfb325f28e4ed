"""The training job: its root config, build order, loop and state."""

from setpoint.train.threads import prepare_threads

# Whatever loads torch for a job comes by here first, whether a command or a program.
prepare_threads()
