"""The agents of a job, as a controller or the doctor has them."""
