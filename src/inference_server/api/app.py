"""Puts the HTTP surface together: routers, error handlers and middleware around an `ApiContext`."""

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Lifespan

from inference_server import __version__
from inference_server.api.access import AccessGate
from inference_server.api.context import ApiContext
from inference_server.api.errors import install_error_handlers
from inference_server.api.middleware import AdmissionGate, BodyLimit, HeadAsGet, HeaderLimit, RequestEnvelope
from inference_server.api.rate_limit import RateLimit
from inference_server.api.routes import dashboard, generate, health, models, openai, requests, responses, simulate, stats, tokens
from inference_server.api.schemas.answers import ERRORS


def build_app(context: ApiContext, lifespan: Lifespan[FastAPI] | None = None) -> FastAPI:
    """The ASGI application. `lifespan` starts and stops the engine; this function does neither."""
    app = FastAPI(
        title="inference-server",
        version=__version__,
        lifespan=lifespan,
        middleware=_middleware(context),
        responses=ERRORS,
        docs_url=None,  # FastAPI's pages load scripts from another host; /openapi.json is served
        redoc_url=None,
    )
    app.state.context = context
    install_error_handlers(app)
    for module in (generate, openai, responses, models, tokens, stats, requests, simulate, health, dashboard):
        app.include_router(module.router)
    app.openapi()  # built now rather than by the first client, on the event loop
    return app


def _middleware(context: ApiContext) -> list[Middleware]:
    """The layers, outermost first. CORS stands before the gates, so that a page can read why it was refused."""
    options = context.options
    layers = [
        Middleware(HeadAsGet),
        Middleware(RequestEnvelope, context=context),
        Middleware(HeaderLimit, max_bytes=options.max_header_bytes),
    ]
    if options.cors_origins:
        layers.append(Middleware(CORSMiddleware, allow_origins=options.cors_origins, allow_methods=["*"], allow_headers=["*"]))
    if options.api_keys or options.metrics_key is not None:
        layers.append(Middleware(AccessGate, api_keys=options.api_keys, metrics_key=options.metrics_key))
    requests, tokens = options.rate_limit_rpm, options.rate_limit_tpm
    if requests or tokens:
        layers.append(Middleware(RateLimit, requests=requests, tokens=tokens, spending=context.spending, clock=context.clock))
    layers.append(Middleware(AdmissionGate, context=context))
    layers.append(Middleware(BodyLimit, max_bytes=options.max_body_bytes, deadline_s=options.body_deadline_s))
    return layers
