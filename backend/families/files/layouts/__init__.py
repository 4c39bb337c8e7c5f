"""Layouts of single files, as data: what a project calls the tensors of a part, and what diffusers calls them.

Here are the rules and what several families share; a family's own layout is its `layout.py`.
"""
