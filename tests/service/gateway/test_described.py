"""The description of the API holds: what it promises of jobs and events is what comes."""

from typing import Any

from support.gateway import Gateway, fact
from yard_events.job_document import JobDocument
from yard_gateway.api import create_app


def kinds(value: Any) -> set[str]:
    names = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string"}
    return {names.get(type(value), "array" if isinstance(value, list) else "object")}


def mismatches(value: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    """Missing, undescribed and wrongly typed properties, one level deep."""
    found = [name for name in schema["required"] if name not in value]
    for name, item in value.items():
        described = schema["properties"].get(name)
        if described is None:
            found.append(name)
        elif "type" in described:
            allowed = described["type"]
            if not kinds(item) <= set([allowed] if isinstance(allowed, str) else allowed):
                found.append(name)
        elif "enum" in described and item not in described["enum"]:
            found.append(name)
    return found


async def test_answers_are_as_described(gateway: Gateway) -> None:
    description = (await gateway.client(None).get("/openapi.json")).json()
    schemas = description["components"]["schemas"]
    job = await gateway.submit(labels={"a": "b"})
    await gateway.tell(job, "queued", "starting", "running", "succeeded")

    shown = (await gateway.http.get(f"/v1/jobs/{job}")).json()
    [event, *_] = (await gateway.http.get(f"/v1/jobs/{job}/events")).json()["items"]
    problem = (await gateway.http.get("/v1/jobs/x")).json()
    assert mismatches(shown, schemas["Job"]) == []
    assert mismatches(event, schemas["Event"]) == []
    assert mismatches(problem, schemas["Problem"]) == []
    assert event["type"] == fact("queued", job).TYPE


async def test_the_example_submission_is_accepted_as_json_and_as_yaml(gateway: Gateway) -> None:
    operation = create_app().openapi()["paths"]["/v1/jobs"]["post"]
    content = operation["requestBody"]["content"]
    as_json = await gateway.http.post("/v1/jobs", json=content["application/json"]["example"])
    as_yaml = await gateway.http.post(
        "/v1/jobs", content=content["application/yaml"]["example"], headers={"content-type": "application/yaml"}
    )

    assert (as_json.status_code, as_yaml.status_code) == (201, 201)
    assert as_json.json()["spec"] == as_yaml.json()["spec"]


def test_the_description_needs_no_running_gateway() -> None:
    description = create_app().openapi()

    assert description["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            assert operation["security"] == [{"token": []}], (method, path)
            assert {"401", "503"} <= set(operation["responses"]), (method, path)
            assert operation["summary"], (method, path)
    assert set(JobDocument.model_fields) == set(description["components"]["schemas"]["JobDocument"]["properties"])


async def test_the_page_for_people_needs_nothing_from_elsewhere(gateway: Gateway) -> None:
    page = (await gateway.client(None).get("/docs")).text

    assert "/v1/jobs/{job_id}/logs" in page
    assert "<script" not in page
    assert "http://" not in page
    assert "https://" not in page
