"""What an error of Kafka's means for the caller."""
# pyright: reportMissingTypeStubs=false
# aiokafka comes without stubs.

from collections.abc import Generator
from contextlib import contextmanager

from aiokafka.errors import KafkaError

from yard_domain.errors import Retryable


@contextmanager
def kafka_errors(doing: str) -> Generator[None]:
    """Everything that Kafka or the way to it can say becomes Retryable: brokers come back, disks are emptied, rights
    are granted, and until then nothing may be lost. What is wrong stands in the message."""
    try:
        yield
    except (TimeoutError, KafkaError, OSError) as error:
        raise Retryable(f"kafka: {doing}: {describe(error)}") from error


def describe(error: BaseException) -> str:
    """One line."""
    text = " ".join(str(error).split())
    return text or type(error).__name__
