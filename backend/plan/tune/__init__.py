"""Finds the settings with which a run ends soonest, by short probes of what may differ and still train the same."""
