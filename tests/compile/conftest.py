"""Fixtures of the tests of what is compiled and recorded."""

from tests.tiny.tape import card

__all__ = ["card"]
