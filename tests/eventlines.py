"""Events with any fields, as other versions or a damaged disk may leave them."""

import json

from echelon.run.event_log import Unknown, parse_event
from echelon.run.events import ControllerEvent


def raw(kind, /, **data):
    """Return an event to write, with these fields and no others."""
    return Unknown(kind=kind, data=data)


def at(time_s, kind, /, events=ControllerEvent, **data):
    """Return the record that a reader makes of a line; None if it makes none."""
    return parse_event(json.dumps({"time": time_s, "kind": kind, **data}), events)
