"""The parameters of a model, and what the script does with them while they are under way."""
