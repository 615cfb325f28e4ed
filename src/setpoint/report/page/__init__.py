"""The report on runs: one self-contained HTML file."""
