"""The command line: its parser, the commands, and what they print."""
