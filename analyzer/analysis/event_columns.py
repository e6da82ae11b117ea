"""Columns that all events of frequent APIs have, for the logs (`frame.log`) that collectors keep of them.

In: exchanges of a window, in which text is a number of `Names`. Out: columns. Rule: no event makes a Python object.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kwire.analyzer.bulk.rows import Exchanges
from kwire.analyzer.frame.arrow import distinct
from kwire.analyzer.frame.log import Columns
from kwire.captures.kernels import NULL

EVENT_COLUMNS: Final = ("completed_by", "serial", "time", "connection", "exchange", "reply", "client", "ip")
"""Columns of `event_columns`; connection, client and ip number texts."""
EVENT_ORDER: Final = ("completed_by", "serial")
"""Columns that order events: the packet that completed the exchange, and the age of its connection."""


def event_columns(every: Exchanges, rows: np.ndarray) -> Columns:
    """Return the columns that all events have, of some exchanges.

    Their place (`EVENT_ORDER`), time (ns: end of the response, or of the request if it has none), connection (a number
    of `Names`), exchange, reply, and the client's id and address (numbers of strings).
    """
    names = every.names
    connection = every.connection[rows]
    used = distinct(connection)
    which = np.searchsorted(used, connection)
    born = np.array([names.serials[number] for number in used.tolist()], np.int64)[which]
    ips = np.array([names.ends[number][0] for number in used.tolist()], np.int64)[which]
    response, request = every.column("response_end")[rows], every.column("request_end")[rows]
    return {
        "completed_by": every.column("completed_by")[rows],
        "serial": born,
        "time": np.where(response == NULL, request, response),
        "connection": connection,
        "exchange": every.column("exchange")[rows],
        "reply": every.column("reply")[rows],
        "client": every.column("client_id")[rows],
        "ip": ips,
    }
