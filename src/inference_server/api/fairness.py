"""Whose share of the service a request uses: the key that the fair policy counts by. It is shown in statistics, so it holds no secret."""

from fastapi import Request

from inference_server.api.access import bearer_token, key_name
from inference_server.api.headers import address, header


def fairness_key(request: Request, session: str = "") -> str:
    """The API key if there is one, else the session or user that the body names, else the client's address.

    Sessions under one API key share its count, so a new session_id for every request gains nothing. Where the server does not
    check keys, one counts together with the address it comes from: many clients send the same placeholder.
    """
    if checked := request.scope["state"].get("client_key"):
        return str(checked)
    if token := bearer_token(header(request.scope, b"authorization")):
        return f"{key_name(token)}@{address(request.scope)}"
    return f"session:{session}" if session else f"address:{address(request.scope)}"
