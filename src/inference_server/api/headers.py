"""What middleware reads of a request before anything has parsed it: a header, the path, its sender, whether it asks for a generation."""

from starlette.types import Scope

# Before a request is routed, the gates tell generations by these paths; a `GenerationRoute` elsewhere is an error.
GENERATION_ROUTES = frozenset({"/generate", "/v1/completions", "/v1/chat/completions", "/v1/responses"})


def header(scope: Scope, name: bytes) -> bytes:
    """The first header of that name, in lower case; empty where there is none."""
    return next((value for key, value in scope["headers"] if key == name), b"")


def route_path(scope: Scope) -> str:
    """The path as the routes know it, without the prefix that a proxy adds."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def address(scope: Scope) -> str:
    """The client's address; empty where it has none, as over a Unix socket."""
    return scope["client"][0] if scope.get("client") else ""


def is_generation(scope: Scope) -> bool:
    return scope["method"] == "POST" and route_path(scope) in GENERATION_ROUTES
