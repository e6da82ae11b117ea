"""Sending captured sessions at another broker and telling what differs. Not built yet: see README.md."""
