"""Holds what the page and the process that writes captions share: what is asked, the model's files, results."""
