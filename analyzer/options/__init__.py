"""The options of every command, each command's as a frozen dataclass that says type, default, spelling and help."""
