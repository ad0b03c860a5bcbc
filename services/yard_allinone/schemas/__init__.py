"""What integrators read, made from the code: the contents of `schemas/`, and the check that nobody breaks it."""
