"""What the launcher does before there is an environment to run in: standard library only, nothing here prints."""
