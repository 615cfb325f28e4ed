"""The sides of `train.loops`: each has a function `run(work, turns)`."""
