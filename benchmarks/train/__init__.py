"""Training loops beside each other, and the scripts for one H200."""
