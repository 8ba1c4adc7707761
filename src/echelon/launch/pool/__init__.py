"""The agents of a job, on the side of a controller or the doctor."""
