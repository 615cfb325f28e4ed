"""What a SOURCE can be besides a preset, a file and a function: folders, and git revisions."""
