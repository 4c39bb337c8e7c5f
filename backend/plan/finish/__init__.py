"""Tells when a run will end, before it starts: from a short probe of its settings, or from an earlier run."""
