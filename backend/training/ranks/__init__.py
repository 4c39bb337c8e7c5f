"""Trains with several processes, a GPU each: starts them, and exchanges gradients and decisions between them.

The first process (rank 0) is the run's: it alone writes its folder, measures, draws and saves. The others only train.
"""
