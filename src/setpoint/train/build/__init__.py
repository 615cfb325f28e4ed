"""From a resolved job to the objects that train it."""
