"""Capture files: what an argument names, a file's bytes, where packets lie in them, and writing captures.

The door for other packages: capture points, and what can go wrong with them.
"""

from kwire.captures.errors import CaptureError as CaptureError
from kwire.captures.files.points import CapturePoint as CapturePoint
from kwire.captures.files.points import begins_ns as begins_ns
from kwire.captures.files.points import capture_points as capture_points
from kwire.captures.files.points import likely_bytes as likely_bytes
from kwire.captures.files.points import stored_bytes as stored_bytes
from kwire.captures.files.sources import FileInfo as FileInfo
