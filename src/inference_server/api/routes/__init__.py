"""One router module per concern. A route validates, asks the engine, and leaves the wire shape to `api.formats`."""
