"""A module whose package is not installed."""

import surely_not_installed  # pyright: ignore[reportMissingImports]

Thing = surely_not_installed.Thing
