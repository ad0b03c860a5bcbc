"""Billing's settings: `YARD_BILLING__…`. Exact seconds need no tunables; prices and budgets will."""

from yard_runtime.settings import ServiceSettings, service_config


class BillingSettings(ServiceSettings):
    model_config = service_config("billing")
