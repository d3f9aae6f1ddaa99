"""How a script comes to its place in a job."""
