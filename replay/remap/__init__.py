"""Replaces the capture's values with the target's, learned from its answers. Pure."""
