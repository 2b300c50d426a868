"""The HTTP surface: routes, schemas, wire formats, server-sent events, errors and middleware. No torch, and no work on the event loop."""
