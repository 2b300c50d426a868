"""Whose share of the service a request uses: the key that the fair policy counts by. It is shown in statistics, so it holds no secret."""

import hashlib

from fastapi import Request

_BEARER = "bearer "


def fairness_key(request: Request, session: str = "") -> str:
    """The API key if there is one, else the session or user that the body names, else the client's address.

    Sessions under one API key share its count, so a new session_id for every request gains nothing. As long as nobody checks
    the keys, one counts together with the address it comes from: many clients send the same placeholder.
    """
    address = request.client.host if request.client else ""
    scheme_and_key = request.headers.get("authorization", "")
    if scheme_and_key[: len(_BEARER)].lower() == _BEARER:
        digest = hashlib.sha256(scheme_and_key[len(_BEARER) :].strip().encode()).hexdigest()
        return f"key:{digest[:12]}@{address}"
    return f"session:{session}" if session else f"address:{address}"
