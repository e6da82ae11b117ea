"""Rehearse an upgrade: replay a capture at an old target twice and at a new one, and give one verdict."""
