"""The command line `yard`."""
