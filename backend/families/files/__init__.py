"""Reads what the files of a base model are: headers, layouts, parts, and what is wrong with them. Torch-free."""
