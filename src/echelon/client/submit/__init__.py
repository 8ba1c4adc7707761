"""From a request to a queued job."""
