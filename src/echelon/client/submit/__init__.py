"""Turn a request into a queued job."""
