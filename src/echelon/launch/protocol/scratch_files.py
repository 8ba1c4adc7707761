"""Names of files in an agent's scratch folder through which its processes communicate."""

TELEMETRY_NOTES = "said"
"""Lines from telemetry that users should see."""
CONTROLLER_CLOCK = "clock"
"""The controller's time of day, as an offset to the monotonic clock."""
