"""Which examples a worker trains on, and their batches."""
