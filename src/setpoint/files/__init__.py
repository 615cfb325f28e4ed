"""Files that are written whole, kept on the disk, and compared: what all components share."""
