"""What keeps a run from being lost: orderly stops."""
