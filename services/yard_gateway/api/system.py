"""Health and the description of the API: without a token, without data."""

import html
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse
from sqlalchemy import text

from yard_domain.errors import Retryable
from yard_gateway.api.parts import AllParts

router = APIRouter()

_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>gpuyard API</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}}
code,pre{{font:14px/1.4 ui-monospace,monospace;background:#f3f3f3}}pre{{padding:.6rem;overflow:auto}}
td{{padding:.2rem .8rem .2rem 0;vertical-align:top}}</style>
<h1>gpuyard API</h1><p>{intro}</p><p>The whole description, for programs: <a href="/openapi.json">/openapi.json</a></p>
{body}</html>"""


@router.get("/healthz", include_in_schema=False)
async def healthz() -> JSONResponse:
    return JSONResponse({"status": "alive"})


@router.get("/readyz", include_in_schema=False)
async def readyz(parts: AllParts) -> JSONResponse:
    waiting = parts.waiting_for()
    try:
        await parts.reads.rows(text("SELECT 1"))
    except Retryable:
        waiting = [*waiting, "database"]
    return JSONResponse({"waiting_for": waiting}, 503 if waiting else 200)


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """A page without scripts, so that nothing foreign runs where people paste tokens, and it works without internet."""
    return HTMLResponse(render(request.app.openapi()))


def render(document: dict[str, Any]) -> str:
    parts: list[str] = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts.append(
                f"<h3><code>{method.upper()} {html.escape(path)}</code> {_text(operation.get('summary'))}</h3>"
            )
            parts.append(f"<p>{_text(operation.get('description'))}</p>")
            parts.append(_parameters(operation.get("parameters", [])))
            parts.append(_answers(operation["responses"]))
    return _PAGE.format(intro=_text(document["info"].get("description")), body="\n".join(parts))


def _parameters(parameters: list[dict[str, Any]]) -> str:
    rows = [
        f"<tr><td><code>{_text(p['name'])}</code></td><td>{p['in']}</td><td>{_text(p.get('description'))}</td></tr>"
        for p in parameters
    ]
    return f"<table>{''.join(rows)}</table>" if rows else ""


def _answers(responses: dict[str, Any]) -> str:
    rows = [f"<tr><td><code>{code}</code></td><td>{_text(r['description'])}</td></tr>" for code, r in responses.items()]
    return f"<table>{''.join(rows)}</table>"


def _text(value: str | None) -> str:
    return html.escape(value or "")
