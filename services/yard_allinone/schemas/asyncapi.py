"""The AsyncAPI 3.0 document: topics as channels, event types as messages, and who sends what.

Source: AsyncAPI specification 3.0.0; its Kafka bindings 0.5.0; CloudEvents' Kafka protocol binding 1.0.2.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from yard_allinone.schemas.events import Schema, event_schemas
from yard_events.dead_letters import DEAD_LETTER_TYPES, PARKED_TYPE
from yard_events.envelope import CONTENT_TYPE, MAX_PUBLISH_SEQ, SPEC_VERSION, data_schema
from yard_events.registry import CONSUMING_SERVICES, TOPICS, Policy, Topic, dead_letter_topic

VERSION = "1"
"""Of the document as a whole; each event type carries its own."""

BINDING_VERSION = "0.5.0"
_ORIGIN_HEADERS = {
    "yard_dlq_topic": "Topic of the original.",
    "yard_dlq_partition": "Its partition.",
    "yard_dlq_offset": "Its offset.",
}
_ERROR_HEADER = {"yard_dlq_error": "Why it is parked."}
_DESCRIPTION = (
    "Work and facts of gpuyard on Apache Kafka. A topic has one writing service; what must stay in order shares a key, "
    "and a key stays in its partition for ever (CRC-32 of the key, modulo the partitions). Records are CloudEvents 1.0 "
    "in binary mode: context attributes are headers, the value is JSON.\n\n"
    "Read with isolation level `read_committed`. A record may come twice: drop one whose `yard_publishseq` is not "
    "above the highest that you saw of its `ce_source` in its partition. Skip types that you do not know, and ignore "
    "fields that you do not know: within a version only optional ones are added, a break is a new type.\n\n"
    "An installation may put a prefix before the names of its topics."
)


def asyncapi() -> Schema:
    """The whole document. Payloads refer to the files in `events/`."""
    schemas = event_schemas()
    topics = {name: _topic_types(topic, schemas) for name, topic in TOPICS.items()}
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "gpuyard events", "version": VERSION, "description": _DESCRIPTION},
        "defaultContentType": CONTENT_TYPE,
        "servers": {
            "kafka": {
                "host": "{bootstrap}",
                "protocol": "kafka",
                "description": "The installation's Kafka, which its services find by YARD_KAFKA.",
                "variables": {"bootstrap": {"default": "localhost:9092"}},
            }
        },
        "channels": {name: _channel(TOPICS[name], types) for name, types in topics.items()},
        "operations": {f"{TOPICS[name].writer}.send.{name}": _send(TOPICS[name], topics[name]) for name in topics},
        "components": {
            "messages": {name: _message(name, schema) for name, schema in schemas.items()},
            "schemas": {"eventHeaders": _headers()},
        },
    }


def _topic_types(topic: Topic, schemas: Mapping[str, Schema]) -> list[str]:
    by_topic: dict[str, list[str]] = defaultdict(list)
    for name, schema in schemas.items():
        by_topic[schema["x-topic"]].append(name)
    for service in CONSUMING_SERVICES:
        by_topic[dead_letter_topic(service)] = list(DEAD_LETTER_TYPES)
    return by_topic[topic.name]


def _channel(topic: Topic, types: list[str]) -> Schema:
    if topic.policy is Policy.COMPACT:
        kept = f"the newest record of each key, for ever; tombstones {_days(topic)}"
        configuration: Schema = {"delete.retention.ms": topic.retention_seconds * 1000}
    else:
        kept = _days(topic)
        configuration = {"retention.ms": topic.retention_seconds * 1000}
    return {
        "address": topic.name,
        "title": topic.name,
        "description": f"Written by {topic.writer}; key: {topic.key}; kept: {kept}.",
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in types},
        "bindings": {
            "kafka": {
                "topic": topic.name,
                "topicConfiguration": {"cleanup.policy": [topic.policy.value], **configuration},
                "bindingVersion": BINDING_VERSION,
            }
        },
        "x-key": topic.key,
        "x-writer": topic.writer,
        "x-policy": topic.policy.value,
        "x-retention-seconds": topic.retention_seconds,
    }


def _days(topic: Topic) -> str:
    days = topic.retention_seconds / 86_400
    return f"{days:g} {'day' if days == 1 else 'days'}"


def _send(topic: Topic, types: list[str]) -> Schema:
    return {
        "action": "send",
        "channel": {"$ref": f"#/channels/{topic.name}"},
        "summary": f"{topic.writer} writes {topic.name}; nobody else does.",
        "messages": [{"$ref": f"#/channels/{topic.name}/messages/{name}"} for name in types],
        "x-service": topic.writer,
    }


def _message(name: str, schema: Schema) -> Schema:
    more = _ORIGIN_HEADERS if name in DEAD_LETTER_TYPES else {}
    more = more | (_ERROR_HEADER if name == PARKED_TYPE else {})
    own: Schema = {
        "type": "object",
        "required": sorted(more),
        "properties": {"ce_type": {"const": name}, "ce_dataschema": {"const": data_schema(name)}}
        | {header: {"type": "string", "description": text} for header, text in more.items()},
    }
    return {
        "name": name,
        "title": schema["title"],
        "summary": schema["description"],
        "contentType": CONTENT_TYPE,
        "headers": {"allOf": [{"$ref": "#/components/schemas/eventHeaders"}, own]},
        "payload": {"$ref": f"./events/{name}.json"},
        "correlationId": {
            "description": "The event that it all began with.",
            "location": "$message.header#/ce_correlationid",
        },
        "bindings": {
            "kafka": {"key": {"type": "string", "description": schema["x-key"]}, "bindingVersion": BINDING_VERSION}
        },
        "x-golden": f"./golden/{name}.json",
    }


def _headers() -> Schema:
    """Headers of every event. On the wire each is UTF-8 text."""

    def text(description: str, **more: Any) -> Schema:
        return {"type": "string", "description": description, **more}

    return {
        "type": "object",
        "required": [
            "ce_specversion",
            "ce_id",
            "ce_source",
            "ce_type",
            "ce_subject",
            "ce_time",
            "ce_dataschema",
            "content-type",
            "yard_publishseq",
        ],
        "properties": {
            "ce_specversion": text("Version of CloudEvents.", const=SPEC_VERSION),
            "ce_id": text("The event. Unique with ce_source.", minLength=1),
            "ce_source": text("Who made it: `yard/<service>`, or `yard/agent/<node>/<journal>`.", minLength=1),
            "ce_type": text("What it is: `yard.<context>.<fact>.v<version>`."),
            "ce_subject": text("What it is about: a job, an attempt, an allocation, a node …"),
            "ce_time": text("When it was made, with a zone.", format="date-time"),
            "ce_dataschema": text("`$id` of the value's schema; after `urn:gpuyard:` stands its path."),
            "content-type": text("Of the value.", const=CONTENT_TYPE),
            "ce_correlationid": text("Id of the event that it all began with."),
            "ce_causationid": text("Id of the event that it answers."),
            "ce_projectid": text("The project, where it concerns one."),
            "yard_publishseq": text(
                "Rises by source and partition; what is not above the highest seen is a double. "
                f"At most {MAX_PUBLISH_SEQ}.",
                pattern="^[0-9]{1,19}$",
            ),
            "traceparent": text("W3C Trace Context of the span that made it."),
            "tracestate": text("W3C Trace Context, of vendors."),
        },
        "additionalProperties": {"type": "string"},
    }
