"""Request and response bodies, validated strictly: a key we do not implement is refused by name, never ignored."""
