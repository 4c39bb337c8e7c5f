"""Holds the model families' code, all of it with torch; what a family is without torch is in `backend.families`.

`family` says what a family gives, `family_classes` finds one by its name, `common` is what several share, and each
family has a `denoiser` and `encoders`.
"""
