"""Defines the one exception that the launcher turns into a sentence."""


class SetupError(Exception):
    """The set-up can't continue. The text says what is wrong and what to do about it."""
