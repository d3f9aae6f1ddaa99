"""A worker's steps, from the first batch to the end of the job."""
