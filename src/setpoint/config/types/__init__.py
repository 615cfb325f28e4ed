"""How the values of fields are read, stored, shown and written."""
