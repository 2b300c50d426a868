"""The load simulator: virtual users who talk to this server through its own public `/generate`."""
