"""The keeper: a program of its own, started as `python -I -S main.py`; these modules use the standard library only."""
