"""Single exchanges with decoded bodies, and raw messages with masked secrets."""
