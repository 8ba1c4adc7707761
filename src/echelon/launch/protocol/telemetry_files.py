"""Files in an agent's scratch folder by which it and its telemetry process talk."""

SAID = "said"
"""The file in the agent's folder where telemetry puts what users should hear."""


CLOCK = "clock"
"""The file there from which it has the controller's time, as an offset to the monotonic clock."""
