"""What names may look like, and the scope strings that several services share."""

import re

NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?")
NAME_RULE = "1 to 63 lower-case letters, digits, '.', '_' or '-', beginning and ending with a letter or digit"
JOB_ID = re.compile(r"job-[0-9a-z]{26}")

DEFAULT_CLUSTER = "local"
DEFAULT_POOL = "default"


def is_name(value: str) -> bool:
    return ".." not in value and NAME.fullmatch(value) is not None


def pool_key(cluster: str, pool: str) -> str:
    """The key of everything that concerns one pool: `cluster/pool`."""
    return f"{cluster}/{pool}"
