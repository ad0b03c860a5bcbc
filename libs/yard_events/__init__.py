"""Event types, the CloudEvents codec, the topic registry, and the job document people write."""
