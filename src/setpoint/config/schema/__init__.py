"""Config classes: fields and their declarations, the class statement, and the tree of all fields.

Uses `types` and the parts below it; instances are known only as nodes.
"""
