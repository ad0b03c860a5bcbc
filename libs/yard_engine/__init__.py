"""The pure core of placement: snapshot in, plan out. No I/O, no clock, no random source."""

VERSION = "0.1"
"""Written into every decision, so that it can be replayed by the code that made it."""
