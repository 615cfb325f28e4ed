"""What editors and people are told of a root class: its JSON Schema, and the help of its fields."""
