"""Config classes: fields and their declarations, the class statement, and the tree of all fields.

It uses `types` and what is below it; it knows instances only as nodes.
"""
