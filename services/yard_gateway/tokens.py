"""Callers and their tokens, of which only digests are kept."""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from yard_gateway.database import Reads
from yard_gateway.principals import BOUND_ROLES, Principal, Role, unauthorized
from yard_gateway.tables import TOKENS
from yard_runtime.http import Problem
from yard_store.bulk import bulk_insert
from yard_store.unit_of_work import Store

BOOTSTRAP_NAME = "admin"
BOOTSTRAP_ID = "token-bootstrap"
MAX_TOKEN_CHARACTERS = 512


def mint() -> str:
    """A new token: 256 random bits, recognisable by its prefix to people and to scanners for leaked secrets."""
    return f"yard_{secrets.token_urlsafe(32)}"


def digest_of(token: str) -> str:
    """What is stored of a token.

    A plain SHA-256 is right here, and a slow salted hash (bcrypt, argon2) is not: those make guessing passwords dear,
    but a token of 256 random bits cannot be guessed from its digest at any speed, and every request pays.
    """
    return hashlib.sha256(token.encode()).hexdigest()


class Authenticator:
    """From an Authorization header to a principal, remembered for a few seconds."""

    def __init__(
        self, reads: Reads, *, cache_seconds: float, monotonic: Callable[[], float], cache_size: int = 1024
    ) -> None:
        self._reads = reads
        self._cache_seconds = cache_seconds
        self._monotonic = monotonic
        self._cache_size = cache_size
        self._cache: dict[str, tuple[Principal, float]] = {}
        self._generation = 0

    async def principal(self, authorization: str | None) -> Principal:
        """Raises Problem 401, or Retryable while the database is away and the caller is not remembered."""
        digest = digest_of(bearer_token(authorization))
        known = self._cache.get(digest)
        if known is not None and known[1] > self._monotonic():
            return known[0]
        generation = self._generation
        principal = await self._look_up(digest)
        if principal is None:
            raise unauthorized("The token is unknown or was revoked.")
        if generation == self._generation:  # a token revoked while we read must not be remembered
            if len(self._cache) >= self._cache_size:
                self._cache.clear()
            self._cache[digest] = (principal, self._monotonic() + self._cache_seconds)
        return principal

    def forget(self) -> None:
        """Tokens changed: the next request of every caller is looked up again."""
        self._generation += 1
        self._cache.clear()

    async def _look_up(self, digest: str) -> Principal | None:
        columns = (TOKENS.c.token_id, TOKENS.c.name, TOKENS.c.role, TOKENS.c.projects, TOKENS.c.digest)
        statement = sa.select(*columns).where(TOKENS.c.digest == digest, TOKENS.c.revoked_at.is_(None))
        found = await self._reads.rows(statement)
        if not found or not hmac.compare_digest(found[0].digest, digest):
            return None
        row = found[0]
        role = Role(row.role)
        return Principal(row.token_id, row.name, role, frozenset(row.projects) if role in BOUND_ROLES else None)


def bearer_token(authorization: str | None) -> str:
    """The token of `Bearer TOKEN`. Raises Problem 401."""
    if authorization is None:
        raise unauthorized("Send your token as 'Authorization: Bearer TOKEN'.")
    scheme, _, token = authorization.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN_CHARACTERS:
        raise unauthorized("Send your token as 'Authorization: Bearer TOKEN'.")
    return token


@dataclass(frozen=True, slots=True)
class NewToken:
    name: str
    role: Role
    projects: tuple[str, ...]


async def create(store: Store, wanted: NewToken, created_by: str) -> tuple[str, str]:
    """Store a new token; returns its id and the token itself, which nobody can read again. Raises Problem 409."""
    token = mint()
    async with store.unit_of_work() as uow:
        taken = await uow.connection.scalar(
            sa.select(TOKENS.c.token_id).where(TOKENS.c.name == wanted.name, TOKENS.c.revoked_at.is_(None))
        )
        if taken is not None or wanted.name == BOOTSTRAP_NAME:
            message = f"a token named {wanted.name!r} exists; revoke it first or choose another name"
            raise Problem(409, "Conflict", message, errors=[{"field": "name", "message": message}])
        token_id = uow.new_id("token")
        await _insert(uow.connection, token_id, wanted, digest_of(token), created_by, uow.now)
    return token_id, token


async def revoke(store: Store, token_id: str) -> bool:
    """False when there is no such live token. Raises Problem 409 for the bootstrap token, which would come back."""
    if token_id == BOOTSTRAP_ID:
        raise Problem(409, "Conflict", "The bootstrap token is a setting of the gateway: change it there and restart.")
    async with store.unit_of_work() as uow:
        done = await uow.connection.execute(
            sa.update(TOKENS)
            .where(TOKENS.c.token_id == token_id, TOKENS.c.revoked_at.is_(None))
            .values(revoked_at=uow.now)
        )
        return done.rowcount == 1


async def list_all(reads: Reads) -> list[dict[str, Any]]:
    columns = (
        TOKENS.c.token_id,
        TOKENS.c.name,
        TOKENS.c.role,
        TOKENS.c.projects,
        TOKENS.c.created_by,
        TOKENS.c.created_at,
    )
    found = await reads.rows(sa.select(*columns).where(TOKENS.c.revoked_at.is_(None)).order_by(TOKENS.c.name))
    return [
        {
            "id": row.token_id,
            "name": row.name,
            "role": row.role,
            "projects": row.projects,
            "created_by": row.created_by,
            "created_at": row.created_at,
        }
        for row in found
    ]


async def install_bootstrap(store: Store, token: str) -> None:
    """Make the setting's token the admin's; an earlier one stops working."""
    digest = digest_of(token)
    async with store.unit_of_work() as uow:
        done = await uow.connection.execute(
            sa.update(TOKENS).where(TOKENS.c.token_id == BOOTSTRAP_ID).values(digest=digest, revoked_at=None)
        )
        if done.rowcount == 0:
            admin = NewToken(BOOTSTRAP_NAME, Role.ADMIN, ())
            await _insert(uow.connection, BOOTSTRAP_ID, admin, digest, "settings", uow.now)


async def _insert(
    connection: AsyncConnection, token_id: str, wanted: NewToken, digest: str, created_by: str, now: datetime
) -> None:
    row = {
        "token_id": token_id,
        "name": wanted.name,
        "role": wanted.role.value,
        "projects": list(wanted.projects),
        "digest": digest,
        "created_by": created_by,
        "created_at": now,
        "revoked_at": None,
    }
    await bulk_insert(connection, TOKENS, [row])
