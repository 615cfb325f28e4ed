"""Where documents come from: one file per source."""
