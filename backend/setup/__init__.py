"""Prepares the environment for the launcher, before there is one to run in: standard library only, nothing prints."""
