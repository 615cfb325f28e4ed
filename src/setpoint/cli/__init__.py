"""The command line: one file a command; each prints, parses, and calls down."""
