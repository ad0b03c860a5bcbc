"""Jobs and how long they wait; the API through which they come."""

from boards.panels import Board, Section, Variable, graph, number, quantiles
from boards.promql import RATE, gauge, legend, quantile, rate
from yard_obs.catalogue import (
    ADMISSION_WAIT,
    HTTP_METHOD,
    HTTP_ROUTE,
    HTTP_SERVER_DURATION,
    HTTP_STATUS,
    JOB_COUNT,
)

_JOBS_ROUTE = "/v1/jobs"
_WAIT_WINDOW = "15m"
"""Admissions can be rare: a shorter window would have gaps."""


def _jobs() -> Section:
    return Section(
        "Jobs",
        [
            graph(
                "Jobs by state",
                "Jobs that have not ended.",
                [(gauge(JOB_COUNT, "state", queue="$queue"), legend("state"))],
                stacked=True,
            ),
            graph(
                "Jobs that wait, by queue and state",
                "queued: for quota or their turn. admitted: for devices. `yard describe JOB` says why.",
                [
                    (
                        gauge(JOB_COUNT, "queue", "state", queue="$queue", state="~submitted|queued|admitted"),
                        legend("queue", "state"),
                    )
                ],
            ),
            graph(
                "Jobs that run, by queue",
                "Tasks of theirs are on devices.",
                [(gauge(JOB_COUNT, "queue", queue="$queue", state="running"), legend("queue"))],
            ),
            graph(
                "Admissions per second, by queue",
                "How fast the queue is served.",
                [(rate(ADMISSION_WAIT, "queue", queue="$queue"), legend("queue"))],
                unit="ops",
            ),
        ],
    )


def _waiting() -> Section:
    note = "From when a job began to wait in its queue to its admission; only jobs that were admitted count."
    return Section(
        "Waiting",
        [
            quantiles("Admission wait, all queues", note, ADMISSION_WAIT, window=_WAIT_WINDOW, queue="$queue"),
            quantiles("Admission wait by queue", note, ADMISSION_WAIT, "queue", window=_WAIT_WINDOW, queue="$queue"),
        ],
    )


def _api() -> Section:
    submissions = {"http_request_method": "POST", "http_route": _JOBS_ROUTE}
    return Section(
        "API",
        [
            number(
                "Submissions",
                "Accepted calls of POST /v1/jobs.",
                rate(HTTP_SERVER_DURATION, **submissions, http_response_status_code="~2.."),
                unit="reqps",
                width=6,
            ),
            number(
                "Submission p95",
                "Until the answer to POST /v1/jobs, which is after the job was committed.",
                quantile(0.95, HTTP_SERVER_DURATION, **submissions),
                unit="s",
                width=6,
                limits={0.25: "orange", 1: "red"},
            ),
            number(
                "Requests", "Calls of all routes, of all processes.", rate(HTTP_SERVER_DURATION), unit="reqps", width=6
            ),
            number(
                "Errors of the server",
                "Share of the calls that were answered with a status of 500 or above.",
                f"({rate(HTTP_SERVER_DURATION, http_response_status_code='~5..')} or vector(0)) "
                f"/ {rate(HTTP_SERVER_DURATION)}",
                unit="percentunit",
                width=6,
                limits={0.001: "orange", 0.01: "red"},
            ),
            graph(
                "Submissions per second, by status",
                "Calls of POST /v1/jobs: 201 new, 200 repeated with the same key, 4xx refused, 503 try again.",
                [(rate(HTTP_SERVER_DURATION, HTTP_STATUS, **submissions), legend(HTTP_STATUS))],
                unit="reqps",
                stacked=True,
            ),
            quantiles(
                "Submission latency",
                "From the arrival of POST /v1/jobs to the first byte of its answer.",
                HTTP_SERVER_DURATION,
                window=RATE,
                **submissions,
            ),
            graph(
                "Requests per second, by route",
                "The API's routes, and the internal ones between services.",
                [(rate(HTTP_SERVER_DURATION, HTTP_METHOD, HTTP_ROUTE), legend(HTTP_METHOD, HTTP_ROUTE))],
                unit="reqps",
            ),
            graph(
                "Latency p95 by route",
                "From a request's arrival to the first byte of its answer.",
                [
                    (
                        quantile(0.95, HTTP_SERVER_DURATION, HTTP_METHOD, HTTP_ROUTE),
                        legend(HTTP_METHOD, HTTP_ROUTE),
                    )
                ],
                unit="s",
            ),
        ],
    )


QUEUES = Board(
    uid="gpuyard-queues",
    title="gpuyard: queues and waiting",
    description="Jobs by state and queue, how long they wait for admission, submissions and the API's latency.",
    traces=f'{{ kind = server && span.http.route = "{_JOBS_ROUTE}" }}',
    variables=[Variable("queue", "Queue", JOB_COUNT, "queue")],
    sections=[_jobs(), _waiting(), _api()],
)
