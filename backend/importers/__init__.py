"""Brings settings of other trainers over; `file_kinds` lists whose."""
