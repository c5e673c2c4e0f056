"""What cannot change a number: cells from params.yaml, their identity, records, schedule and evaluation."""
