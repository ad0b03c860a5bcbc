"""Alembic's environment, shared by all services: the connection and the schema come from `yard_store.migrations`."""

from alembic import context

config = context.config
schema = config.attributes["schema"]
context.configure(
    connection=config.attributes["connection"], version_table_schema=schema, transaction_per_migration=False
)
with context.begin_transaction():
    context.run_migrations()
